"""Two methods compared: paired on training seeds, or two checkpoints on episodes (McNemar); and what such a comparison
could have seen. Paired over n seeds, T = d̄/(sd/√n) is noncentral t with n − 1 degrees of freedom and
ncp = effect·√n/sd."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from lpwm.core.errors import UserError
from lpwm.stats.intervals import Floats, Interval, as_bools, check_level, crossed_variance


@dataclass(frozen=True)
class Paired:
    """A mean difference a − b with its interval and two-sided p."""

    difference: Interval
    p: float
    n: int  # pairs
    se: float
    df: float
    method: str


def _by_t(mean: float, se: float, df: float, level: float, n: int, unit: str, method: str) -> Paired:
    check_level(level)
    half, p = 0.0, 0.0 if mean else 1.0
    if se:
        half = se * float(stats.t.ppf(0.5 + level / 2, df))
        p = 2 * float(stats.t.sf(abs(mean) / se, df))
    return Paired(Interval(mean, mean - half, mean + half, level, unit), p, n, se, df, method)


def _spread(variance: float, episodes: int) -> float:
    """The standard error; 1/(E + 2), one disagreeing episode's worth, where all E episodes agree exactly. Agresti and
    Min's half a count per cell (2005): perfect agreement is not certainty, as 100 % is not."""
    return math.sqrt(variance) if variance > 1e-24 else 1 / (episodes + 2)


def paired_crossed(d_SE: Floats, level: float = 0.95) -> Paired:
    """The mean difference when seeds *and* episodes are samples; d_se is a difference of planner-seed means. Paired t
    is blind to an episode that favors one method in every checkpoint; see `crossed_variance`. The interval is paired
    t's wherever the episodes add nothing."""
    S, E = d_SE.shape
    variance, df = crossed_variance(d_SE)
    se = _spread(float(variance), E)
    return _by_t(float(d_SE.mean()), se, float(df), level, S, "checkpoints", "crossed t over seeds and episodes")


def paired_episodes(d_E: Floats, level: float = 0.95) -> Paired:
    """One checkpoint of each method: t over episodes. It says nothing about the next training seed."""
    E, unit = len(d_E), "episodes of one checkpoint"
    se = _spread(float(d_E.var(ddof=1)) / E, E)
    return _by_t(float(d_E.mean()), se, E - 1, level, 1, unit, f"t over {unit}")


def welch(a: Floats, b: Floats, level: float = 0.95) -> Paired:
    """Two unpaired samples of checkpoints, unequal variances."""
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    spread = va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)
    df = (va + vb) ** 2 / spread if spread else float(len(a) + len(b) - 2)
    mean, n = float(a.mean() - b.mean()), min(len(a), len(b))
    return _by_t(mean, math.sqrt(va + vb), df, level, n, "unpaired checkpoints", "Welch's t over unpaired seeds")


@dataclass(frozen=True)
class McNemar:
    """Two checkpoints on the same episodes."""

    only_a: int
    only_b: int
    n: int
    difference: Interval
    p: float


def mcnemar(a_E: Any, b_E: Any, level: float = 0.95) -> McNemar:
    """McNemar's exact test: of the episodes that only one solved, a's share is Bin(m, ½) under equality. It compares
    two *checkpoints*, not two methods. The interval of the difference is Tango's score interval (1998), which may touch
    0 when the exact p is just above 1 − level: the exact test is the stricter."""
    check_level(level)
    a, b = as_bools(a_E, "the first success array"), as_bools(b_E, "the second success array")
    if a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise UserError(
            f"McNemar's test got shapes {a.shape} and {b.shape}: give one success per episode, the same episodes, "
            "for one checkpoint and one planner seed each."
        )
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    p = min(1.0, 2 * float(stats.binom.cdf(min(only_a, only_b), only_a + only_b, 0.5)))
    low, high = _tango(only_a, only_b, len(a), float(special.ndtri(0.5 + level / 2)))
    return McNemar(only_a, only_b, len(a), Interval((only_a - only_b) / len(a), low, high, level, "episodes"), p)


def _tango(b: int, c: int, n: int, z: float) -> tuple[float, float]:
    """All Δ with |b − c − nΔ| ≤ z·√(n(2q + Δ(1−Δ))), q = P(only b) at its maximum likelihood given Δ."""

    def excess(delta: float, side: int) -> float:
        B = -b - c + (2 * n - b + c) * delta
        q = (math.sqrt(max(B * B + 8 * n * c * delta * (1 - delta), 0.0)) - B) / (4 * n)
        variance = max(n * (2 * q + delta * (1 - delta)), 0.0)
        return side * (b - c - n * delta) - z * math.sqrt(variance)

    # Just off the center: with no discordant episode the center itself is a spurious root.
    center, edge, off = (b - c) / n, 1 - 1e-12, 1e-9
    low = -1.0 if c == n else float(optimize.brentq(lambda x: excess(x, +1), -edge, center - off))
    high = 1.0 if b == n else float(optimize.brentq(lambda x: excess(x, -1), center + off, edge))
    return low, high


def _check(alpha: float = 0.05, power: float = 0.999, n: int = 2, sd: float = 0.0) -> None:
    if not 0 < alpha < power < 1:
        raise UserError(f"alpha is {alpha} and power {power}: give fractions, the power above alpha, as 0.05 and 0.8.")
    if n < 2:
        raise UserError(f"{n} paired seed shows no spread: give at least 2.")
    if not (math.isfinite(sd) and sd >= 0):
        raise UserError(f"the sd of the paired differences is {sd}: give a finite number, 0 or more.")


def _t_power(ncp: float, df: float, alpha: float) -> float:
    """P(|T| > t_{1−α/2}) for T noncentral t: exact, both tails."""
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    # The wrong tail. Far out, where it is below 1e-15, scipy's series can give NaN.
    wrong_side = np.nan_to_num(special.nctdtr(df, ncp, -critical), nan=0.0)
    return float(1 - special.nctdtr(df, ncp, critical) + wrong_side)


def detectable_ncp(df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """How many standard errors an effect must measure to be seen with this power."""
    _check(alpha, power)
    if df > 1e4:  # the normal limit; noncentral t loses digits long before
        return float(special.ndtri(1 - alpha / 2) + special.ndtri(power))
    high = 4.0
    while _t_power(high, df, alpha) < power:
        high *= 2
    return float(optimize.brentq(lambda x: _t_power(x, df, alpha) - power, 0.0, high, xtol=1e-10))


def power_paired(n: int, sd: float, effect: float, alpha: float = 0.05) -> float:
    """The chance that a two-sided paired t over n seeds shows `effect`; sd is that of the differences."""
    _check(alpha, n=n, sd=sd)
    if sd == 0:
        return 1.0 if effect else alpha
    return _t_power(abs(effect) * math.sqrt(n) / sd, n - 1, alpha)


def detectable_paired(n: int, sd: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference that a paired t over n seeds shows with this power, in sd's unit."""
    _check(alpha, power, n, sd)
    return detectable_ncp(n - 1, alpha, power) * sd / math.sqrt(n)


def seeds_needed(effect: float, sd: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """The fewest paired seeds (2 or more) that show `effect` with this power."""
    _check(alpha, power, sd=sd)
    if not (math.isfinite(effect) and effect != 0):
        raise UserError(f"no number of seeds shows an effect of {effect}: give a finite difference other than 0.")
    low, high = 1, 2
    while power_paired(high, sd, effect, alpha) < power:
        low, high = high, 2 * high
        if high > 1e7:
            raise UserError("more than ten million seeds would be needed: look for a larger effect.")
    while high - low > 1:  # power grows with n
        middle = (low + high) // 2
        low, high = (low, middle) if power_paired(middle, sd, effect, alpha) >= power else (middle, high)
    return high
