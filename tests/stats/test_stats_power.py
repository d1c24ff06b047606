"""Power against integration, tables and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lpwm.core.errors import UserError
from lpwm.stats import detectable_paired, power_paired, seeds_needed

FEW = settings(max_examples=15)


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


def test_bad_input_is_one_sentence():
    bad = [
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
        with pytest.raises(UserError) as caught:
            call()
        message = str(caught.value)
        assert message.endswith(".") and "\n" not in message and ". " not in message
