"""The target's closed forms against quadrature and Monte Carlo; its sampler against SciPy's."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses.distribution import RectifiedGeneralizedGaussian as Target

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
    assert target.variance == pytest.approx(second - mean**2, rel=1e-6)
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
        close((y - target.mean) ** 2, target.variance, "variance")
        close((y > 0).astype(float), target.activity, "activity")
        # Quantiles of the positive part, the jump at 0 and both sides of it.
        for point in (-0.7, -1e-9, 0.0, 1e-3, 0.3, 1.0, 2.5):
            below = float(target.cdf(point))
            assert abs((y <= point).mean() - below) < 5 * math.sqrt(below * (1 - below) / N) + 3 / N, (mu, point)


@pytest.mark.parametrize("p", (0.3, *P, 30.0))
def test_sampler_follows_scipys_law(p):
    x = Target(p, 0.5, rectify=False).sample((N,), generator("ks", round(10 * p)))
    assert x.dtype == torch.float32
    assert stats.kstest(x.double().numpy(), law(p, 0.5).cdf).pvalue > 1e-5


@pytest.mark.parametrize("p", P)
def test_cdf_equals_scipys(p):
    points = np.linspace(-4, 4, 81)
    assert np.allclose(Target(p, 1.0, rectify=False).cdf(points), law(p, 1.0).cdf(points), atol=1e-12)
    want = np.where(points < 0, 0.0, law(p, 1.0).cdf(points))
    assert np.allclose(Target(p, 1.0).cdf(points), want, atol=1e-12)


def test_numbers_of_the_paper():
    assert [round(Target(mu=mu).activity, 3) for mu in (0.0, -1.0, -2.0)] == [0.5, 0.122, 0.030]
    assert round(Target().mean, 3) == 0.354
    assert Target().variance == pytest.approx(0.375)
    assert Target(rms_norm=True).divisor == pytest.approx(math.sqrt(0.5))
    for p, sigma in ((1.0, 1 / math.sqrt(2)), (2.0, 1.0)):
        # The paper's σ: density ∝ exp(−|x−μ|^p/(pσ^p)), so s = σ·p^{1/p}.
        assert math.exp(Target(p).log_s) / p ** (1 / p) == pytest.approx(sigma)


def test_extreme_shapes_stay_finite():
    for p in (0.05, 200.0):
        y = Target(p, rectify=False).sample((10_000,), generator(0))
        assert bool(y.isfinite().all())
    # At large p the law tends to the uniform on ±√3.
    assert float(y.abs().max()) == pytest.approx(math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        *(({"p": p}, "shape p must be above 0") for p in (0.0, -1.0, math.nan, math.inf)),
        ({"mu": math.nan}, "mu must be finite"),
        ({"mu": -30.0, "rms_norm": True}, "raise mu"),
    ],
)
def test_bad_targets_are_one_sentence(bad, says):
    with pytest.raises(UserError, match=says):
        Target(**bad)
