"""Comparisons: what they may say, and how often they are wrong, by simulation.

Monte Carlo tolerance: a rate near 5 % over N simulated experiments has sd √(0.05·0.95/N); tests allow 4 sd.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from lpwm.stats import (
    MIN_SEEDS,
    Result,
    compare,
    comparison_table,
    detectable_paired,
    holm,
    success_interval,
    t_interval,
)

FEW = settings(max_examples=25)


def rates_S(result):
    """The success rate of each checkpoint: the unit of replication."""
    return result.success_SPE.mean(axis=(1, 2))


def record(name, success, **more):
    success = np.asarray(success)
    more.setdefault("episodes", range(success.shape[2]))
    return Result.of(name, success, **more)


def trials(draw, N, S, P, E, *, mean=0.0, seed_sd=0.3, episode_sd=1.0, cell_sd=0.5, bias_sd=0.0, methods=2):
    """Probit successes (N, methods, S, P, E): episodes shared by the methods, `bias_sd` an episode's taste for
    one method in all its checkpoints. Returns them and the marginal success rate."""
    x = mean + episode_sd * draw.normal(size=(N, 1, 1, 1, E))
    x = x + seed_sd * draw.normal(size=(N, methods, S, 1, 1)) + bias_sd * draw.normal(size=(N, methods, 1, 1, E))
    x = x + cell_sd * draw.normal(size=(N, methods, S, 1, E)) + draw.normal(size=(N, methods, S, P, E))
    total = 1 + seed_sd**2 + episode_sd**2 + cell_sd**2 + bias_sd**2
    return x > 0, special.ndtr(mean / math.sqrt(total))


# ---- how often they are wrong


@pytest.mark.parametrize("bias_sd, seed_sd, mean", [(0.0, 0.3, 0.0), (0.5, 0.3, 0.0), (1.0, 0.1, 0.0), (0.3, 0.3, 2.0)])
def test_false_alarms_are_at_most_what_is_said(bias_sd, seed_sd, mean):
    """Two equal methods, 8 seeds × 3 × 50, 1,500 experiments: a winner in at most 5 % + 4 sd = 7.25 %."""
    N = 1500
    success, _ = trials(np.random.default_rng(0), N, 8, 3, 50, bias_sd=bias_sd, seed_sd=seed_sd, mean=mean)
    alarms = np.mean([compare(record("a", y[0]), record("b", y[1])).winner is not None for y in success])
    assert 0.01 < alarms < 0.0725


def test_paired_t_alone_would_be_fooled_by_episodes():
    """The reason for the crossed default: episodes that favor one method, the same for all its checkpoints."""
    success, _ = trials(np.random.default_rng(1), 300, 8, 3, 50, bias_sd=1.0, seed_sd=0.1)
    pairs = [(record("a", y[0]), record("b", y[1])) for y in success]
    fooled = np.mean([0 not in t_interval(rates_S(a) - rates_S(b)) for a, b in pairs])
    sound = np.mean([compare(a, b).winner is not None for a, b in pairs])
    assert fooled > 0.2 and sound < 0.11  # 5 % + 4 sd = 10.03 %


def test_a_table_of_equal_methods_names_a_winner_in_at_most_5_percent_of_tables():
    """Four equal methods, six pairs, 400 tables: Holm holds the whole table at 5 %; allowed 5 % + 4 sd = 9.4 %."""
    success, _ = trials(np.random.default_rng(3), 400, 8, 1, 30, methods=4)
    uncorrected = corrected = taken_back = 0
    for y in success:
        table = comparison_table([record(n, y[i]) for i, n in enumerate("abcd")])
        corrected += any(c.winner for c in table.comparisons)
        uncorrected += any(c.p < 0.05 for c in table.comparisons)
        taken_back += any(c.p < 0.05 <= c.p_holm for c in table.comparisons)
        assert all((c.winner is not None) == (c.p_holm < 0.05) for c in table.comparisons)
    assert corrected / 400 < 0.094 and taken_back
    assert uncorrected / 400 > 0.12


def test_power_at_the_smallest_detectable_effect():
    """Rates with normal noise over seeds at the effect of `detectable` are told apart in about 80 %.

    The sd comes from 400 experiments without a shift; 400 more with it: 80 % ± 4 sd (8 %).
    """
    draw = np.random.default_rng(4)

    def experiment(shift):
        """Independent trials at each checkpoint's own rate, a normal draw around 0.4 (+ shift for a)."""
        pairs = []
        for r in np.clip(draw.normal([0.4 + shift, 0.4], 0.08, (400, 8, 2)), 0, 1):
            y = draw.random((2, 8, 1, 200)) < r.T[:, :, None, None]
            pairs.append((record("a", y[0]), record("b", y[1])))
        return pairs

    variances = [np.var(rates_S(a) - rates_S(b), ddof=1) for a, b in experiment(0.0)]
    shift = detectable_paired(8, math.sqrt(np.mean(variances)))
    results = [compare(a, b) for a, b in experiment(shift)]
    assert np.mean([c.winner == "a" for c in results]) == pytest.approx(0.8, abs=0.08)
    assert np.median([c.smallest_detectable for c in results]) == pytest.approx(shift, rel=0.15)


@pytest.mark.parametrize("S, mean, seed_sd", [(3, 0.0, 0.3), (8, 0.0, 0.3), (8, 2.0, 0.3), (16, 0.0, 1.0)])
def test_the_rate_interval_covers(S, mean, seed_sd):
    """1,000 experiments at 95 %: Monte Carlo sd 0.7 %. Allowed 95 − 2 − 4 sd: near 0 and 100 % it is approximate."""
    success, rate = trials(np.random.default_rng(5), 1000, S, 3, 50, mean=mean, seed_sd=seed_sd, methods=1)
    covered = np.mean([rate in success_interval(record("a", y[0])) for y in success])
    assert 0.902 < covered < 0.99
    naive = np.mean([abs(y.mean() - rate) < 1.96 * math.sqrt(rate * (1 - rate) / y.size) for y in success])
    assert naive < 0.85  # what counting every trial as independent would give


def test_the_difference_interval_covers():
    """A true gain of 0.2 in probit mean, 1,000 experiments; 95 % ± 4 sd (2.8 %)."""
    draw, hits, N = np.random.default_rng(6), 0, 1000
    # one call per method would break the shared episodes, so the shift enters inside
    x = draw.normal(size=(N, 1, 1, 1, 50)) + 0.3 * draw.normal(size=(N, 2, 8, 1, 1))
    x = x + 0.4 * draw.normal(size=(N, 2, 1, 1, 50)) + draw.normal(size=(N, 2, 8, 2, 50))
    x[:, 0] += 0.2
    truth = special.ndtr(0.2 / math.sqrt(1 + 1 + 0.09 + 0.16)) - 0.5
    for y in x > 0:
        hits += truth in compare(record("a", y[0]), record("b", y[1])).difference
    assert hits / N == pytest.approx(0.95, abs=0.028)


# ---- what they may say


def clear(seeds, **more):
    """a solves 80 %, b 20 % of 50 episodes."""
    draw = np.random.default_rng(8)
    return (
        record("sparse", draw.random((seeds, 2, 50)) < 0.8, **more),
        record("dense", draw.random((seeds, 2, 50)) < 0.2, **more),
    )


def test_a_clear_difference_is_called_with_8_paired_seeds():
    a, b = clear(8)
    got = compare(a, b)
    assert got.verdict == "a ahead" and got.winner == "sparse" and got.n == 8
    assert compare(b, a).verdict == "b ahead" and compare(b, a).winner == "sparse"
    assert got.difference.low > 0.4 and got.p < 1e-4
    assert "sparse ahead" in got.text() and "points" in got.text()


@pytest.mark.parametrize("seeds, unit", [(MIN_SEEDS - 1, "checkpoints"), (1, "episodes of one checkpoint")])
def test_fewer_than_8_seeds_is_exploratory_whatever_p(seeds, unit):
    got = compare(*clear(seeds))
    assert got.p < 1e-3 and got.winner is None and got.n == seeds
    assert got.verdict == "exploratory: fewer than 8 seeds" and got.difference.unit == unit


def test_unpaired_seeds_have_welchs_interval_and_no_winner():
    a, b = clear(9)
    b = Result.of("dense", b.success_SPE, episodes=range(50), seeds=range(100, 109))
    got = compare(a, b)
    ref = stats.ttest_ind(rates_S(a), rates_S(b), equal_var=False)
    low, high = ref.confidence_interval()
    assert got.winner is None and got.verdict == "seeds not paired: no winner called"
    assert (got.p, got.difference.low, got.difference.high) == pytest.approx((ref.pvalue, low, high))
    assert compare(a.only(seeds=range(8)), a).winner is None  # partly shared is not paired


def test_seeds_and_episodes_are_matched_by_id_not_by_position():
    draw = np.random.default_rng(9)
    base = draw.random((8, 1, 30)) < np.linspace(0, 1, 30)  # hard and easy episodes
    a = record("a", base, seeds=range(8), episodes=range(30))
    b = record("b", base[::-1, :, ::-1], seeds=range(7, -1, -1), episodes=range(29, -1, -1))
    straight = record("b", base)
    got = compare(a, b)  # the same successes, told in another order
    assert got.difference == compare(a, straight).difference and got.p == 1
    only_seeds = record("b", base[::-1], seeds=range(7, -1, -1))
    assert compare(a, only_seeds).difference == compare(a, straight).difference


def test_identical_methods_are_not_certainly_equal():
    a = record("a", np.ones((8, 1, 50)))
    got = compare(a, record("b", np.ones((8, 1, 50))))
    assert got.verdict == "no difference shown" and got.difference.low < 0 < got.difference.high
    half = stats.t.ppf(0.975, 7) / 52  # one of 50 episodes, and two more, half a count for either side
    assert got.difference.high == pytest.approx(half)
    opposite = compare(a, record("b", np.zeros((8, 1, 50))))
    assert opposite.winner == "a" and opposite.difference.low < 1 == opposite.difference.high


def test_equal_seeds_are_not_certain():
    """One episode, failed by every checkpoint of b: t over seeds would give p = 0."""
    b = np.ones((8, 1, 50), bool)
    b[:, :, 3] = False
    a, b = record("a", np.ones((8, 1, 50))), record("b", b)
    assert 0 not in t_interval(rates_S(a) - rates_S(b))
    assert compare(a, b).verdict == "no difference shown"


def test_a_control_is_paired_with_every_seed():
    a, _ = clear(8)
    idle = record("do nothing", np.arange(50)[None, None] < 3, control=True)
    got = compare(a, idle)
    assert got.winner == "sparse" and got.n == 8
    assert got.difference.estimate == pytest.approx(a.rate - 0.06)
    assert compare(idle, a).winner == "sparse"


@FEW
@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(2, 20),
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([0.8, 0.95]),
)
def test_comparison_properties(S, P, E, seed, rate_a, rate_b, level):
    draw = np.random.default_rng(seed)
    a, b = record("a", draw.random((S, P, E)) < rate_a), record("b", draw.random((S, P, E)) < rate_b)
    got, back = compare(a, b, level=level), compare(b, a, level=level)
    d = got.difference
    assert -1 <= d.low <= d.estimate <= d.high <= 1
    assert d.estimate == pytest.approx(a.rate - b.rate)
    assert got.row().verdict == got.verdict and 0 <= got.p <= 1 and got.smallest_detectable >= 0
    assert (back.difference.estimate, back.difference.low) == (pytest.approx(-d.estimate), pytest.approx(-d.high))
    if got.winner:
        assert S >= 8 and 0 not in d and got.p < 1 - level and back.winner == got.winner
    assert all(not isinstance(v, float) or math.isfinite(v) for v in vars(got.row()).values())


def test_holm_published_and_properties():
    """Holm's step-down on 0.01, 0.04, 0.03, 0.005 (R's p.adjust): 0.03, 0.06, 0.06, 0.02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.7]) == [0.7] and holm([0.6, 0.9]) == [1.0, 1.0]


def test_a_table_has_every_pair_but_those_of_controls():
    a, b = clear(8)
    same = record("also dense", np.random.default_rng(12).random((8, 2, 50)) < 0.2)
    idle = record("do nothing", np.zeros((1, 1, 50)), control=True)
    noise = record("random", np.arange(50)[None, None] < 2, control=True)
    table = comparison_table([a, b, same, idle, noise])
    assert len(table.rows) == 3 + 3 * 2  # pairs of methods, methods × controls; controls not among themselves
    assert [r.name for r in table.rates if r.control] == ["do nothing", "random"]
    assert [r.p_holm for r in table.rows] == pytest.approx(holm([r.p for r in table.rows]))
    assert {(r.a, r.b): r.verdict for r in table.rows}["sparse", "dense"] == "a ahead"
    assert comparison_table([a]).rows == ()


def test_bad_input_is_one_sentence(one_sentence):
    a, b = clear(8)
    other = record("c", a.success_SPE, episodes=range(1, 51))
    one = record("one", np.ones((1, 1, 50)), seeds=[99])
    idle = record("idle", np.ones((1, 1, 50)), control=True)
    bad = [
        lambda: compare(a, other),
        lambda: compare(a, b.only(episodes=range(40))),
        lambda: compare(a, one),
        lambda: compare(idle, idle),
        lambda: compare(a, b, level=1.0),
        lambda: compare(a, b, power=1.5),
        lambda: compare(a.only(episodes=[0]), b.only(episodes=[0])),
        lambda: comparison_table([]),
        lambda: comparison_table([a, a]),
        lambda: comparison_table([a, other]),
        lambda: holm([0.5, 1.5]),
    ]
    for call in bad:
        one_sentence(call)
    assert "same episodes" in one_sentence(bad[0])
