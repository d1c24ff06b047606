"""Intervals of one rate and paired tests: against scipy, published values and each other."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lpwm.stats import Interval, Result, detectable_paired, power_paired, seeds_needed, success_interval, t_interval
from lpwm.stats.intervals import crossed_variance, wilson_bounds

FEW = settings(max_examples=30)
Z = stats.norm.ppf(0.975)


@FEW
@given(st.integers(1, 300), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_equals_scipy(n, share, level):
    k = round(share * n)
    ref = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    low, high = wilson_bounds(k / n, n, stats.norm.ppf(0.5 + level / 2))
    assert (low, high) == (pytest.approx(ref.low, abs=1e-12), pytest.approx(ref.high, abs=1e-12))
    assert 0 <= low <= k / n <= high <= 1


def test_t_interval_equals_scipy():
    x = np.random.default_rng(0).normal(0.6, 0.1, 9)
    low, high = stats.t.interval(0.9, 8, loc=x.mean(), scale=stats.sem(x))
    assert (t_interval(x, 0.9).low, t_interval(x, 0.9).high) == (pytest.approx(low), pytest.approx(high))


# ---- the rate of a method


def test_one_checkpoint_one_planner_seed_is_wilson_over_episodes():
    success = np.zeros((1, 1, 40), bool)
    success[0, 0, :29] = True
    got = success_interval(Result.of("a", success, episodes=range(40)))
    assert (got.low, got.high) == pytest.approx(wilson_bounds(29 / 40, 40, Z))
    assert got.unit == "episodes of one checkpoint"


def test_repeating_planner_seeds_does_not_buy_certainty():
    draw = np.random.default_rng(3)
    once = draw.random((8, 1, 50)) < 0.6
    alike = np.repeat(once, 20, axis=1)
    a, b = (success_interval(Result.of("a", x, episodes=range(50))) for x in (once, alike))
    assert (a.low, a.high) == (pytest.approx(b.low), pytest.approx(b.high))
    low, high = wilson_bounds(alike.mean(), alike.size, Z)
    assert b.high - b.low > 3 * (high - low)


@pytest.mark.parametrize("value", [False, True])
def test_all_or_nothing_is_wilson_over_distinct_episodes_with_t(value):
    got = success_interval(Result.of("a", np.full((8, 3, 50), value), episodes=range(50)))
    t = stats.t.ppf(0.975, 7)
    width = t**2 / (50 + t**2)
    assert (got.low, got.high) == (pytest.approx(1 - width if value else 0), pytest.approx(1 if value else width))


@FEW
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 12), st.integers(0, 1000), st.floats(0, 1))
@example(3, 3, 3, 3, 0.625)  # MS_E = MS_SE but for rounding, which mirrors otherwise
def test_success_interval_properties(S, P, E, seed, rate):
    success = np.random.default_rng(seed).random((S, P, E)) < rate
    a = Result.of("a", success, episodes=range(E))
    got = success_interval(a)
    assert 0 <= got.low <= got.estimate <= got.high <= 1 and got.low < got.high
    assert success_interval(a, 0.5).high <= got.high
    mirror = success_interval(Result.of("a", ~success, episodes=range(E)))
    assert mirror.low == pytest.approx(1 - got.high, abs=1e-9)


def test_crossed_variance_by_loops():
    x = np.random.default_rng(5).normal(size=(4, 6)) + np.arange(6) * 0.3 + np.arange(4)[:, None] * 0.5
    S, E = x.shape
    m = x.mean()
    ms_s = sum(E * (x[s].mean() - m) ** 2 for s in range(S)) / (S - 1)
    ms_e = sum(S * (x[:, e].mean() - m) ** 2 for e in range(E)) / (E - 1)
    ms_r = sum((x[s, e] - x[s].mean() - x[:, e].mean() + m) ** 2 for s in range(S) for e in range(E)) / 15
    assert ms_e > ms_r and ms_s > ms_r
    v, df = crossed_variance(x)
    assert v == pytest.approx((ms_s + ms_e - ms_r) / 24)
    assert df == pytest.approx((ms_s + ms_e - ms_r) ** 2 / (ms_s**2 / 3 + ms_e**2 / 5 + ms_r**2 / 15))


def test_crossed_variance_is_never_below_the_residuals():
    """Seeds that agree by luck: their means say nothing less than the noise of the episodes under them."""
    x = np.random.default_rng(5).normal(size=(4, 6))
    x -= x.mean(1, keepdims=True)  # equal seed means: MS_S = 0
    residual = np.square(x - x.mean(0)).sum() / 15
    ms_e = 4 * np.square(x.mean(0)).sum() / 5
    flat = x - x.mean(0)  # MS_E = 0 too
    v, df = crossed_variance(flat)
    assert v == pytest.approx(residual / 24) and df == 15
    v, df = crossed_variance(x + np.arange(6) - 2.5)  # episodes differ: MS_SE cancels
    y = x + np.arange(6) - 2.5
    assert v == pytest.approx(4 * np.square(y.mean(0)).sum() / 5 / 24) and df == 5 and ms_e > 0


def test_text_is_per_cent_with_one_decimal():
    got = Interval(0.725, 0.5716, 0.8389, 0.95, "checkpoints")
    assert got.text() == "72.5 % [57.2, 83.9]"
    assert got.text(signed=True) == "+72.5 points [+57.2, +83.9]"
    assert Interval(-0.0, -0.0001, 0.434, 0.95, "").text() == "0.0 % [0.0, 43.4]"


def test_bad_input_is_one_sentence(one_sentence):
    ok = np.ones((2, 1, 3), bool)
    bad = [
        lambda: success_interval(Result.of("a", ok, episodes=range(3)), level=95),
        lambda: t_interval([1.0]),
        lambda: t_interval([1.0, math.nan]),
        lambda: Result.of("a", ok[0], episodes=range(3)),
        lambda: Result.of("a", np.ones((0, 1, 3), bool), episodes=range(3)),
        lambda: Result.of("a", ok * 0.5, episodes=range(3)),
        lambda: Result.of("a", [[["yes", "no"]]], episodes=range(2)),
        lambda: Result.of("a", ok, episodes=range(4)),
        lambda: Result.of("a", ok, episodes=[0, 0, 1]),
        lambda: Result.of("a", ok, episodes=range(3), seeds=[1, 1]),
        lambda: Result.of("a", ok, episodes=range(3), control=True),
        lambda: Result.of("a", ok, episodes=range(3)).only(seeds=[7]),
        lambda: detectable_paired(1, 0.1),
        lambda: detectable_paired(8, -0.1),
        lambda: detectable_paired(8, math.nan),
        lambda: detectable_paired(8, 0.1, alpha=5),
        lambda: detectable_paired(8, 0.1, power=80),
        lambda: power_paired(0, 0.1, 0.1),
        lambda: seeds_needed(0.0, 0.1),
        lambda: seeds_needed(1e-9, 0.1),
    ]
    for call in bad:
        one_sentence(call)


def test_a_result_cannot_be_changed_from_outside():
    success = np.zeros((1, 1, 4), bool)
    a = Result.of("a", success, episodes=range(4))
    success[:] = True
    assert a.rate == 0
    with pytest.raises(ValueError):
        a.success_SPE[0, 0, 0] = True


def t_power_by_integration(ncp, df, alpha):
    """P(|Z + ncp| > t·√(χ²/df)) integrated over χ: no noncentral t anywhere."""
    t = stats.t.ppf(1 - alpha / 2, df)

    def inside(w):
        edge = t * w / math.sqrt(df)
        return (stats.norm.sf(edge - ncp) + stats.norm.cdf(-edge - ncp)) * stats.chi.pdf(w, df)

    return integrate.quad(inside, 0, math.sqrt(df) * 8 + 10, limit=200)[0]


@pytest.mark.parametrize("n, effect, alpha", [(2, 1.0, 0.05), (8, 0.9, 0.05), (8, 1.2, 0.01), (30, 0.4, 0.1)])
def test_power_by_integration(n, effect, alpha):
    want = t_power_by_integration(effect * math.sqrt(n), n - 1, alpha)
    assert power_paired(n, 1.0, effect, alpha) == pytest.approx(want, abs=1e-7)


def test_power_published():
    """Cohen's n for one sample or pairs, two-sided 5 %, 80 %: d = 0.2, 0.5, 0.8 need 199, 34, 15."""
    assert [seeds_needed(d, 1.0) for d in (0.2, 0.5, 0.8)] == [199, 34, 15]


@FEW
@given(st.integers(2, 60), st.floats(0.01, 2), st.sampled_from([0.01, 0.05]), st.floats(0.5, 0.99))
def test_detectable_inverts_power(n, sd, alpha, power):
    effect = detectable_paired(n, sd, alpha, power)
    assert power_paired(n, sd, effect, alpha) == pytest.approx(power, abs=1e-6)
    assert detectable_paired(n, 2 * sd, alpha, power) == pytest.approx(2 * effect)
    assert detectable_paired(n + 5, sd, alpha, power) < effect


def test_detectable_approaches_the_normal_limit():
    for n in (5_000, 20_000):  # either side of the switch to the normal
        assert detectable_paired(n, math.sqrt(n)) == pytest.approx(1.959964 + 0.841621, rel=1e-3)
