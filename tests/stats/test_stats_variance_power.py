"""The variance split against classical mean squares, and power against integration, tables and enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lpwm.core.errors import UserError
from lpwm.stats import (
    Result,
    detectable_on_episodes,
    detectable_paired,
    mcnemar,
    power_on_episodes,
    power_paired,
    seeds_needed,
    variance_split,
)
from lpwm.stats.variance import NAMES, Component, VarianceSplit, _components

FEW = settings(max_examples=15)


def record(success):
    return Result.of("a", success, episodes=range(success.shape[2]))


def anova(y):
    """σ² by equating mean squares with their expectations, term by term (textbook three-way random model)."""
    axes = [i for i in range(3) if y.shape[i] > 1]
    means = {}
    for r in range(4):
        for keep in itertools.combinations(range(3), r):
            means[keep] = y.mean(tuple(i for i in range(3) if i not in keep), keepdims=True)
    ms = {}
    for r in range(1, len(axes) + 1):
        for keep in itertools.combinations(axes, r):
            effect = sum((-1) ** (r - k) * means[u] for k in range(r + 1) for u in itertools.combinations(keep, k))
            df = math.prod(y.shape[i] - 1 for i in keep)
            ms[keep] = np.square(np.broadcast_to(effect, y.shape)).sum() / df
    sigma = {}
    for keep in sorted(ms, key=len, reverse=True):  # from the residual upwards
        above = sum(
            math.prod(y.shape[i] for i in range(3) if i not in u) * sigma[u] for u in sigma if set(keep) < set(u)
        )
        sigma[keep] = (ms[keep] - above) / math.prod(y.shape[i] for i in range(3) if i not in keep)
    return sigma


@FEW
@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 7), st.integers(0, 10_000))
def test_components_equal_the_anova_estimator(S, P, E, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(S, 1, 1)) + draw.normal(size=(1, 1, E)) + draw.normal(size=(S, P, E))
    success = x > 0
    got = variance_split(record(success), resamples=50).components
    want = anova(success.astype(float))
    assert len(got) == len(want) == (7 if P > 1 else 3)
    for keep, value in want.items():
        name = "residual" if len(keep) == (3 if P > 1 else 2) else NAMES["".join("spe"[i] for i in keep)]
        assert got[name].raw == pytest.approx(value, abs=1e-12)
        assert got[name].variance == max(got[name].raw, 0) and got[name].clipped == (got[name].raw < 0)
        assert 0 <= got[name].low <= got[name].high


def test_resampled_components_by_counting_pairs():
    """A resample drew seed s w_s times: trials of one seed pair with weight w_s, of two seeds with w_s·w_t."""
    draw = np.random.default_rng(21)
    y = draw.normal(size=(3, 2, 4))
    ws, we = np.array([2.0, 1, 0]), np.array([1.0, 0, 2, 1])
    top, bottom = {}, {}
    for i in np.ndindex(y.shape):
        for j in np.ndindex(y.shape):
            key = "".join(axis for axis, u, v in zip("spe", i, j, strict=True) if u == v)
            weight = ws[i[0]] * (1 if "s" in key else ws[j[0]]) * we[i[2]] * (1 if "e" in key else we[j[2]])
            top[key] = top.get(key, 0) + weight * y[i] * y[j]
            bottom[key] = bottom.get(key, 0) + weight
    c = {key: top[key] / bottom[key] for key in top}
    got = _components(y, ws[None], we[None])
    assert got["s"][0] == pytest.approx(c["s"] - c[""])
    assert got["e"][0] == pytest.approx(c["e"] - c[""])
    assert got["se"][0] == pytest.approx(c["se"] - c["s"] - c["e"] + c[""])
    rest = c["spe"] - c["sp"] - c["se"] - c["pe"] + c["s"] + c["p"] + c["e"] - c[""]
    assert got["spe"][0] == pytest.approx(rest)


def test_only_the_seed_varies():
    success = np.zeros((4, 3, 10), bool)
    success[::2] = True  # half the checkpoints solve everything
    got = variance_split(record(success))
    assert got.components["training seed"].variance == pytest.approx(1 / 3)  # var of 0, 1, 0, 1 with n − 1
    assert all(c.variance < 1e-12 for name, c in got.components.items() if name != "training seed")
    assert got.shares() == pytest.approx({"training seed": 1, "planner seed": 0, "episode": 0, "residual": 0}, abs=1e-9)


def test_nothing_varies():
    got = variance_split(record(np.ones((3, 2, 5), bool)))
    assert set(got.shares().values()) == {0.0}
    assert "training seed" in got.text()


def test_clipping_is_said():
    success = np.zeros((2, 1, 4), bool)
    success[0, 0, :2] = success[1, 0, 2:] = True  # equal rates: the seed component comes out negative
    got = variance_split(record(success), resamples=200)
    assert got.components["training seed"].raw < 0 and got.components["training seed"].variance == 0
    assert "clipped" in got.text()


def test_variance_of_a_rate_shrinks_with_what_is_bought():
    draw = np.random.default_rng(1)
    success = draw.normal(size=(6, 1, 1)) + draw.normal(size=(1, 1, 30)) + draw.normal(size=(6, 3, 30)) > 0
    split = variance_split(record(success), resamples=200)
    now, more = split.of_rate(), split.of_rate(episodes=300)
    assert more["training seed"] == now["training seed"]
    assert more["episode"] == pytest.approx(now["episode"] / 10)
    assert more["residual"] == pytest.approx(now["residual"] / 10)
    assert sum(split.shares().values()) == pytest.approx(1)


def test_the_variance_of_a_rate_is_that_of_rates_drawn():
    """Checkpoints measured with planner seeds and episodes of their own, all seven effects normal: 200,000 rates."""
    sd = {"s": 0.5, "p": 0.3, "e": 0.9, "sp": 0.7, "se": 1.1, "pe": 0.4, "spe": 1.3}
    components = {NAMES[k]: Component(v**2, 0.0, 0.0, v**2) for k, v in sd.items()}
    P, E, draw = 2, 3, np.random.default_rng(4)
    size = {"s": 1, "p": P, "e": E, "sp": P, "se": E, "pe": P * E, "spe": P * E}
    drawn = {k: sd[k] * draw.normal(size=(200_000, n)).mean(1) for k, n in size.items()}
    of = VarianceSplit(components, (4, P, E), 0.95).of_rate()
    for name, keys in {"training seed": "s", "planner seed": "p sp", "episode": "e se", "residual": "pe spe"}.items():
        assert of[name] == pytest.approx(np.var(sum(drawn[k] for k in keys.split())), rel=0.03), name


def bivariate_orthant(rho):
    """P(x > 0, y > 0) of a standard normal pair: Sheppard's formula."""
    return 0.25 + math.asin(rho) / (2 * math.pi)


def test_components_are_unbiased_and_the_seed_interval_covers():
    """x = α_s + γ_e + ε_spe > 0 has components known from orthant probabilities.

    300 data sets of 8 × 3 × 40, interval at 95 %: Monte Carlo sd 1.3 %, allowed 95 ± 5 (the bootstrap of a
    variance from 8 seeds is itself approximate: 93–95 % seen over 400).
    """
    N, S, P, E, ss, se = 300, 8, 3, 40, 0.5, 1.0
    draw = np.random.default_rng(11)
    x = ss * draw.normal(size=(N, S, 1, 1)) + se * draw.normal(size=(N, 1, 1, E)) + draw.normal(size=(N, S, P, E))
    total = 1 + ss**2 + se**2
    c_s, c_e, c_se = (bivariate_orthant(v / total) for v in (ss**2, se**2, ss**2 + se**2))
    truth = {"training seed": c_s - 0.25, "episode": c_e - 0.25, "residual": 0.5 - c_se, "planner seed": 0.0}
    splits = [variance_split(record(y), resamples=399).components for y in x > 0]
    for name, value in truth.items():
        raw = np.array([c[name].raw for c in splits])
        assert abs(raw.mean() - value) < 4 * raw.std() / math.sqrt(N), name
    covered = np.mean([c["training seed"].low <= truth["training seed"] <= c["training seed"].high for c in splits])
    assert 0.90 <= covered <= 1.0


# ---- power


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


def test_paired_power_by_simulation():
    """20,000 experiments of 8 normal differences at the smallest detectable effect; 4 sd of the count is 1.1 %."""
    effect = detectable_paired(8, 0.13)
    d = np.random.default_rng(2).normal(effect, 0.13, (20_000, 8))
    assert np.mean(stats.ttest_1samp(d, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.0115)


@pytest.mark.parametrize("only_a, only_b", [(0.3, 0.1), (0.0, 0.4), (0.5, 0.5), (0.2, 0.2)])
def test_episode_power_by_enumeration(only_a, only_b):
    n, want = 14, 0.0
    for i in range(n + 1):
        for j in range(n + 1 - i):
            cells = stats.multinomial.pmf([i, j, n - i - j], n, [only_a, only_b, 1 - only_a - only_b])
            want += cells * (i + j > 0 and stats.binomtest(i, i + j).pvalue <= 0.05)
    assert power_on_episodes(n, only_a, only_b) == pytest.approx(want, abs=1e-10)
    assert power_on_episodes(n, only_b, only_a) == pytest.approx(want, abs=1e-10)


def test_detectable_on_episodes_by_simulation():
    """4,000 pairs of checkpoints on 60 independent episodes; 4 sd of the count is 2.5 %."""
    rate, n = 0.4, 60
    gain = detectable_on_episodes(n, rate)
    assert gain is not None
    draw = np.random.default_rng(4)
    a, b = draw.random((4_000, n)) < rate + gain, draw.random((4_000, n)) < rate
    only_a, only_b = (a & ~b).sum(1), (b & ~a).sum(1)
    p = np.minimum(1, 2 * stats.binom.cdf(np.minimum(only_a, only_b), only_a + only_b, 0.5))
    assert np.mean(p <= 0.05) == pytest.approx(0.8, abs=0.026)
    assert p[0] == pytest.approx(mcnemar(a[0], b[0]).p)


def test_correlated_checkpoints_show_smaller_differences():
    gains = [detectable_on_episodes(100, 0.5, rho) for rho in (0.0, 0.4, 0.7)]
    assert None not in gains and gains[0] > gains[1] > gains[2]


def test_near_the_ceiling_nothing_can_be_shown():
    assert detectable_on_episodes(50, 0.95) is None


def test_bad_input_is_one_sentence():
    split = variance_split(record(np.eye(4, dtype=bool)[:, None]), resamples=20)
    bad = [
        lambda: variance_split(record(np.ones((1, 2, 5), bool))),
        lambda: variance_split(record(np.ones((3, 2, 1), bool))),
        lambda: variance_split(record(np.ones((3, 2, 4), bool)), level=2),
        lambda: split.of_rate(planner_seeds=3),
        lambda: split.of_rate(episodes=0),
        lambda: detectable_paired(1, 0.1),
        lambda: detectable_paired(8, -0.1),
        lambda: detectable_paired(8, math.nan),
        lambda: detectable_paired(8, 0.1, alpha=5),
        lambda: detectable_paired(8, 0.1, power=80),
        lambda: power_paired(0, 0.1, 0.1),
        lambda: seeds_needed(0.0, 0.1),
        lambda: seeds_needed(1e-9, 0.1),
        lambda: power_on_episodes(0, 0.1, 0.1),
        lambda: power_on_episodes(10, 0.8, 0.3),
        lambda: detectable_on_episodes(50, 1.0),
        lambda: detectable_on_episodes(50, 0.5, correlation=-1),
    ]
    for call in bad:
        with pytest.raises(UserError) as caught:
            call()
        message = str(caught.value)
        assert message.endswith(".") and "\n" not in message and ". " not in message
