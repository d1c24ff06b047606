"""What a comparison could have seen: power and the smallest detectable effect.

Paired over n seeds: T = d̄/(sd/√n) is noncentral t with n − 1 degrees of freedom and ncp = effect·√n/sd.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

from lpwm.core.errors import UserError


def _check(alpha: float, power: float | None = None) -> None:
    if not 0 < alpha < 1:
        raise UserError(f"alpha is {alpha}: give a fraction between 0 and 1, such as 0.05.")
    if power is not None and not alpha < power < 1:
        raise UserError(f"power is {power}: give a fraction above alpha ({alpha}) and below 1, such as 0.8.")


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


def _check_paired(n: int, sd: float) -> None:
    if n < 2:
        raise UserError(f"{n} paired seed shows no spread: give at least 2.")
    if not (math.isfinite(sd) and sd >= 0):
        raise UserError(f"the sd of the paired differences is {sd}: give a finite number, 0 or more.")


def power_paired(n: int, sd: float, effect: float, alpha: float = 0.05) -> float:
    """The chance that a two-sided paired t over n seeds shows `effect`; sd is that of the differences."""
    _check(alpha)
    _check_paired(n, sd)
    if sd == 0:
        return 1.0 if effect else alpha
    return _t_power(abs(effect) * math.sqrt(n) / sd, n - 1, alpha)


def detectable_paired(n: int, sd: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference that a paired t over n seeds shows with this power, in sd's unit."""
    _check_paired(n, sd)
    return detectable_ncp(n - 1, alpha, power) * sd / math.sqrt(n)


def seeds_needed(effect: float, sd: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """The fewest paired seeds (2 or more) that show `effect` with this power."""
    _check(alpha, power)
    _check_paired(2, sd)
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
