"""The encoder's operator: against the plain blocks in float64, with torch in the place of the kernels; the kernels
themselves in Triton's interpreter, where Triton is installed, and on CUDA."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from lpwm import kernels
from lpwm.kernels import settings, stack, trial
from lpwm.model.config import EncoderConfig
from lpwm.model.encoder import ViT

CONFIG = EncoderConfig(image_size=32, patch=8, width=24, depth=4, heads=2, head_dim=8, mlp=40)
CPU = torch.device("cpu")


def split(qkv, heads):
    return (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))


def average(r, c, query, scale, eps):
    """Of x̂ in the last block, and the log-sum of its scores."""
    x = F.layer_norm(r + c, c.shape, eps=eps)
    s = torch.einsum("hbw,bnw->hbn", query, x) * scale
    return torch.einsum("hbn,bnw->hbw", s.softmax(-1), x), s.logsumexp(-1) / math.log(2)


# What a kernel can get wrong.
PARTS = [f"{part} of {what}" for what in ("attention", "the norm", "down", "the last") for part in ("gradient", "sums")]
PARTS += ["attention", "norm", "norm of token 0", "slope", "active", "average", "dquery", "patches"]


class Plain:
    """Torch in the place of the kernels; what is named in `broken` is 8 % too large."""

    def __init__(self, broken=""):
        self.scale = lambda name: 1.08 if name == broken else 1.0

    def use(self, monkeypatch):
        attention = SimpleNamespace(forward=self.attention, backward=self.attention_backward, pieces=lambda b, n: b)
        norm = SimpleNamespace(
            forward=self.norm,
            backward=self.norm_backward,
            pieces=lambda m, tiles: 2,
            totals=lambda parts, out: out.copy_(parts.float().sum(1) if out.dtype != torch.float64 else parts.sum(1)),
        )
        mlp = SimpleNamespace(up=self.up, down_backward=self.down_backward, pieces=lambda m, product: 2)
        last = SimpleNamespace(forward=self.last, backward=self.last_backward)
        cut = SimpleNamespace(cut=lambda *a: self.scale("patches") * plain_patches(*a))
        for name, fake in dict(attention=attention, norm=norm, mlp=mlp, last=last, patches_kernel=cut).items():
            monkeypatch.setattr(stack, name, fake)

    def attention(self, qkv, heads, out, lse):
        q, k, v = split(qkv, heads)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        out.copy_(self.scale("attention") * (s.softmax(-1) @ v).transpose(1, 2).flatten(-2))
        lse.copy_(s.logsumexp(-1) / math.log(2))

    def attention_backward(self, grad, qkv, out, lse, heads, dqkv, dbias):
        with torch.enable_grad():
            x = qkv.detach().requires_grad_()
            o = F.scaled_dot_product_attention(*split(x, heads)).transpose(1, 2).flatten(-2)
            (d,) = torch.autograd.grad(o, x, grad)
        dqkv.copy_(self.scale("gradient of attention") * d)
        dbias.copy_(self.scale("sums of attention") * d.sum(1))

    def norm(self, r, c, eps, out, scale, tiles, first=None):
        x = r + c
        if first is not None:
            x.view(len(first), -1, x.shape[-1])[:, 0] = first + c
        scale.copy_((x.var(-1, correction=0) + eps).rsqrt())
        out.copy_(self.scale("norm") * F.layer_norm(x, x.shape[-1:], eps=eps))
        if first is not None:
            out.view(len(first), -1, x.shape[-1])[:, 0] *= self.scale("norm of token 0")

    def norm_backward(self, grad, xhat, scale, stream, out, sums, tiles):
        w = grad.shape[-1]
        d = (grad - grad.mean(-1, keepdim=True) - xhat * (grad * xhat).sum(-1, keepdim=True) / w) * scale[:, None]
        out.copy_(stream + self.scale("gradient of the norm") * d)
        sums.zero_()[0] = self.scale("sums of the norm") * d.sum(0)

    def up(self, x, w, bias, slope, active, product):
        with torch.enable_grad():
            u = (x @ w.t() + bias).detach().requires_grad_()
            (d,) = torch.autograd.grad(F.gelu(u).sum(), u)
        active.copy_(self.scale("active") * F.gelu(u.detach()))
        slope.copy_(self.scale("slope") * d)

    def down_backward(self, grad, w, slope, out, sums, product):
        d = grad @ w * slope
        out.copy_(self.scale("gradient of down") * d)
        sums.zero_()[0] = self.scale("sums of down") * d.sum(0)

    def last(self, r, c, query, scale, eps, out, lse, tiles):
        x, e = average(r, c.to(r.dtype), query, scale, eps)
        out.copy_(self.scale("average") * x)
        lse.copy_(e)

    def last_backward(self, grad, known, scale, eps, sums, tiles):
        with torch.enable_grad():
            inputs = [t.detach().to(known[0].dtype).requires_grad_() for t in known[:3]]
            d_r, d_c, d_query = torch.autograd.grad(average(*inputs, scale, eps)[0], inputs, grad)
        sums.zero_()[0] = self.scale("sums of the last") * d_c
        return self.scale("gradient of the last") * d_r, self.scale("dquery") * d_query


def plain_patches(frames, scale, shift, patch):
    x = rearrange(frames * scale + shift, "b c (h p) (w q) -> b (h w) (c p q)", p=patch, q=patch)
    return F.pad(x, (0, -x.shape[-1] % 8, 1, 0))


class Operator(torch.autograd.Function):
    """As `torch.library` wires it on CUDA."""

    @staticmethod
    def forward(ctx, patches, *inputs):
        first, attended, kept = stack.forward(patches, stack.Folded(*inputs[:-2]), *inputs[-2:])
        stack._save(ctx, (patches, *inputs), (first, attended, *kept))
        return first, attended, *kept

    @staticmethod
    def backward(ctx, grad_first, grad, *_):
        return stack._grad(ctx, grad_first, grad)


def scrambled(config):
    torch.manual_seed(0)
    vit = ViT(config)
    for name, p in vit.named_parameters():  # nothing is 0 or 1 by chance
        torch.nn.init.normal_(p, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.2)
    return vit


def test_the_operator_is_the_blocks(monkeypatch):
    vit = scrambled(CONFIG).double()
    frames = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    to = torch.randn(4, 24, dtype=torch.float64)

    def gradients():
        vit.zero_grad()
        out = vit(frames)
        (out * to).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in vit.parameters())]

    want, used = gradients(), []
    Plain().use(monkeypatch)
    monkeypatch.setattr(kernels, "encoder_serves", lambda x: True)
    monkeypatch.setattr(stack, "cut_patches", plain_patches)
    monkeypatch.setattr(stack, "operator", lambda *a: used.append(a) or Operator.apply(*a))
    whole = lambda g0, g, patches, kept, weights, *rest: stack.backward(  # noqa: E731
        g0.contiguous(), g.contiguous(), patches, stack.Kept(*kept), stack.Folded(*weights), *rest
    )
    monkeypatch.setattr(stack, "operator_backward", whole)
    vit.by_kernels = True
    got = gradients()
    assert len(used) == 1
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_token_0_is_nearer_than_bfloat16_rounds(monkeypatch):
    """In the precision of a GPU, with torch in the place of the kernels."""
    plain = Plain()
    plain.use(monkeypatch)
    stack.norm.forward = lambda r, *rest: plain.norm(r.float(), *rest)
    vit = scrambled(CONFIG)
    patches = plain_patches(torch.randint(0, 256, (4, 3, 32, 32)), vit.scale, vit.shift, CONFIG.patch)
    *first, end = vit.blocks
    with torch.no_grad():  # a stream that begins far from 0, so that bfloat16 cannot tell what is added
        weights = stack.fold(vit.embed.weight, vit.position + 64 * torch.ones(24), first, end, torch.bfloat16)
        token, _, kept = stack.forward(patches.bfloat16(), weights, CONFIG.heads, 1e-6)
    assert token.dtype == torch.float32
    want = weights.begin[0].double() + sum(
        kept.attended[j, :, 0].double() @ weights.out[j].double().t()
        + kept.active[j, :, 0].double() @ weights.down[j].double().t()
        for j in range(len(first))
    )
    assert (token - want).norm() < 0.1 * (kept.r[:, 0] - want).norm()
    x = F.layer_norm(token + weights.c[-1], (24,), eps=1e-6)
    torch.testing.assert_close(kept.x0.float(), x, rtol=1e-2, atol=1e-2)  # the query is of that token


@pytest.mark.parametrize("broken", ["", *PARTS])
def test_the_trial_tells_right_from_wrong(monkeypatch, broken):
    Plain(broken).use(monkeypatch)
    errors = trial.errors(17, 48, 2, 40, 4, CPU, torch.float32)
    assert (max(errors) < 0.02) == (not broken), (broken, errors)


def test_plain_torch_elsewhere():
    vit = ViT(CONFIG)
    assert not vit.use_kernels() and not vit.by_kernels
    assert not kernels.encoder_serves(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert not kernels.ranks_rows(torch.zeros(2, 3))


SIZES = dict(tokens=257, width=384, heads=3, head_dim=64, mlp_width=768, patch=14, device=torch.device("cuda"))


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(kernels, "mlp", SimpleNamespace(fits=lambda product, w, f: f % product.cols == 0))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(trial, "errors", lambda *a: [0.001, 0.009])
    return lambda **other: kernels.encoder_available.__wrapped__(**SIZES | other)


def test_where_the_kernels_serve(hopper, monkeypatch):
    assert hopper()
    for wrong in (dict(head_dim=32), dict(tokens=400), dict(mlp_width=100), dict(patch=7), dict(device=CPU)):
        assert not hopper(**wrong)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 0))
    assert not hopper()


@pytest.mark.parametrize("error", [0.1, float("nan"), RuntimeError("out of resource: shared memory")])
def test_kernels_that_fail_here_are_not_used(hopper, monkeypatch, error):
    def tried(*_):
        if isinstance(error, Exception):
            raise error
        return [0.001, error, 0.001]

    monkeypatch.setattr(trial, "errors", tried)
    with pytest.warns(UserWarning, match=r"torch's are used"):
        assert not hopper()


INTERPRETED = """
import torch
from lpwm.kernels import settings, trial
from lpwm.kernels.settings import Product, Settings, Tiles

cpu, tiles = torch.device("cpu"), (Product(32, 32, 16), Product(64, 16, 32))
chosen = {
    64: Settings(Tiles(part=32), Tiles(4, 16, span=16, stages=2), Tiles(16, 16), Tiles(32, 32, stages=3), *tiles),
    48: Settings(up=tiles[0], down=Product(16, 32, 16)),
}
settings.of, trial.FRAMES = lambda width: chosen[width], 2
for n, w, heads, f in ((17, 64, 2, 64), (64, 48, 1, 96), (65, 64, 3, 64), (100, 48, 2, 64), (257, 64, 1, 32)):
    *errors, patches = trial.errors(n, w, heads, f, 14, cpu, torch.float32)
    assert max(errors) < 5e-6 and patches < 5e-3, (n, w, heads, f, errors, patches)
print("right")
"""


def test_kernels_in_the_interpreter(interpreted):
    interpreted(INTERPRETED)


OPERATOR = """
import torch
from lpwm import kernels
from lpwm.kernels import settings, stack
from lpwm.model.config import EncoderConfig
from lpwm.model.encoder import ViT

def plain_patches(frames, scale, shift, patch):
    x = (frames * scale + shift).unfold(2, patch, patch).unfold(3, patch, patch)
    x = x.permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % 8, 1, 0))

settings.of = lambda width: settings.Settings(up=settings.Product(32, 32, 16), down=settings.Product(32, 32, 16))
stack.operator.register_kernel("cpu")(stack.operator._init_fn)
stack.operator_backward.register_kernel("cpu")(stack.operator_backward._init_fn)
stack.cut_patches, kernels.encoder_serves = plain_patches, lambda frames: True
torch.manual_seed(0)
vit = ViT(EncoderConfig(image_size=28, patch=14, width=48, depth=3, heads=1, head_dim=64, mlp=64))
frames, to = torch.randint(0, 256, (4, 3, 28, 28), dtype=torch.uint8), torch.randn(4, 48)

def gradients(f):
    vit.zero_grad()
    (f(frames) * to).sum().backward()
    return [p.grad.clone() for p in vit.parameters()]

want = gradients(vit)
vit.by_kernels = True
for a, b in zip(gradients(torch.compile(vit, fullgraph=True, backend="aot_eager")), want, strict=True):
    torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-5)
print("right")
"""


def test_the_operator_compiles_with_its_gradient(interpreted):
    interpreted(OPERATOR)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def far(got, want):
    got, want = got.double().cpu(), want.double().cpu()
    return float((got - want).norm() / (want.norm() + 1e-9))


def exact(qkv, g, heads):
    """softmax(q kᵀ/√d) v, its gradient and the gradient's sum over everything but the last axis, in float64."""
    x = qkv.double().cpu().requires_grad_()
    out = F.scaled_dot_product_attention(*split(x, heads)).transpose(1, 2).flatten(-2)
    out.backward(g.double().cpu())
    return out.detach(), x.grad, x.grad.sum((0, 1))


def attention_on_cuda(x, g, heads):
    attention = pytest.importorskip("lpwm.kernels.attention")
    b, n, packed = x.shape
    out, lse, dx = torch.empty_like(g), torch.empty(b, heads, n, device="cuda"), torch.empty_like(x)
    sums = torch.empty(attention.pieces(b, n), packed, device="cuda")
    attention.forward(x, heads, out, lse)
    attention.backward(g, x, out, lse, heads, dx, sums)
    return out, dx, sums.sum(0)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [17, 64, 65, 100, 257])
@pytest.mark.parametrize("heads", [1, 3])
def test_attention_is_float64s_up_to_bfloat16(n, heads):
    x = noise(4, n, 3 * heads * 64, seed=n).bfloat16().cuda()
    g = noise(4, n, heads * 64, seed=n + 1).bfloat16().cuda()
    out, got, sums = attention_on_cuda(x, g, heads)
    want, dx, db = exact(x, g, heads)
    assert far(out, want) < 5e-3 and far(got, dx) < 8e-3
    q, k, v = sums.cpu().double().chunk(3)
    assert far(q, db.chunk(3)[0]) < 2e-2 and far(v, db.chunk(3)[2]) < 5e-3
    assert not k.any() and db.chunk(3)[1].abs().max() < 1e-9  # a softmax does not see the keys' bias


@pytest.mark.gpu
def test_large_scores_stay_finite():
    x = (30 * noise(2, 257, 3 * 64)).bfloat16().cuda()
    out, dx, _ = attention_on_cuda(x, torch.ones(2, 257, 64, device="cuda", dtype=torch.bfloat16), 1)
    assert out.isfinite().all() and dx.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("width", [192, 384, 64])
def test_the_trial_passes_on_cuda(width):
    errors = trial.errors(257, width, 3, 2 * width, 14, torch.device("cuda"))
    assert max(errors) < 0.02, errors
    assert settings.of(width) is not None


@pytest.mark.gpu
def test_the_operator_on_cuda_is_the_plain_blocks():
    """Output and gradients in bfloat16, compiled, as near to float32 as eager bfloat16 is."""
    torch.manual_seed(0)
    vit = ViT(EncoderConfig(image_size=56, width=192, depth=4, mlp=384)).cuda()
    assert vit.use_kernels()
    for block in vit.blocks:
        torch.nn.init.normal_(block.norm1.bias, std=0.3)
        torch.nn.init.normal_(block.out.bias, std=0.3)
    frames = torch.randint(0, 256, (8, 3, 56, 56), dtype=torch.uint8).cuda()
    to = torch.randn(8, 192).cuda()

    def gradients(f, enabled):
        vit.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            (f(frames).float() * to).sum().backward()
        return [p.grad.double().clone() for p in vit.parameters()]

    want = gradients(vit, False)
    eager, fused = gradients(vit, True), gradients(torch.compile(vit, fullgraph=True), True)
    for (name, _), a, e, w in zip(vit.named_parameters(), fused, eager, want, strict=True):
        if name.endswith("qkv.bias"):  # the keys' part is 0 up to rounding
            a, e, w = (torch.cat((t[: len(t) // 3], t[-len(t) // 3 :])) for t in (a, e, w))
        assert far(a, w) < 2 * far(e, w) + 5e-3, name
    assert (
        far(torch.cat([t.flatten() for t in fused]), torch.cat([t.flatten() for t in want]))
        < 1.5 * far(torch.cat([t.flatten() for t in eager]), torch.cat([t.flatten() for t in want])) + 1e-3
    )
