"""Two methods compared, paired on training seeds, and what such a comparison could have seen. Paired over n seeds,
T = d̄/(sd/√n) is noncentral t with n − 1 degrees of freedom and ncp = effect·√n/sd."""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import scipy

from lpwm.core.errors import UserError
from lpwm.stats.intervals import Floats, Interval, check_level, crossed_variance


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
        half = se * float(scipy.special.stdtrit(df, 0.5 + level / 2))
        p = 2 * float(scipy.special.stdtr(df, -abs(mean) / se))
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


def _check(alpha: float = 0.05, power: float = 0.999, n: int = 2, sd: float = 0.0) -> None:
    if not 0 < alpha < power < 1:
        raise UserError(f"alpha is {alpha} and power {power}: give fractions, the power above alpha, as 0.05 and 0.8.")
    if n < 2:
        raise UserError(f"{n} paired seed shows no spread: give at least 2.")
    if not (math.isfinite(sd) and sd >= 0):
        raise UserError(f"the sd of the paired differences is {sd}: give a finite number, 0 or more.")


def _t_power(ncp: float, df: float, alpha: float) -> float:
    """P(|T| > t_{1−α/2}) for T noncentral t: exact, both tails."""
    critical = float(scipy.special.stdtrit(df, 1 - alpha / 2))
    # The wrong tail. Far out, where it is below 1e-15, scipy's series can give NaN.
    wrong_side = np.nan_to_num(scipy.special.nctdtr(df, ncp, -critical), nan=0.0)
    return float(1 - scipy.special.nctdtr(df, ncp, critical) + wrong_side)


def detectable_ncp(df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """How many standard errors an effect must measure to be seen with this power."""
    _check(alpha, power)
    if df > 1e4:  # the normal limit; noncentral t loses digits long before
        return float(scipy.special.ndtri(1 - alpha / 2) + scipy.special.ndtri(power))
    high = 4.0
    while _t_power(high, df, alpha) < power:
        high *= 2
    return float(scipy.optimize.brentq(lambda x: _t_power(x, df, alpha) - power, 0.0, high, xtol=1e-10))


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
    n = 2 + bisect_left(range(2, 10**7), power, key=lambda n: power_paired(n, sd, effect, alpha))  # it grows with n
    if n == 10**7:
        raise UserError("more than ten million seeds would be needed: look for a larger effect.")
    return n
