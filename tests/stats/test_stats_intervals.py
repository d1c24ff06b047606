"""Intervals of one rate, paired tests and McNemar: against scipy, published values and each other."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from lpwm.core.errors import UserError
from lpwm.stats import (
    Result,
    clopper_pearson,
    mcnemar,
    paired_bootstrap,
    paired_t,
    success_interval,
    t_interval,
    wilson,
)
from lpwm.stats.intervals import crossed_variance

FEW = settings(max_examples=30)


@FEW
@given(st.integers(1, 300), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_and_clopper_pearson_equal_scipy(n, share, level):
    k = round(share * n)
    for ours, name in ((wilson, "wilson"), (clopper_pearson, "exact")):
        ref = stats.binomtest(k, n).proportion_ci(level, method=name)
        got = ours(k, n, level)
        assert got.low == pytest.approx(ref.low, abs=1e-12)
        assert got.high == pytest.approx(ref.high, abs=1e-12)
        assert 0 <= got.low <= k / n <= got.high <= 1


def test_wilson_published_values():
    """Newcombe 1998 (Statist. Med. 17:857), table I, score method: 81/263, 15/148, 0/20, 1/29."""
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0000, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (k, n), bounds in published.items():
        got = wilson(k, n)
        assert (round(got.low, 4), round(got.high, 4)) == bounds


def test_t_interval_and_paired_t_equal_scipy():
    draw = np.random.default_rng(0)
    a, b = draw.normal(0.6, 0.1, 9), draw.normal(0.5, 0.1, 9)
    ref = stats.ttest_rel(a, b)
    got = paired_t(a, b)
    assert got.p == pytest.approx(ref.pvalue, rel=1e-12)
    low, high = ref.confidence_interval(0.95)
    assert (got.difference.low, got.difference.high) == (pytest.approx(low), pytest.approx(high))
    assert got.n == 9 and got.df == 8
    low, high = stats.t.interval(0.9, 8, loc=a.mean(), scale=stats.sem(a))
    assert (t_interval(a, 0.9).low, t_interval(a, 0.9).high) == (pytest.approx(low), pytest.approx(high))


def test_paired_t_on_equal_differences_is_not_rounding_noise():
    base = np.array([0.1, 0.2, 0.3, 0.7, 0.9, 0.4, 0.35, 0.8])
    got = paired_t(base + 0.1, base)  # the differences differ in their last bits
    assert got.se == 0 and got.p == 0 and got.difference.low == got.difference.high
    assert paired_t(base, base).p == 1


@FEW
@given(st.integers(5, 20), st.integers(0, 10_000), st.sampled_from([0.8, 0.9, 0.95]))
def test_bootstrap_interval_and_p_say_the_same(n, seed, level):
    d = np.random.default_rng(seed).normal(0.5, 1, n)
    got = paired_bootstrap(d, np.zeros(n), level, resamples=999)
    assert (got.p <= 1 - level + 1e-9) == (0 not in got.difference)
    assert got.difference.low <= got.difference.estimate <= got.difference.high
    flipped = paired_bootstrap(np.zeros(n), d, level, resamples=999)
    assert flipped.difference.low == pytest.approx(-got.difference.high)


def test_bootstrap_t_against_all_resamples():
    """n = 5 has 3125 resamples: the quantiles of the enumerated t* are what sampling must approach."""
    d = np.array([0.02, 0.11, 0.05, 0.30, 0.12])
    t = []
    for pick in itertools.product(range(5), repeat=5):
        x = d[list(pick)]
        sd = x.std(ddof=1)
        t.append(
            (x.mean() - d.mean()) / (sd / math.sqrt(5)) if sd > 1e-12 else math.copysign(math.inf, x[0] - d.mean())
        )
    low_t, high_t = np.quantile(t, (0.05, 0.95), method="inverted_cdf")
    se = d.std(ddof=1) / math.sqrt(5)
    got = paired_bootstrap(d, np.zeros(5), 0.9, resamples=99_999)
    assert got.difference.low == pytest.approx(d.mean() - high_t * se, rel=0.05)
    assert got.difference.high == pytest.approx(d.mean() - low_t * se, rel=0.05)


def test_bootstrap_is_keyed():
    d = np.arange(8.0)
    one, two = (paired_bootstrap(d, d[::-1] ** 0.5, key=(k,)).difference for k in (0, 1))
    assert one == paired_bootstrap(d, d[::-1] ** 0.5, key=(0,)).difference
    assert one != two


# ---- McNemar


def pairs(both, only_a, only_b, none):
    a = np.repeat([True, True, False, False], [both, only_a, only_b, none])
    b = np.repeat([True, False, True, False], [both, only_a, only_b, none])
    return a, b


@pytest.mark.parametrize("only_a, only_b", [(0, 0), (0, 5), (0, 6), (9, 1), (12, 12), (30, 14)])
def test_mcnemar_p_is_the_binomial_test(only_a, only_b):
    got = mcnemar(*pairs(20, only_a, only_b, 10))
    m = only_a + only_b
    assert got.p == pytest.approx(stats.binomtest(only_a, m).pvalue if m else 1.0)
    assert (got.only_a, got.only_b, got.n) == (only_a, only_b, 30 + m)


def test_mcnemar_published_approval_poll():
    """Agresti, Categorical Data Analysis, 10.1: 794/150/86/570; difference −0.040, 95 % [−0.059, −0.021]."""
    got = mcnemar(*pairs(794, 86, 150, 570))
    assert got.difference.estimate == pytest.approx(-0.040, abs=5e-4)
    assert got.difference.low == pytest.approx(-0.059, abs=1e-3)
    assert got.difference.high == pytest.approx(-0.021, abs=1e-3)
    assert got.p < 1e-4


@pytest.mark.parametrize(
    "table", [(10, 8, 2, 5), (0, 1, 0, 9), (4, 6, 6, 4), (0, 0, 0, 12), (3, 0, 0, 9), (5, 2, 9, 1)]
)
def test_tango_bounds_by_direct_likelihood(table):
    """At a bound Δ the score statistic is z; its variance by maximizing the likelihood numerically given Δ."""
    _, b, c, _ = table
    n = sum(table)
    got = mcnemar(*pairs(*table)).difference

    def score(delta):
        def minus_log_likelihood(q):
            cells = ((q + delta, b), (q, c), (1 - 2 * q - delta, n - b - c))
            return -sum(k * math.log(max(p, 1e-300)) for p, k in cells if k)

        bounds = (max(0.0, -delta), (1 - delta) / 2)
        q = optimize.minimize_scalar(minus_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        return (b - c - n * delta) / math.sqrt(n * (2 * q + delta - delta**2))

    assert score(got.low) == pytest.approx(1.959964, abs=2e-3)
    assert score(got.high) == pytest.approx(-1.959964, abs=2e-3)


def test_tango_at_total_disagreement():
    got = mcnemar(*pairs(0, 20, 0, 0)).difference
    z2 = 1.959964**2  # with no agreement the likelihood puts q at (1 − Δ)/2: n(1 − Δ)² = z²(1 − Δ²)
    assert got.high == 1.0 and got.low == pytest.approx((20 - z2) / (20 + z2), abs=1e-5)
    back = mcnemar(*pairs(0, 0, 20, 0)).difference
    assert back.low == -1.0 and back.high == pytest.approx(-got.low)


# ---- the rate of a method


def test_one_checkpoint_one_planner_seed_is_wilson_over_episodes():
    success = np.zeros((1, 1, 40), bool)
    success[0, 0, :29] = True
    got = success_interval(Result.of("a", success, episodes=range(40)))
    want = wilson(29, 40)
    assert (got.low, got.high) == (pytest.approx(want.low), pytest.approx(want.high))
    assert got.unit == "episodes of one checkpoint"


def test_repeating_planner_seeds_does_not_buy_certainty():
    draw = np.random.default_rng(3)
    once = draw.random((8, 1, 50)) < 0.6
    alike = np.repeat(once, 20, axis=1)
    a, b = (success_interval(Result.of("a", x, episodes=range(50))) for x in (once, alike))
    assert (a.low, a.high) == (pytest.approx(b.low), pytest.approx(b.high))
    naive = wilson(int(alike.sum()), alike.size)
    assert b.high - b.low > 3 * (naive.high - naive.low)


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
    for episodes in ("sampled", "fixed"):
        got = success_interval(a, episodes=episodes)
        assert 0 <= got.low <= got.estimate <= got.high <= 1 and got.low < got.high
        assert success_interval(a, 0.5, episodes).high <= got.high
        mirror = success_interval(Result.of("a", ~success, episodes=range(E)), episodes=episodes)
        assert mirror.low == pytest.approx(1 - got.high, abs=1e-9)


def test_crossed_variance_by_loops():
    x = np.random.default_rng(5).normal(size=(4, 6)) + np.arange(6) * 0.3 + np.arange(4)[:, None] * 0.5
    S, E = x.shape
    m = x.mean()
    ms_s = sum(E * (x[s].mean() - m) ** 2 for s in range(S)) / (S - 1)
    ms_e = sum(S * (x[:, e].mean() - m) ** 2 for e in range(E)) / (E - 1)
    ms_r = sum((x[s, e] - x[s].mean() - x[:, e].mean() + m) ** 2 for s in range(S) for e in range(E)) / 15
    assert ms_e > ms_r and ms_s > ms_r
    v, df = crossed_variance(x, "sampled")
    assert v == pytest.approx((ms_s + ms_e - ms_r) / 24)
    assert df == pytest.approx((ms_s + ms_e - ms_r) ** 2 / (ms_s**2 / 3 + ms_e**2 / 5 + ms_r**2 / 15))
    v, df = crossed_variance(x, "fixed")
    assert v == pytest.approx(stats.sem(x.mean(1)) ** 2) and df == 3


def test_crossed_variance_is_never_below_the_residuals():
    """Seeds that agree by luck: their means say nothing less than the noise of the episodes under them."""
    x = np.random.default_rng(5).normal(size=(4, 6))
    x -= x.mean(1, keepdims=True)  # equal seed means: MS_S = 0
    residual = np.square(x - x.mean(0)).sum() / 15
    ms_e = 4 * np.square(x.mean(0)).sum() / 5
    flat = x - x.mean(0)  # MS_E = 0 too
    v, df = crossed_variance(flat, "sampled")
    assert v == pytest.approx(residual / 24) and df == 15
    v, df = crossed_variance(x + np.arange(6) - 2.5, "sampled")  # episodes differ: MS_SE cancels
    y = x + np.arange(6) - 2.5
    assert v == pytest.approx(4 * np.square(y.mean(0)).sum() / 5 / 24) and df == 5 and ms_e > 0


@pytest.mark.parametrize("seed_sd", [0.0, 0.3])
def test_crossed_intervals_cover_also_where_the_seeds_agree(seed_sd):
    """Coverage of mean ± t·√V by simulation, over all samples and over the third with the smallest spread of seeds."""
    g = np.random.default_rng(0)
    S, E, n = 8, 40, 4000
    x = seed_sd * g.normal(size=(n, S, 1)) + 0.5 * g.normal(size=(n, 1, E)) + g.normal(size=(n, S, E))
    v, df = crossed_variance(x, "sampled")
    covered = np.abs(x.mean((1, 2))) <= stats.t.ppf(0.975, df) * np.sqrt(v)
    unlucky = np.argsort(x.mean(2).var(1))[: n // 3]
    assert covered.mean() > 0.94 and covered[unlucky].mean() > (0.90 if seed_sd else 0.94)


def test_text_is_per_cent_with_one_decimal():
    got = wilson(29, 40)
    assert got.text() == "72.5 % [57.2, 83.9]"
    assert got.text(signed=True) == "+72.5 % [+57.2, +83.9]"
    assert wilson(0, 5).text() == "0.0 % [0.0, 43.4]"


def test_bad_input_is_one_sentence():
    ok = np.ones((2, 1, 3), bool)
    bad = [
        lambda: wilson(1, 0),
        lambda: wilson(5, 4),
        lambda: clopper_pearson(-1, 4),
        lambda: wilson(1, 4, level=95),
        lambda: t_interval([1.0]),
        lambda: t_interval([1.0, math.nan]),
        lambda: paired_t([1, 2], [1, 2, 3]),
        lambda: paired_t([1], [2]),
        lambda: paired_t([1, math.inf], [2, 3]),
        lambda: paired_bootstrap([1, 2, 3, 4], [1, 2, 3, 5]),
        lambda: paired_bootstrap(range(8), [0] * 8, 0.999, resamples=99),
        lambda: mcnemar([True, False], [True]),
        lambda: mcnemar(ok, ok),
        lambda: mcnemar([0.2, 1], [0, 1]),
        lambda: mcnemar([], []),
        lambda: Result.of("a", ok[0], episodes=range(3)),
        lambda: Result.of("a", np.ones((0, 1, 3), bool), episodes=range(3)),
        lambda: Result.of("a", ok * 0.5, episodes=range(3)),
        lambda: Result.of("a", [[["yes", "no"]]], episodes=range(2)),
        lambda: Result.of("a", ok, episodes=range(4)),
        lambda: Result.of("a", ok, episodes=[0, 0, 1]),
        lambda: Result.of("a", ok, episodes=range(3), seeds=[1, 1]),
        lambda: Result.of("a", ok, episodes=range(3), control=True),
        lambda: Result.of("a", ok, episodes=range(3)).only(seeds=[7]),
        lambda: success_interval(Result.of("a", ok, episodes=range(3)), episodes="some"),  # type: ignore[arg-type]
    ]
    for call in bad:
        with pytest.raises(UserError) as caught:
            call()
        message = str(caught.value)
        assert message.endswith(".") and "\n" not in message and ". " not in message


def test_a_result_cannot_be_changed_from_outside():
    success = np.zeros((1, 1, 4), bool)
    a = Result.of("a", success, episodes=range(4))
    success[:] = True
    assert a.rate == 0
    with pytest.raises(ValueError):
        a.success_SPE[0, 0, 0] = True
