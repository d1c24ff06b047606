"""Monitors against NumPy re-derivations, known answers and properties."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.model import ModelConfig, WorldModel
from lpwm.model.config import PredictorConfig
from lpwm.model.encoder import EncoderConfig, ProjectorConfig
from lpwm.train.monitors import ActivityWindow, effective_dimension, evaluating, latent_range, measure, observe

SETTINGS = settings(max_examples=15)


def normal(*shape: int, key: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=rng.generator("test-monitors", key)).to(dtype)


def sparse_codes(*shape: int, key: int = 0) -> Tensor:
    return (normal(*shape, key=key) - 0.3).relu()


def over(value: float, scale: float) -> float:
    """0 where the scale is: of codes that are all 0."""
    return float(value / scale) if scale else 0.0


def by_hand(z: np.ndarray, zhat: np.ndarray, permuted: np.ndarray) -> dict[str, float]:
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
def test_equals_the_definitions(B: int, T: int, K: int, D: int, sparse: bool, half: bool, key: int) -> None:
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


def test_a_time_constant_clip_does_not_vary() -> None:
    z = sparse_codes(6, 1, 16).expand(-1, 4, -1)
    got = measure(z, z[:, 1:], sparse=True)
    assert got["temporal_variation"] == 0 and got["copy_error"] == 0
    assert got["support_instability"] == 0 and got["churn"] == 0
    assert got["code_std"] > 0.3 and got["effective_dimension"] > 2  # every marginal statistic looks well


def test_independent_frames_vary_as_strangers() -> None:
    z = normal(300, 4, 8)
    assert float(measure(z, z[:, 1:], sparse=False)["temporal_variation"]) == pytest.approx(1, abs=0.05)


@SETTINGS
@given(K=st.integers(1, 3), key=st.integers(0, 99))
def test_the_copy_predictor_scores_the_copy_error(K: int, key: int) -> None:
    z = normal(5, 4, 9, key=key)
    got = measure(z, z[:, :K], sparse=False)
    assert got["relative_error"] == got["copy_error"] > 0
    exact = measure(z, z[:, 1 : K + 1], sparse=False)
    assert exact["relative_error"] == 0 and exact["copy_error"] == got["copy_error"]
    zeros = measure(z, torch.zeros(5, K, 9), sparse=False)
    assert float(zeros["relative_error"]) == pytest.approx(1)


def test_an_action_blind_predictor_is_insensitive() -> None:
    z, zhat = normal(5, 4, 9), normal(5, 3, 9, key=1)
    assert measure(z, zhat, permuted_zhat_BKD=zhat, sparse=False)["action_sensitivity"] == 0
    assert "action_sensitivity" not in measure(z, zhat, sparse=False)
    one = measure(z[:1], zhat[:1], permuted_zhat_BKD=zhat[:1], sparse=False)
    assert "action_sensitivity" not in one  # a single clip has no foreign actions: unknown, not zero


@pytest.mark.parametrize("rank", [1, 3, 10])
@pytest.mark.parametrize("frames,width", [(4000, 24), (4000, 40)])
def test_rank_r_codes_have_dimension_r(rank: int, frames: int, width: int) -> None:
    basis = torch.linalg.qr(normal(width, rank, key=rank)).Q
    z = 5 + normal(frames, rank, key=rank + 50) @ basis.T
    assert float(effective_dimension(z)) == pytest.approx(rank, rel=0.02)


@SETTINGS
@given(N=st.integers(2, 40), D=st.integers(1, 40), key=st.integers(0, 99))
def test_effective_dimension_is_invariant_and_bounded(N: int, D: int, key: int) -> None:
    z = normal(N, D, key=key)
    value = float(effective_dimension(z))
    assert 0.999 <= value <= min(N - 1, D) * 1.001
    turn = torch.linalg.qr(normal(D, D, key=key + 1)).Q
    assert float(effective_dimension(1e12 * z @ turn)) == pytest.approx(value, rel=1e-3)
    assert float(effective_dimension(z + 7)) == pytest.approx(value, rel=1e-3)


def test_supports_by_hand() -> None:
    z = torch.tensor([[[1.0, 2, 0, 0], [0, 3, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0]]])
    got = measure(z, z[:, 1:], sparse=True)
    # Jaccard 1/3, 0 and, of two empty supports, 1.
    assert float(got["support_instability"]) == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert float(got["churn"]) == pytest.approx((2 + 2 + 0) / 12)
    assert float(got["active_fraction"]) == pytest.approx(4 / 16)
    assert float(got["empty_fraction"]) == pytest.approx(2 / 4)


@pytest.mark.parametrize("value", [0.0, 0.35])
def test_a_dead_code_is_zero_not_nan(value: float) -> None:
    z = torch.full((4, 3, 8), value)
    got = measure(z, z[:, 1:], permuted_zhat_BKD=z[:, 1:], sparse=True)
    assert all(torch.isfinite(v) for v in got.values())
    for name in ("code_std", "effective_dimension", "temporal_variation", "action_sensitivity"):
        assert got[name] == 0, name
    assert float(got["code_rms"]) == pytest.approx(value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_codes_that_are_not_finite_show(bad: float) -> None:
    z = normal(4, 3, 8)
    z[1, 2, 3] = bad
    assert not torch.isfinite(measure(z, normal(4, 2, 8), sparse=False)["code_rms"])


@pytest.mark.parametrize("K", [0, 3])
def test_predictions_that_do_not_fit_are_refused(K: int) -> None:
    with pytest.raises(UserError, match="do not fit a clip of 3 frames"):
        measure(normal(2, 3, 4), normal(2, K, 4), sparse=False)


class NoWait(TorchDispatchMode):
    """Refuses what would make the host wait for the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "item", "equal"}, name
        return func(*args, **(kwargs or {}))


def test_nothing_waits_for_the_device() -> None:
    z, zhat, window = sparse_codes(4, 3, 8), normal(4, 2, 8), ActivityWindow(8)
    with NoWait():
        measure(z, zhat, permuted_zhat_BKD=zhat, sparse=True)
        latent_range(z.flatten(0, 1), normal(12, 2), 224)
        window.update(z)
        window.read_and_reset()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoWait():
        z.sum().item()


def test_float32_inside_autocast() -> None:
    z, zhat = normal(8, 4, 32), normal(8, 3, 32, key=1)
    with torch.autocast("cpu", torch.bfloat16):
        got = measure(z, zhat, sparse=False)
    want = measure(z, zhat, sparse=False)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_the_window_counts_silent_units_and_starts_anew() -> None:
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


def small_model(link: str = "reprelu", dropout: float = 0.5) -> WorldModel:
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


def test_observe_is_free_of_dropout_and_blind_at_the_start() -> None:
    model = small_model().train()
    z, actions = sparse_codes(6, 4, 16), normal(6, 3, 3)
    assert observe(model, z, actions)["action_sensitivity"] == 0  # AdaLN-zero: the modulation is closed
    for parameter in model.predictor.parameters():
        parameter.data.add_(0.1 * normal(*parameter.shape, key=3))
    first, second = observe(model, z, actions), observe(model, z, actions)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["action_sensitivity"] > 0
    assert all(m.training for m in model.modules())


def test_evaluating_gives_each_module_its_own_mode_back() -> None:
    net = nn.Sequential(nn.Dropout(), nn.Dropout()).train()
    net[1].eval()
    with pytest.raises(RuntimeError), evaluating(net):
        assert not net[0].training
        raise RuntimeError
    assert net.training and net[0].training and not net[1].training


def test_latent_range_of_a_linear_code_grows_and_of_a_saturated_one_does_not() -> None:
    position = 224 * torch.rand((400, 2), generator=rng.generator("range"))
    linear = latent_range(3 * position @ torch.linalg.qr(normal(5, 2)).Q.T, position, 224)
    assert list(linear) == ["range_10px", "range_25px", "range_50px", "range_100px"]
    space = np.linalg.norm(position.numpy()[:, None] - position.numpy()[None], axis=-1)
    far = space[space >= 100].mean()
    for (low, high), value in zip(((0, 10), (10, 25), (25, 50), (50, 100)), linear.values(), strict=True):
        inside = (space > 0) & (space >= low) & (space < high)
        assert float(value) == pytest.approx(space[inside].mean() / far, rel=1e-3)
    saturated = latent_range(normal(400, 200), position, 224)
    assert all(float(v) == pytest.approx(1, abs=0.05) for v in saturated.values())
    # The bins are shares of the frame: another unit of length changes nothing.
    scaled = latent_range(3 * position, position * 65 / 224, 65)
    assert float(scaled["range_25px"]) == pytest.approx(float(linear["range_25px"]), rel=1e-3)


@pytest.mark.gpu
def test_on_cuda_nothing_waits_and_the_window_is_captured() -> None:
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
