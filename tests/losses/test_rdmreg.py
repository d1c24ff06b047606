"""RDMReg against NumPy in float64, and against the numbers of the method."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lpwm.core.rng import generator
from lpwm.losses.base import Group
from lpwm.losses.distribution import RectifiedGeneralizedGaussian as Target
from lpwm.losses.rdmreg import RDMReg, RDMRegConfig, RDMRegDraw, floor
from lpwm.losses.slicing import _InPieces, draw_slices, match_rows, pieces, project, share, sort_rows


def reference(z_BTD, slices_PD, y_BTD):
    """Value and gradient, one frame and one slice at a time, in float64."""
    B, T, _ = z_BTD.shape
    value, gradient = 0.0, np.zeros_like(z_BTD)
    for t in range(T):
        for w in slices_PD:
            codes, target = z_BTD[:, t] @ w, np.sort(y_BTD[:, t] @ w)
            order = np.argsort(codes)
            value += ((codes[order] - target) ** 2).mean()
            for rank, b in enumerate(order):
                gradient[b, t] += 2 * (codes[b] - target[rank]) * w / B
    n = T * len(slices_PD)
    return value / n, gradient / n


def arrays(B=7, T=3, D=5, P=11, seed=0):
    rng = np.random.default_rng(seed)
    slices = rng.normal(size=(P, D))
    slices /= np.linalg.norm(slices, axis=1, keepdims=True)
    z, y = np.maximum(rng.normal(size=(2, B, T, D)), 0)
    return z, slices, y


def make_draw(slices_PD, y_BTD):
    target_TPB = np.sort(np.einsum("pd,btd->tpb", slices_PD, y_BTD), axis=-1)
    return RDMRegDraw(torch.from_numpy(slices_PD), torch.from_numpy(target_TPB))


def test_value_and_gradient_equal_numpy():
    z, slices, y = arrays()
    want, want_gradient = reference(z, slices, y)
    codes = torch.from_numpy(z).requires_grad_()
    value = RDMReg(RDMRegConfig(slices=11))(codes, make_draw(slices, y))
    value.backward()
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(want, rel=1e-12)
    assert np.allclose(codes.grad.numpy(), want_gradient, atol=1e-12)


def test_the_draw_is_the_sorted_projection_of_fresh_target_samples():
    B, T, D, P = 6, 3, 8, 20
    r = RDMReg(RDMRegConfig(slices=P, p=1.5, mu=-0.3, axis_fraction=0.25))
    draw = r.draw((1, 2), (B, T, D))
    g = generator("rdmreg", 1, 2)
    slices_PD = draw_slices(P, D, 0.25, g)
    y_BTD = r.target.sample((B, T, D), g)
    want = np.sort(np.einsum("pd,btd->tpb", slices_PD.double().numpy(), y_BTD.double().numpy()), axis=-1)
    assert torch.equal(draw.slices_PD, slices_PD)
    assert np.allclose(draw.target_TPB.numpy(), want, atol=1e-5)
    assert len({float(row) for row in draw.target_TPB[:, -1, -1]}) == T  # fresh samples for every frame

    codes = r.target.sample((B, T, D), generator(9))
    value, _ = reference(codes.double().numpy(), slices_PD.double().numpy(), y_BTD.double().numpy())
    assert float(r(codes, draw)) == pytest.approx(value, rel=1e-4)


def test_codes_that_are_the_target_samples_cost_nothing():
    r = RDMReg(RDMRegConfig(slices=16))
    y_BTD = r.target.sample((8, 2, 4), generator(5))
    draw = RDMRegDraw(
        slices := draw_slices(16, 4, 0.0, generator(6)), torch.matmul(slices, y_BTD.permute(1, 2, 0)).sort(-1).values
    )
    assert float(r(y_BTD.flip(0), draw)) < 1e-12


# method.md, §2: (config, non-negative link, B, D, floor, cost of a dead code).
TABLE = [
    (RDMRegConfig(), True, 64, 384, 0.0315, 0.50),
    (RDMRegConfig(), True, 128, 384, 0.0168, 0.50),
    (RDMRegConfig(), True, 256, 384, 0.0088, 0.50),
    (RDMRegConfig(), True, 512, 384, 0.0046, 0.50),
    (RDMRegConfig(p=2.0), False, 64, 384, 0.082, 1.0),
    (RDMRegConfig(p=2.0), False, 128, 384, 0.044, 1.0),
    (RDMRegConfig(p=2.0), False, 256, 384, 0.0227, 1.0),
    (RDMRegConfig(p=2.0), False, 512, 384, 0.0119, 1.0),
    (RDMRegConfig(mu=-1.0), True, 128, 384, 0.0056, 0.122),
    (RDMRegConfig(mu=-2.0), True, 128, 384, 0.0019, 0.030),
    (RDMRegConfig(rms_norm=True), True, 128, 192, 0.034, 1.0),
]


@pytest.mark.parametrize(("config", "nonnegative", "batch", "dim", "match", "dead"), TABLE)
def test_floors_and_dead_codes(config, nonnegative, batch, dim, match, dead):
    assert floor(config, batch, dim, (0,), nonnegative, repeats=8) == pytest.approx(match, rel=0.1)
    assert config.target(nonnegative).second_moment == pytest.approx(dead, rel=0.1)
    few = RDMReg(RDMRegConfig(256, config.p, config.mu, config.rms_norm), nonnegative)
    measured = float(few(torch.zeros(batch, 4, dim), few.draw((1,), (batch, 4, dim))))
    assert measured == pytest.approx(dead, rel=0.1)


def test_a_dead_code_costs_the_second_moment_on_every_kind_of_slice():
    for fraction in (0.0, 0.5, 1.0):
        r = RDMReg(RDMRegConfig(slices=512, p=1.5, mu=0.5, axis_fraction=fraction))
        measured = float(r(torch.zeros(64, 32, 16), r.draw((0,), (64, 32, 16))))
        assert measured == pytest.approx(r.target.second_moment, rel=0.03)


P = (0.5, 1.0, 1.5, 2.0, 4.0)
MU = (-2.0, -1.0, 0.0, 1.0)
N = 100_000


def law(p, mu):
    """SciPy's generalized normal, scaled to variance 1 by its own variance."""
    return stats.gennorm(p, loc=mu, scale=1 / stats.gennorm(p).std())


def expectation(p, mu, f):
    """E[f(x); x > 0] by quadrature in v = x − μ, split at 0 where the density has its cusp."""
    density = law(p, 0.0).pdf
    cuts = [-mu, 0.0, 1.0, 400.0] if mu > 0 else [-mu, -mu + 1.0, 400.0]
    return sum(
        integrate.quad(lambda v: f(v + mu) * density(v), a, b, limit=500, epsabs=1e-13)[0]
        for a, b in zip(cuts, cuts[1:], strict=False)
    )


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("mu", MU)
def test_closed_forms_equal_quadrature(p, mu):
    target = Target(p, mu)
    second = expectation(p, mu, lambda x: x * x)
    mean = expectation(p, mu, lambda x: x)
    assert target.activity == pytest.approx(expectation(p, mu, lambda x: 1.0), rel=1e-6)
    assert target.mean == pytest.approx(mean, rel=1e-6)
    assert target.second_moment == pytest.approx(second, rel=1e-6)
    normed = Target(p, mu, rms_norm=True)
    assert normed.second_moment == pytest.approx(1.0)
    assert normed.mean == pytest.approx(mean / math.sqrt(second), rel=1e-6)
    assert normed.activity == target.activity


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("rectify", (True, False))
@pytest.mark.parametrize("rms_norm", (True, False))
def test_closed_forms_equal_monte_carlo(p, rectify, rms_norm):
    for mu in MU:
        target = Target(p, mu, rectify, rms_norm)
        y = target.sample((N,), generator("mc", round(10 * p), round(mu))).double().numpy()

        def close(values, truth, what, mu=mu):
            error = abs(values.mean() - truth) / (values.std() / math.sqrt(N) + 1e-12)
            assert error < 5, f"{what} at mu={mu}: {values.mean()} against {truth}, {error:.1f} standard errors"

        close(y, target.mean, "mean")
        close(y**2, target.second_moment, "second moment")
        close((y > 0).astype(float), target.activity, "activity")


@pytest.mark.parametrize("p", (0.3, *P, 30.0))
def test_sampler_follows_scipys_law(p):
    x = Target(p, 0.5, rectify=False).sample((N,), generator("ks", round(10 * p)))
    assert x.dtype == torch.float32
    assert stats.kstest(x.double().numpy(), law(p, 0.5).cdf).pvalue > 1e-5


def test_extreme_shapes_stay_finite():
    for p in (0.05, 200.0):
        y = Target(p, rectify=False).sample((10_000,), generator(0))
        assert bool(y.isfinite().all())
    # At large p the law tends to the uniform on ±√3.
    assert float(y.abs().max()) == pytest.approx(math.sqrt(3), rel=0.05)


@settings(max_examples=30)
@given(slices=st.integers(1, 40), dim=st.integers(1, 12), fraction=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_slices_are_unit_and_coordinates_are_dealt_evenly(slices, dim, fraction):
    w_PD = draw_slices(slices, dim, fraction, generator(3))
    assert w_PD.shape == (slices, dim) and w_PD.dtype == torch.float32
    assert torch.allclose(w_PD.norm(dim=1), torch.ones(slices), atol=1e-6)
    n_axis = round(fraction * slices)
    axis_PD = w_PD[:n_axis]
    assert bool(((axis_PD == 0) | (axis_PD == 1)).all())
    if n_axis:
        used = axis_PD.sum(0)
        assert used.max() - used.min() <= 1
    if dim > 1:
        assert bool((w_PD[n_axis:].abs().max(dim=1).values < 1).all())


def test_uniform_slices_have_the_sphere_s_moments():
    D = 6
    w_PD = draw_slices(40_000, D, 0.0, generator(4)).double()
    assert torch.allclose(w_PD.mean(0), torch.zeros(D, dtype=torch.float64), atol=0.01)
    assert torch.allclose(w_PD.T @ w_PD / len(w_PD), torch.eye(D, dtype=torch.float64) / D, atol=0.005)
    assert torch.allclose(w_PD.pow(4).mean(0), torch.full((D,), 3 / (D * (D + 2)), dtype=torch.float64), rtol=0.05)


def test_coordinates_are_in_random_order():
    first = [int(draw_slices(1, 100, 1.0, generator(i)).argmax()) for i in range(20)]
    assert len(set(first)) > 10


@settings(max_examples=30)
@given(slices=st.integers(1, 30), ranks=st.integers(1, 7))
def test_shares_partition_the_slices(slices, ranks):
    w = torch.arange(slices)[:, None]
    parts = [share(w, slices, Group(r, ranks)) for r in range(ranks)]
    assert sorted(torch.cat(parts).flatten().tolist()) == list(range(slices))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("ranks", [1, 2])  # a rank's slices are every second one: not contiguous
@pytest.mark.parametrize("slices", [1, 100, 512, 768, 2048])
def test_the_gradient_in_pieces_is_the_projection_s(slices, ranks):
    slices_PD = draw_slices(slices * ranks, 5, 0.3, generator(1))[::ranks]
    z_BTD = torch.randn(3, 4, 5, generator=generator(2)).requires_grad_()
    g_TPB = torch.randn(4, slices, 3, generator=generator(3))
    inner = torch.einsum("pd,btd->tpb", slices_PD.double(), z_BTD.detach().double()).float()
    by_hand = torch.einsum("pd,tpb->btd", slices_PD.double(), g_TPB.double()).float()
    for product in (_InPieces.apply, project, torch.compile(_InPieces.apply, backend="aot_eager")):
        projected_TPB = product(slices_PD, z_BTD)
        torch.testing.assert_close(projected_TPB, inner, rtol=1e-5, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16, enabled=product == _InPieces.apply):
            (result,) = torch.autograd.grad(projected_TPB, z_BTD, g_TPB)
        torch.testing.assert_close(result, by_hand, rtol=1e-5, atol=1e-4)


@given(slices=st.integers(1, 10_000))
def test_pieces_are_equal_and_long(slices):
    S = pieces(slices)
    assert slices % S == 0 and (S == 1 or slices // S >= 256)
    assert S == 1 or S & (S - 1) == 0
    assert slices % (2 * S) or slices // (2 * S) < 256


def matched(x, target):
    """One row, spelled out."""
    out = [0.0] * len(x)
    for rank, i in enumerate(sorted(range(len(x)), key=lambda i: x[i])):
        out[i] = target[rank]
    return out


distinct = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=70, unique=True)


@given(distinct, st.integers(0, 2**31))
def test_the_ith_smallest_gets_the_ith_of_the_target(row, seed):
    x = torch.tensor([row, row[::-1]])
    target = torch.randn(x.shape, generator=generator(seed)).sort(-1).values
    for given_, to, result in zip(x.tolist(), target.tolist(), match_rows(x, target).tolist(), strict=True):
        assert result == matched(given_, to)


@given(distinct)
def test_sorted_rows_are_sorted(row):
    assert sort_rows(torch.tensor([row])).tolist() == [sorted(row)]


def test_a_strided_target_is_read_as_it_stands():
    x, wide = torch.randn(2, 3, 8, generator=generator(0)), torch.arange(2 * 6 * 8.0).view(2, 6, 8)
    result = match_rows(x, wide[:, ::2])
    assert result.is_contiguous()
    assert torch.equal(result, match_rows(x, wide[:, ::2].contiguous()))


def test_equals_share_their_partners():
    """Any pairing of equals will do, but each partner is given once."""
    result = match_rows(torch.tensor([[2.0, 0.0, 0.0, 1.0]]), torch.tensor([[5.0, 6.0, 7.0, 8.0]]))[0]
    assert result[0] == 8 and result[3] == 7 and sorted(result[1:3].tolist()) == [5, 6]


INTERPRETED = """
import torch
from lpwm.kernels import order as K
from lpwm.core.rng import generator

for n in (1, 2, 7, 16, 33, 64, 100, 128, 250):
    x = torch.randn(3, 2, n, generator=generator(n))
    x[0, 0, : n // 2] = x[0, 0, 0]  # equals: the first is less
    target = torch.randn(3, 2, n, generator=generator("target", n)).sort(-1).values
    order = x.argsort(dim=-1, stable=True)
    assert torch.equal(K.match_rows(x, target), torch.empty_like(x).scatter_(-1, order, target)), n
    assert torch.equal(K.sort_rows(x), x.sort(-1).values), n
assert K.sort_rows(torch.empty(0, 5)).shape == (0, 5)
print("right")
"""


def test_the_kernel_in_the_interpreter(interpreted):
    interpreted(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("n", (1, 31, 64, 100, 128, 256, 257, 1000))
def test_on_cuda(n):
    x = torch.randn(4, 5, n, generator=generator(n)).cuda()
    target = torch.randn(4, 5, n, generator=generator("target", n)).sort(-1).values.cuda()
    assert torch.equal(match_rows(x, target).cpu(), match_rows(x.cpu(), target.cpu()))
    assert torch.equal(sort_rows(x).cpu(), sort_rows(x.cpu()))
    x[0, 0, n // 2] = float("nan")  # a dead run is not a crash
    match_rows(x, target)
    torch.cuda.synchronize()
