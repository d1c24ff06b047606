"""Intervals: `success_interval` for a success rate, `t_interval` for any mean over checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from lpwm.core.errors import UserError
from lpwm.stats.record import Floats, Result, check_level


@dataclass(frozen=True)
class Interval:
    """An estimate never travels without its bounds."""

    estimate: float
    low: float
    high: float
    level: float
    unit: str  # what was replicated: "checkpoints", "episodes of one checkpoint", …

    def text(self, *, signed: bool = False) -> str:
        """Per cent with one decimal: `62.3 % [51.0, 72.4]`."""
        sign = "+" if signed else ""
        # + 0.0 turns −0.0 into 0.0
        e, low, high = (round(100 * x, 1) + 0.0 for x in (self.estimate, self.low, self.high))
        return f"{e:{sign}.1f} % [{low:{sign}.1f}, {high:{sign}.1f}]"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def wilson_bounds(rate: float, n: float, quantile: float) -> tuple[float, float]:
    """All p with |rate − p| ≤ q·√(p(1−p)/n): (rate + q²/2n ± q√(rate(1−rate)/n + q²/4n²)) / (1 + q²/n)."""
    q2 = quantile**2 / n
    half = quantile * math.sqrt(rate * (1 - rate) / n + q2 / (4 * n))
    low, high = ((rate + q2 / 2 - half) / (1 + q2), (rate + q2 / 2 + half) / (1 + q2))
    # Exact at the ends, where rounding would leave 1e-17 on the wrong side.
    return (0.0 if rate == 0 else max(low, 0.0), 1.0 if rate == 1 else min(high, 1.0))


def t_interval(values: Any, level: float = 0.95) -> Interval:
    """mean ± t_{n−1}·sd/√n over n checkpoints."""
    check_level(level)
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise UserError("a t interval needs at least 2 finite values, one per checkpoint.")
    half = float(stats.t.ppf(0.5 + level / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half, level, "checkpoints")


def crossed_variance(x_SE: Floats) -> tuple[Floats, Floats]:
    """The variance of mean(x) when both seeds and episodes are drawn at random, and its degrees of freedom.

    x_se = μ + α_s + β_e + ε_se, leading axes are a batch. With the two-way mean squares

        V = (max(MS_S, MS_SE) + max(0, MS_E − MS_SE)) / (S·E)

    which estimates σ_α²/S + σ_β²/E + σ_ε²/(SE) (Satterthwaite's degrees of freedom). MS_S estimates the residual's
    variance and more, so a few seeds that happen to agree do not push V below the noise of their episodes: where
    MS_SE takes its place, so do its (S−1)(E−1) degrees of freedom. The second term is what the seeds cannot show,
    since they all ran the same episodes. Where neither maximum changes anything, V = var(checkpoint means)/S on S − 1
    degrees of freedom, the ordinary t over checkpoints.
    """
    S, E = x_SE.shape[-2:]
    assert S > 1 and E > 1
    mean_S = x_SE.mean(-1, keepdims=True)
    mean_E = x_SE.mean(-2, keepdims=True)
    mean = mean_S.mean(-2, keepdims=True)
    ms_S = E * np.square(mean_S - mean).sum((-2, -1)) / (S - 1)
    ms_E = S * np.square(mean_E - mean).sum((-2, -1)) / (E - 1)
    ms_SE = np.square(x_SE - mean_S - mean_E + mean).sum((-2, -1)) / ((S - 1) * (E - 1))
    # Equal mean squares differ by rounding, and the degrees of freedom would follow its sign.
    extra = np.where(ms_E - ms_SE > 1e-9 * (ms_E + ms_SE), ms_E - ms_SE, 0.0)
    floored = ms_SE - ms_S > 1e-9 * (ms_SE + ms_S)
    total = np.where(floored, ms_SE, ms_S) + extra
    spread = ms_S**2 / (S - 1) + ms_E**2 / (E - 1) + ms_SE**2 / ((S - 1) * (E - 1))
    satterthwaite = np.maximum(total**2 / np.where(spread > 0, spread, 1.0), 1.0)
    residual = (S - 1) * (E - 1)
    # Floored, MS_SE cancels and MS_E alone is left.
    df = np.where(extra > 0, np.where(floored, E - 1, satterthwaite), np.where(floored, residual, S - 1.0))
    return total / (S * E), df.astype(np.float64)


def success_interval(result: Result, level: float = 0.95) -> Interval:
    """The success rate of a *method*: its checkpoints are the sample, trials within one are not independent.

    Wilson's interval with the effective number of trials n = r(1−r)/V and t in place of z, V and its degrees
    of freedom from `crossed_variance` (Korn & Graubard's idea, 1998, with Wilson's bounds). n is at most the
    number of trials. At 0 % and 100 %, where V = 0, n is the number of distinct episodes: repeating one with
    other seeds teaches less than a new one.

    One checkpoint: nothing is known of the next one, and the interval, over episodes alone, says so in `unit`.
    With one planner seed it is Wilson's.
    """
    check_level(level)
    S, P, E = result.success_SPE.shape
    rate, cells = result.rate, result.cells_SE
    if S == 1:
        variance, df = float(cells[0].var()) / E, math.inf
        unit = "episodes" if result.control else "episodes of one checkpoint"
    elif E == 1:
        variance, df, unit = float(cells[:, 0].var(ddof=1)) / S, S - 1, "checkpoints on one episode"
    else:
        v, nu = crossed_variance(cells)
        variance, df, unit = float(v), float(nu), "checkpoints"
    n = float(E) if rate in (0.0, 1.0) else min(rate * (1 - rate) / max(variance, 1e-300), float(S * P * E))
    low, high = wilson_bounds(rate, n, float(stats.t.ppf(0.5 + level / 2, df)))
    return Interval(rate, low, high, level, unit)
