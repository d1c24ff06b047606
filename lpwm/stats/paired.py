"""Two methods compared: paired on training seeds, or two checkpoints on episodes (McNemar)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from lpwm.core.errors import UserError
from lpwm.stats.intervals import Interval, crossed_variance
from lpwm.stats.record import Floats, as_bools, check_level


@dataclass(frozen=True)
class Paired:
    """A mean difference a − b with its interval and two-sided p."""

    difference: Interval
    p: float
    n: int  # pairs
    se: float
    df: float
    method: str


def _differences(a: Any, b: Any) -> Floats:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise UserError(f"paired values have shapes {x.shape} and {y.shape}: give one value per seed for each.")
    if len(x) < 2:
        raise UserError(f"{len(x)} pairs are too few here: give at least 2 seeds.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("a paired value is not finite: leave out failed runs in both methods, and say so.")
    d = x - y
    # Equal differences of rates need not be equal in floating point; rounding noise is not spread.
    return np.full_like(d, d.mean()) if np.ptp(d) < 1e-12 * max(1.0, float(np.abs(d).max())) else d


def _by_t(mean: float, se: float, df: float, level: float, n: int, unit: str, method: str) -> Paired:
    check_level(level)
    half, p = 0.0, 0.0 if mean else 1.0
    if se:
        half = se * float(stats.t.ppf(0.5 + level / 2, df))
        p = 2 * float(stats.t.sf(abs(mean) / se, df))
    return Paired(Interval(mean, mean - half, mean + half, level, unit), p, n, se, df, method)


def paired_t(a: Any, b: Any, level: float = 0.95) -> Paired:
    """Student's t on the differences of n training seeds: d̄ ± t_{n−1}·sd(d)/√n."""
    d = _differences(a, b)
    n = len(d)
    se = float(d.std(ddof=1)) / math.sqrt(n) if np.ptp(d) else 0.0
    return _by_t(float(d.mean()), se, n - 1, level, n, "checkpoints", "paired t over seeds")


def _spread(variance: float, episodes: int) -> float:
    """The standard error; 1/(E + 2), one disagreeing episode's worth, where all E episodes agree exactly.

    Agresti and Min's half a count per cell (2005): perfect agreement is not certainty, as 100 % is not.
    """
    return math.sqrt(variance) if variance > 1e-24 else 1 / (episodes + 2)


def paired_crossed(d_SE: Floats, level: float = 0.95) -> Paired:
    """The mean difference when seeds *and* episodes are samples; d_se is a difference of planner-seed means.

    Paired t is blind to an episode that favors one method in every checkpoint; see `crossed_variance`. The
    interval is paired t's wherever the episodes add nothing.
    """
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
    """McNemar's exact test: of the episodes that only one solved, a's share is Bin(m, ½) under equality.

    It compares two *checkpoints*, not two methods. The interval of the difference is Tango's score interval
    (1998), which may touch 0 when the exact p is just above 1 − level: the exact test is the stricter.
    """
    check_level(level)
    a, b = as_bools(a_E, "the first success array"), as_bools(b_E, "the second success array")
    if a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise UserError(
            f"McNemar's test got shapes {a.shape} and {b.shape}: give one success per episode, the same episodes, "
            "for one checkpoint and one planner seed each."
        )
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    m = only_a + only_b
    p = min(1.0, 2 * float(stats.binom.cdf(min(only_a, only_b), m, 0.5)))
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
