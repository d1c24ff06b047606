"""The ladder: counts, causality, starts, and rollouts that equal the training-time pass."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.core.errors import UserError
from lpwm.model import LINKS, NONNEGATIVE, PAPER_RUNGS, EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.model.layers import short_attention
from lpwm.model.link import reprelu

SMALL = dict(heads=2, head_dim=8, mlp=32, head_hidden=24, rank=4)
TINY_VIT = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)


def scrambled(rung, history=3, latent=12, seed=0, **options):
    """A model whose every parameter is random, so that no deliberate zero hides a mistake."""
    config = ModelConfig(
        latent=latent,
        encoder=TINY_VIT,
        predictor=PredictorConfig(rung=rung, history=history, dropout=0.0, **{**SMALL, **options}),
    )
    model = WorldModel(config, action_dim=6).double().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model


def rand(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rung", ["lti", "lti1"])
@pytest.mark.parametrize("action_encoder", ["mlp", "linear"])
def test_lti_starts_as_the_identity_for_every_action(rung, action_encoder):
    config = ModelConfig(
        latent=10, encoder=TINY_VIT, predictor=PredictorConfig(rung=rung), action_encoder=action_encoder
    )
    model = WorldModel(config, action_dim=4)
    z, a = torch.rand(5, 3, 10), 10 * torch.randn(5, 3, 4)
    assert torch.equal(model.predictor(z, model.embed_action(a)), z)
    assert torch.equal(model.predict(z, a), z)  # non-negative codes pass the link unchanged


def test_ltv_starts_as_mlp_lti():
    ltv, lti = PredictorConfig(rung="mlp-ltv").build(16), PredictorConfig(rung="mlp-lti").build(16)
    from lpwm.model.world_model import deliberate_init

    deliberate_init(ltv)
    lti.load_state_dict(ltv.base.state_dict())
    z, e = torch.randn(4, 3, 16), torch.randn(4, 3, 16)
    torch.testing.assert_close(ltv(z, e), lti(z, e), rtol=0, atol=1e-6)
    with torch.no_grad():
        ltv.U[1].weight.add_(1.0)
    assert (ltv(z, e) - lti(z, e)).abs().max() > 1e-3  # the gate does something once it opens


def test_adaln_blocks_start_as_the_identity():
    model = WorldModel(ModelConfig(latent=12, encoder=TINY_VIT, predictor=PredictorConfig(**SMALL)), 6).eval()
    p = model.predictor
    z, e = torch.randn(2, 3, 12), torch.randn(2, 3, 12)
    torch.testing.assert_close(p(z, e), p.head(p.norm(z + p.position)))


def test_lti_by_hand():
    """u_t = Σ A_i z_{t−i} + B e_t + b with missing lags zero, written with loops."""
    p = scrambled("lti", latent=5).predictor
    z, e = rand(2, 3, 5), rand(2, 3, 5, seed=3)
    for b in range(2):
        for t in range(3):
            u = p.A[0].bias + p.B.weight @ e[b, t]
            for i in range(min(t, 2) + 1):
                u = u + p.A[i].weight @ z[b, t - i]
            torch.testing.assert_close(p(z, e)[b, t], u)


def test_ltv_by_hand():
    p = scrambled("mlp-ltv", latent=5).predictor
    z, e = rand(1, 3, 5), rand(1, 3, 5, seed=3)
    for t in range(3):
        g = torch.sigmoid(p.G.weight @ z[0, t] + p.G.bias).reshape(4, 4)  # (k+1, r)
        B = p.base.B.weight + p.U[3].weight @ torch.diag(g[3]) @ p.V[3].weight
        h = p.base.A[0].bias + B @ e[0, t]
        for i in range(t + 1):
            A = p.base.A[i].weight + p.U[i].weight @ torch.diag(g[i]) @ p.V[i].weight
            h = h + A @ z[0, t - i]
        u = p.base.W.weight @ torch.relu(h) + p.base.W.bias
        torch.testing.assert_close(p(z, e)[0, t], u)


@pytest.mark.parametrize("rung", PAPER_RUNGS)
@pytest.mark.parametrize("history", [1, 2, 3, 4])
def test_rollout_slides_its_window(rung, history):
    """Cached, uncached and a window re-run by hand, one sample at a time, agree to the last step."""
    model = scrambled(rung, history)
    C = min(history, 3)
    z, past, a = model.link(rand(2, C, 12)), rand(2, C - 1, 6, seed=4), rand(2, 3, 6, 6, seed=5)
    given_past = past if C > 1 else None
    fast = model.rollout(z, a, given_past)
    slow = model.rollout(z, a, given_past, cached=False)
    last = model.rollout(z, a, given_past, last_only=True)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(last, fast[:, :, -1], rtol=1e-9, atol=1e-9)
    codes, actions = [z[1, i] for i in range(C)], [*past[1], *a[1, 2]]
    for t in range(6):
        codes_w = torch.stack(codes[-history:])
        actions_w = torch.stack(actions[: C + t][-history:])
        codes.append(model.predict(codes_w[None], actions_w[None])[0, -1])
    torch.testing.assert_close(fast[1, 2], torch.stack(codes[C:]), rtol=1e-9, atol=1e-9)


def test_real_history_is_computed_once_for_all_samples():
    """Tokens common to all samples enter the blocks with one sample, not S."""
    model = scrambled("deep-adaln")
    seen = []
    for block in model.predictor.blocks:
        block.register_forward_pre_hook(lambda m, args: seen.append(tuple(args[0].shape[1:3])))
    model.rollout(model.link(rand(2, 3, 12)), rand(2, 50, 2, 6), rand(2, 2, 6), last_only=True)
    tokens = sum(samples * n for samples, n in seen) / 6
    # two history tokens once; then 1 sample token; then, slid, 1 shared + 2 sample tokens
    assert tokens == 2 + 50 + 1 + 2 * 50


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
def test_short_attention_keeps_the_precision_of_its_input(dtype, tolerance):
    q, k, v = (rand(2, n, 4, 8, seed=n) for n in (3, 5, 5))
    want = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
    got = short_attention(*(t.to(dtype) for t in (q, k, v)), mask=None)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_context_longer_than_the_history_is_cut():
    model = scrambled("lti1")
    z, past, a = rand(2, 3, 12), rand(2, 2, 6), rand(2, 4, 3, 6)
    torch.testing.assert_close(model.rollout(z, a, past), model.rollout(z[:, -1:], a))


def test_context_and_past_actions_must_match():
    with pytest.raises(UserError, match="2 action blocks"):
        scrambled("lti").rollout(rand(2, 3, 12), rand(2, 4, 3, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_reprelu_forward_is_relu_bit_for_bit(dtype, scale):
    x = (torch.randn(200_000, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    y = reprelu(x)
    assert torch.equal(y, torch.relu(x))
    assert torch.equal(y == 0, x <= 0)


def test_the_other_links_are_what_they_are_called():
    x = torch.tensor([-2.0, -1e-30, 0.0, 1e-30, 0.005, 3.0], requires_grad=True)
    assert LINKS.get("identity")(x) is x and LINKS.get("reprelu") is reprelu
    y = LINKS.get("relu")(x)
    assert y.tolist() == [max(v, 0.0) for v in x.tolist()]
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_are_exact_when_compiled_on_a_gpu(dtype):
    x = torch.randn(1 << 20, device="cuda", dtype=dtype, requires_grad=True)
    y = torch.compile(lambda u: reprelu(2 * u + 0.1))(x)
    y.sum().backward()
    assert (y == 0).float().mean() > 0.4 and x.grad.isfinite().all()
    with torch.no_grad():
        assert torch.equal(y > 0, torch.compile(lambda u: 2 * u + 0.1)(x) > 0)


def test_reprelu_gradient_is_that_of_gelu():
    x = torch.linspace(-4, 4, 1001, dtype=torch.float64, requires_grad=True)
    reprelu(x).sum().backward()
    # gelu(x) = x Φ(x), so gelu'(x) = Φ(x) + x φ(x)
    t = x.detach()
    phi = torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    expected = 0.5 * (1 + torch.erf(t / math.sqrt(2))) + t * phi
    torch.testing.assert_close(x.grad, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    name=st.sampled_from(sorted(LINKS)),
    seed=st.integers(0, 10**6),
)
def test_links_keep_shape_and_dtype_and_sign(shape, dtype, name, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()
    y = LINKS.get(name)(x)
    assert y.shape == x.shape and y.dtype == dtype
    if name in NONNEGATIVE:
        assert (y >= 0).all()
    y.float().sum().backward()
    assert x.grad.shape == x.shape and torch.isfinite(x.grad).all()
