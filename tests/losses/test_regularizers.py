"""The contract, kept by every regularizer in the dictionary; SIGReg, VICReg and temporal Jaccard against NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.core.rng import generator
from lpwm.losses import REGULARIZERS, ObjectiveConfig, RDMRegConfig, SIGRegConfig, temporal_jaccard
from lpwm.losses.base import Group
from lpwm.losses.sigreg import SIGReg
from lpwm.losses.vicreg import VICReg, VICRegConfig

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
each = pytest.mark.parametrize("name", sorted(REGULARIZERS))


def build(name, slices=12, axis_fraction=0.25, nonnegative=True):
    config = ObjectiveConfig(
        regularizer=name,
        rdmreg=RDMRegConfig(slices=slices, axis_fraction=axis_fraction),
        sigreg=SIGRegConfig(slices=slices, axis_fraction=axis_fraction),
    )
    return config.build_regularizer(nonnegative)


def codes(B, T, D, *key):
    return torch.randn(B, T, D, generator=generator("codes", *key)).relu()


@each
@settings(max_examples=20)
@given(
    B=st.integers(2, 9),
    T=st.integers(1, 4),
    D=st.integers(1, 8),
    slices=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    nonnegative=st.booleans(),
)
def test_scalar_wide_finite_and_blind_to_the_order_of_the_batch(name, B, T, D, slices, dtype, nonnegative):
    r = build(name, slices, nonnegative=nonnegative)
    draw = r.draw((0, B), (B, T, D))
    assert all(x.dtype == torch.float32 and not x.requires_grad and x.is_contiguous() for x in draw)
    z = codes(B, T, D, T).to(dtype).requires_grad_()
    value = r(z, draw)
    assert value.shape == () and bool(value.isfinite()) and float(value.detach()) >= 0
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(r(z.flip(0), draw), value, rtol=1e-4, atol=1e-6)
    if name != "none":
        (gradient,) = torch.autograd.grad(value, z)
        assert gradient.dtype == dtype and bool(gradient.isfinite().all())


@each
def test_same_key_same_draw_and_nothing_global(name):
    r, before = build(name), torch.get_rng_state()
    one, again, other = (r.draw(key, (6, 3, 5)) for key in ((7, 3), (7, 3), (7, 4)))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert bool(one) == (name in ("rdmreg", "sigreg"))


@each
def test_float32_inside_bf16_autocast(name):
    r = build(name, slices=64)
    draw = r.draw((0,), (16, 3, 32))
    narrow = codes(16, 3, 32).bfloat16()
    outside, inside = narrow.float().requires_grad_(), narrow.clone().requires_grad_()
    want = r(outside, draw)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = r(inside, draw)
        again = r.draw((0,), (16, 3, 32))
    assert result.dtype == torch.float32
    assert torch.equal(result, want)
    assert all(torch.equal(a, b) for a, b in zip(draw, again, strict=True))
    if name != "none":
        want.backward()
        result.backward()
        assert torch.equal(inside.grad, outside.grad.bfloat16())


@each
@pytest.mark.parametrize(("slices", "ranks"), ((12, 2), (10, 3), (2, 4)))
@pytest.mark.parametrize("shared_draw", (False, True))
def test_the_mean_over_ranks_is_the_whole_statistic(name, slices, ranks, shared_draw):
    B, T, D = 12, 3, 6
    r = build(name, slices)
    z = codes(B, T, D).requires_grad_()
    whole_draw = r.draw((5,), (B, T, D))
    want = r(z, whole_draw)
    parts = []
    for rank in range(ranks):
        draw = r.draw((5,), (B, T, D), "cpu", Group(rank, ranks)) if shared_draw else whole_draw
        local = z[rank * (B // ranks) : (rank + 1) * (B // ranks)]
        # What a differentiable all-gather gives: everyone's codes, gradients to everyone.
        parts.append(r(local, draw, Group(rank, ranks, lambda x: z)))
    result = torch.stack(parts).mean()
    assert torch.allclose(result, want, rtol=1e-5, atol=1e-7)
    if name in ("rdmreg", "sigreg"):
        assert not torch.allclose(parts[0], parts[-1])  # each did its own share
    if name != "none":
        gradients = (torch.autograd.grad(x, z)[0] for x in (result, want))
        assert torch.allclose(*gradients, rtol=1e-4, atol=1e-7)


@each
def test_compiles_into_one_graph(name):
    r = build(name)
    draw = r.draw((0,), (8, 3, 5))
    z = codes(8, 3, 5).requires_grad_()
    compiled = torch.compile(lambda z, draw: r(z, draw), fullgraph=True, backend="aot_eager")
    want, result = r(z, draw), compiled(z, draw)
    assert torch.allclose(result, want)
    if name != "none":
        gradients = (torch.autograd.grad(x, z)[0] for x in (result, want))
        assert torch.allclose(*gradients, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["rdmreg", "sigreg", "vicreg", "jaccard"])
def test_gradcheck(name):
    r = (lambda z, draw: temporal_jaccard(z)) if name == "jaccard" else build(name, slices=5)
    z = torch.rand(4, 3, 3, generator=generator(1), dtype=torch.float64).requires_grad_()  # no ties
    draw = () if name == "jaccard" else r.draw((0,), (4, 3, 3))
    wide = [d.double() for d in draw]
    draw = draw._make(wide) if hasattr(draw, "_make") else tuple(wide)
    assert torch.autograd.gradcheck(lambda z: r(z, draw), (z,))


def sigreg_reference(z_BTD, slices_PD):
    """Epps–Pulley by complex exponentials over the symmetric grid [−3, 3] and the plain trapezoid rule."""
    B, T, _ = z_BTD.shape
    tau = np.linspace(-3, 3, 33)
    normal = np.exp(-(tau**2) / 2)
    values = []
    for t in range(T):
        for w in slices_PD:
            empirical = np.exp(1j * np.outer(tau, z_BTD[:, t] @ w)).mean(axis=1)
            values.append(B * np.trapezoid(np.abs(empirical - normal) ** 2 * normal, tau))
    return np.mean(values)


def sigreg_arrays(B=9, T=3, D=5, P=6):
    rng = np.random.default_rng(0)
    slices = rng.normal(size=(P, D))
    slices /= np.linalg.norm(slices, axis=1, keepdims=True)
    return rng.normal(size=(B, T, D)) * 1.5 + 0.3, slices


def test_sigreg_equals_numpy():
    z, slices = sigreg_arrays()
    draw = (torch.from_numpy(slices),)
    result = SIGReg(SIGRegConfig(slices=6))(torch.from_numpy(z), draw)
    assert float(result) == pytest.approx(sigreg_reference(z, slices), rel=1e-12)
    narrow = SIGReg(SIGRegConfig(slices=6))(torch.from_numpy(z).float(), draw)
    assert narrow.dtype == torch.float32
    assert float(narrow) == pytest.approx(sigreg_reference(z, slices), rel=1e-5)


def test_sigreg_under_the_null():
    """E|φ̂−φ|² = (1−φ²)/B for B independent N(0,1), hence ∫(1−e^{−τ²})e^{−τ²/2} over [−3, 3], whatever B."""
    tau = np.linspace(-3, 3, 20_001)
    want = np.trapezoid((1 - np.exp(-(tau**2))) * np.exp(-(tau**2) / 2), tau)
    r = SIGReg(SIGRegConfig(slices=256))
    for B in (32, 128):
        z = torch.randn(B, 16, 64, generator=generator(B))
        assert float(r(z, r.draw((B,), (B, 16, 64)))) == pytest.approx(want, rel=0.05)


def vicreg_reference(z_BTD, w_v, w_c):
    pooled = z_BTD.reshape(-1, z_BTD.shape[-1])
    D = pooled.shape[1]
    C = np.atleast_2d(np.cov(pooled, rowvar=False))
    hinge = np.mean([max(0.0, 1 - np.sqrt(C[d, d] + 1e-4)) for d in range(D)])
    squares = [C[d, e] ** 2 for d in range(D) for e in range(D) if d != e]
    return w_v * hinge + w_c * (np.mean(squares) if squares else 0.0)


@pytest.mark.parametrize("shape", ((6, 3, 5), (2, 1, 4), (5, 2, 1)))
@pytest.mark.parametrize(("w_v", "w_c"), ((1.0, 1.0), (2.5, 0.0), (0.0, 3.0)))
def test_vicreg_equals_numpy(shape, w_v, w_c):
    # Deviations on both sides of 1, so that the hinge is open for some units and shut for others.
    z = np.random.default_rng(0).normal(size=shape) * np.linspace(0.3, 2.0, shape[-1]) + 4.0
    z[..., -1] += 0.7 * z[..., 0]
    result = VICReg(VICRegConfig(w_v, w_c))(torch.from_numpy(z))
    assert float(result) == pytest.approx(vicreg_reference(z, w_v, w_c), rel=1e-10, abs=1e-15)


def test_a_collapsed_code_costs_the_whole_hinge():
    assert float(VICReg(VICRegConfig())(torch.full((8, 4, 6), 3.0))) == pytest.approx(1 - 0.01)


def test_no_change_costs_nothing_and_disjoint_or_empty_supports_cost_one():
    disjoint = torch.zeros(3, 4, 8)
    disjoint[:, 0::2, :4] = 0.7
    disjoint[:, 1::2, 4:] = 1.3
    still = (codes(4, 1, 16) + 0.01).expand(4, 5, 16)
    assert [float(temporal_jaccard(z)) for z in (still, disjoint, torch.zeros(2, 3, 4))] == [0.0, 1.0, 1.0]


@settings(max_examples=25)
@given(
    B=st.integers(1, 4),
    T=st.integers(2, 5),
    D=st.integers(1, 7),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_jaccard_equals_numpy(B, T, D, dtype):
    z = codes(B, T, D).to(dtype)
    x = z.double().numpy()
    want = np.mean(
        [
            1 - np.minimum(x[b, t], x[b, t + 1]).sum() / (np.maximum(x[b, t], x[b, t + 1]).sum() + 1e-8)
            for b in range(B)
            for t in range(T - 1)
        ]
    )
    result = temporal_jaccard(z)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float(result) == pytest.approx(want, rel=1e-5, abs=1e-6)
    assert 0 <= float(result) <= 1
