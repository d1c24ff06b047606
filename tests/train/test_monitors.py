"""Monitors against NumPy re-derivations, known answers and properties."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.model import ModelConfig, WorldModel
from lpwm.model.config import PredictorConfig
from lpwm.model.encoder import EncoderConfig, ProjectorConfig
from lpwm.train.monitors import ActivityWindow, effective_dimension, evaluating, measure, observe

SETTINGS = settings(max_examples=15)


def normal(*shape, key=0, dtype=torch.float32):
    return torch.randn(shape, generator=rng.generator("test-monitors", key)).to(dtype)


def sparse_codes(*shape, key=0):
    return (normal(*shape, key=key) - 0.3).relu()


def over(value, scale):
    """0 where the scale is: of codes that are all 0."""
    return float(value / scale) if scale else 0.0


def by_hand(z, zhat, permuted):
    """The definitions, in double precision, by loops over clips and pairs of frames."""
    B, T, D = z.shape
    K = zhat.shape[1]
    error = copy = power = moved_by_actions = 0.0
    for b in range(B):
        for k in range(K):
            error += ((zhat[b, k] - z[b, k + 1]) ** 2).sum()
            copy += ((z[b, k] - z[b, k + 1]) ** 2).sum()
            power += (z[b, k + 1] ** 2).sum()
            moved_by_actions += ((permuted[b, k] - zhat[b, k]) ** 2).sum()
    frames = [z[b, t] for b in range(B) for t in range(T)]
    strangers = np.mean([((x - y) ** 2).sum() for x, y in combinations(frames, 2)])
    neighbors, instability, churn = [], [], []
    for b in range(B):
        for t in range(T - 1):
            neighbors.append(((z[b, t + 1] - z[b, t]) ** 2).sum())
            one, two = set(np.flatnonzero(z[b, t] > 0)), set(np.flatnonzero(z[b, t + 1] > 0))
            instability.append(1 - (len(one & two) / len(one | two) if one | two else 1.0))
            churn.append(len(one ^ two) / D)
    eigenvalues = np.linalg.eigvalsh(np.cov(np.array(frames).T).reshape(D, D))
    return {
        "relative_error": over(error, power),
        "copy_error": over(copy, power),
        "action_sensitivity": over(moved_by_actions, copy),
        "code_rms": float(np.sqrt(np.mean(z**2))),
        "code_std": float(np.sqrt(np.mean(np.var(np.array(frames), axis=0, ddof=1)))),
        "effective_dimension": over(eigenvalues.sum() ** 2, (eigenvalues**2).sum()),
        "temporal_variation": over(float(np.mean(neighbors)), strangers),
        "active_fraction": float((z > 0).mean()),
        "support_instability": float(np.mean(instability)),
        "churn": float(np.mean(churn)),
        "empty_fraction": float(np.mean([not (f > 0).any() for f in frames])),
    }


@SETTINGS
@given(
    B=st.integers(2, 5),
    T=st.integers(2, 5),
    K=st.integers(1, 4),
    D=st.integers(2, 30),
    sparse=st.booleans(),
    half=st.booleans(),
    key=st.integers(0, 99),
)
@example(B=2, T=3, K=1, D=3, sparse=True, half=False, key=2)  # all that is forecast is 0
def test_equals_the_definitions(B, T, K, D, sparse, half, key):
    K = min(K, T - 1)
    z = sparse_codes(B, T, D, key=key) if sparse else normal(B, T, D, key=key)
    zhat, permuted = normal(B, K, D, key=key + 100), normal(B, K, D, key=key + 200)
    if half:
        z, zhat, permuted = z.bfloat16(), zhat.bfloat16(), permuted.bfloat16()
    got = measure(z, zhat, permuted_zhat_BKD=permuted, sparse=sparse)
    want = by_hand(*(x.double().numpy() for x in (z, zhat, permuted)))
    if not sparse:
        del want["empty_fraction"]
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.shape == () and value.dtype == torch.float32, name
        assert float(value) == pytest.approx(want[name], rel=2e-4, abs=1e-6), name


def test_a_time_constant_clip_does_not_vary():
    z = sparse_codes(6, 1, 16).expand(-1, 4, -1)
    got = measure(z, z[:, 1:], sparse=True)
    assert got["temporal_variation"] == 0 and got["copy_error"] == 0
    assert got["support_instability"] == 0 and got["churn"] == 0
    assert got["code_std"] > 0.3 and got["effective_dimension"] > 2  # every marginal statistic looks well
    assert "action_sensitivity" not in got
    one = measure(z[:1], z[:1, 1:], permuted_zhat_BKD=z[:1, 1:], sparse=True)
    assert "action_sensitivity" not in one  # a single clip has no foreign actions: unknown, not zero


@SETTINGS
@given(N=st.integers(2, 40), D=st.integers(1, 40), key=st.integers(0, 99))
def test_effective_dimension_is_invariant_and_bounded(N, D, key):
    z = normal(N, D, key=key)
    value = float(effective_dimension(z))
    assert 0.999 <= value <= min(N - 1, D) * 1.001
    turn = torch.linalg.qr(normal(D, D, key=key + 1)).Q
    assert float(effective_dimension(1e12 * z @ turn)) == pytest.approx(value, rel=1e-3)
    assert float(effective_dimension(z + 7)) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 0.35])
def test_a_dead_code_is_zero_not_nan(value):
    z = torch.full((4, 3, 8), value)
    got = measure(z, z[:, 1:], permuted_zhat_BKD=z[:, 1:], sparse=True)
    assert all(torch.isfinite(v) for v in got.values())
    for name in ("code_std", "effective_dimension", "temporal_variation", "action_sensitivity"):
        assert got[name] == 0, name
    assert float(got["code_rms"]) == pytest.approx(value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_codes_that_are_not_finite_show(bad):
    z = normal(4, 3, 8)
    z[1, 2, 3] = bad
    assert not torch.isfinite(measure(z, normal(4, 2, 8), sparse=False)["code_rms"])


@pytest.mark.parametrize("K", [0, 3])
def test_predictions_that_do_not_fit_are_refused(K):
    with pytest.raises(UserError, match="do not fit a clip of 3 frames"):
        measure(normal(2, 3, 4), normal(2, K, 4), sparse=False)


class NoWait(TorchDispatchMode):
    """Refuses what would make the host wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "item", "equal"}, name
        return func(*args, **(kwargs or {}))


def test_nothing_waits_for_the_device():
    z, zhat, window = sparse_codes(4, 3, 8), normal(4, 2, 8), ActivityWindow(8)
    with NoWait():
        measure(z, zhat, permuted_zhat_BKD=zhat, sparse=True)
        window.update(z)
        window.read_and_reset()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoWait():
        z.sum().item()


def test_float32_inside_autocast():
    z, zhat = normal(8, 4, 32), normal(8, 3, 32, key=1)
    with torch.autocast("cpu", torch.bfloat16):
        got = measure(z, zhat, sparse=False)
    want = measure(z, zhat, sparse=False)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_the_window_counts_silent_units_and_starts_anew():
    window = ActivityWindow(4)
    assert torch.isnan(window.read_and_reset())
    buffer = window.seen_D.data_ptr()
    z = torch.zeros(2, 3, 4)
    z[0, 1, 2] = 0.5
    window.update(z)
    window.update(torch.roll(z, 1, dims=-1))
    window.update(torch.full((2, 3, 4), -1.0))  # negative codes of a dense link are not active
    assert float(window.read_and_reset()) == pytest.approx(0.5)
    window.update(z)
    assert float(window.read_and_reset()) == pytest.approx(0.75)
    assert window.seen_D.data_ptr() == buffer  # in place, as a captured graph needs


def small_model(link="reprelu", dropout=0.5):
    torch.manual_seed(0)
    return WorldModel(
        ModelConfig(
            latent=16,
            link=link,
            encoder=EncoderConfig(image_size=8, patch=4, width=16, depth=1, heads=1, head_dim=16, mlp=16),
            projector=ProjectorConfig(hidden=16),
            predictor=PredictorConfig("shallow-adaln", 2, 1, 16, 16, dropout, 16),
        ),
        action_dim=3,
    )


def test_observe_is_free_of_dropout_and_blind_at_the_start():
    model = small_model().train()
    z, actions = sparse_codes(6, 4, 16), normal(6, 3, 3)
    assert observe(model, z, actions)["action_sensitivity"] == 0  # AdaLN-zero: the modulation is closed
    for parameter in model.predictor.parameters():
        parameter.data.add_(0.1 * normal(*parameter.shape, key=3))
    first, second = observe(model, z, actions), observe(model, z, actions)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["action_sensitivity"] > 0
    assert all(m.training for m in model.modules())


def test_evaluating_gives_each_module_its_own_mode_back():
    net = nn.Sequential(nn.Dropout(), nn.Dropout()).train()
    net[1].eval()
    with pytest.raises(RuntimeError), evaluating(net):
        assert not net[0].training
        raise RuntimeError
    assert net.training and net[0].training and not net[1].training


@pytest.mark.gpu
def test_on_cuda_nothing_waits_and_the_window_is_captured():
    z, zhat, window = sparse_codes(64, 4, 384).cuda(), normal(64, 3, 384).cuda(), ActivityWindow(384, "cuda")
    measure(z, zhat, permuted_zhat_BKD=zhat, sparse=True)
    window.update(z)
    torch.cuda.synchronize()
    window.read_and_reset()
    torch.cuda.set_sync_debug_mode("error")
    try:
        measure(z, zhat, permuted_zhat_BKD=zhat, sparse=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        window.update(z)
    assert torch.isnan(window.read_and_reset())
    graph.replay()
    assert float(window.read_and_reset()) == 0
