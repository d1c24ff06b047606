"""What was measured, and its interval: `success_interval` for a success rate, `t_interval` for any mean. S training
seeds (checkpoints), P planner seeds, E episodes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

from lpwm.core.errors import UserError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UserError(f"the confidence level is {level}: give a fraction between 0 and 1, such as 0.95.")


def _ids(given: Iterable[int | str] | None, size: int, what: str, name: str) -> tuple[int | str, ...]:
    ids = tuple(range(size)) if given is None else tuple(given)
    if len(ids) != size or len(set(ids)) != size:
        raise UserError(f"result {name!r} has {size} {what}s but {len(set(ids))} {what} ids: give each its own.")
    return ids


@dataclass(frozen=True, eq=False)
class Result:
    """The successes of one method.

    success_SPE  bool (S, P, E); rows are checkpoints
    episodes     E ids: two results can be compared only on the same ids
    seeds        S training-seed ids: comparisons are paired on them
    control      nothing was trained (do nothing, random actions, the true simulator): S = 1, and the one
                 row is paired with every seed of the method it is compared with
    """

    name: str
    success_SPE: Bools
    episodes: tuple[int | str, ...]
    seeds: tuple[int | str, ...]
    control: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        success_SPE: Any,
        *,
        episodes: Iterable[int | str],
        seeds: Iterable[int | str] | None = None,
        control: bool = False,
    ) -> "Result":
        """Checked and built; seeds are numbered from 0 unless given, episode ids must be given."""
        success = np.asarray(success_SPE)
        if success.dtype != np.bool_ and (success.dtype.kind not in "iuf" or not np.isin(success, (0, 1)).all()):
            raise UserError(f"successes of {name!r} must be true and false (or 1 and 0): threshold them first.")
        success = success.astype(np.bool_)
        if success.ndim != 3 or 0 in success.shape:
            raise UserError(f"successes of {name!r} have shape {success.shape}: give (seeds, planner seeds, episodes).")
        S, _, E = success.shape
        if control and S != 1:
            raise UserError(f"control {name!r} has {S} training seeds: a control is not trained, give it one row.")
        success.flags.writeable = False
        return cls(name, success, _ids(episodes, E, "episode", name), _ids(seeds, S, "training seed", name), control)

    @property
    def rate(self) -> float:
        return float(self.success_SPE.mean())

    @property
    def cells_SE(self) -> Floats:
        """The mean over planner seeds."""
        return self.success_SPE.mean(axis=1)

    def only(
        self, *, seeds: Iterable[int | str] | None = None, episodes: Iterable[int | str] | None = None
    ) -> "Result":
        """The same result on some training seeds or episodes, in the order given."""
        seeds = tuple(self.seeds if seeds is None else seeds)
        episodes = tuple(self.episodes if episodes is None else episodes)
        for what, have, wanted in (("training seed", self.seeds, seeds), ("episode", self.episodes, episodes)):
            missing = [item for item in wanted if item not in have]
            if missing:
                raise UserError(f"result {self.name!r} has no {what} {missing[0]!r}, only {', '.join(map(str, have))}.")
        rows, columns = [self.seeds.index(s) for s in seeds], [self.episodes.index(e) for e in episodes]
        success = self.success_SPE[rows][:, :, columns]
        return Result.of(self.name, success, episodes=episodes, seeds=seeds, control=self.control)


@dataclass(frozen=True)
class Interval:
    """An estimate never travels without its bounds."""

    estimate: float
    low: float
    high: float
    level: float
    unit: str  # what was replicated: "checkpoints", "episodes of one checkpoint", …

    def text(self, *, signed: bool = False) -> str:
        """One decimal: `62.3 % [51.0, 72.4]`; a difference: `+5.1 points [+1.0, +9.2]`."""
        sign, unit = ("+", "points") if signed else ("", "%")
        # + 0.0 turns −0.0 into 0.0
        e, low, high = (round(100 * x, 1) + 0.0 for x in (self.estimate, self.low, self.high))
        return f"{e:{sign}.1f} {unit} [{low:{sign}.1f}, {high:{sign}.1f}]"

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
    half = float(scipy.special.stdtrit(len(x) - 1, 0.5 + level / 2) * x.std(ddof=1) / math.sqrt(len(x)))
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half, level, "checkpoints")


def crossed_variance(x_SE: Floats) -> tuple[Floats, Floats]:
    """The variance of mean(x) when both seeds and episodes are drawn at random, and its degrees of freedom.

    x_se = μ + α_s + β_e + ε_se, leading axes are a batch. With the two-way mean squares

        V = (max(MS_S, MS_SE) + max(0, MS_E − MS_SE)) / (S·E)

    which estimates σ_α²/S + σ_β²/E + σ_ε²/(SE), on Satterthwaite's degrees of freedom. The first maximum keeps seeds
    that happen to agree from pushing V below the noise of their episodes; the second term is what the seeds cannot
    show, since they all ran the same episodes. Where neither changes anything, this is the t over checkpoints.
    """
    S, E = x_SE.shape[-2:]
    assert S > 1 and E > 1
    mean_S, mean_E = x_SE.mean(-1, keepdims=True), x_SE.mean(-2, keepdims=True)
    mean = mean_S.mean(-2, keepdims=True)
    residual = (S - 1) * (E - 1)
    ms_S = E * np.square(mean_S - mean).sum((-2, -1)) / (S - 1)
    ms_E = S * np.square(mean_E - mean).sum((-2, -1)) / (E - 1)
    ms_SE = np.square(x_SE - mean_S - mean_E + mean).sum((-2, -1)) / residual
    # Equal mean squares differ by rounding, and the degrees of freedom would follow its sign.
    extra = np.where(ms_E - ms_SE > 1e-9 * (ms_E + ms_SE), ms_E - ms_SE, 0.0)
    floored = ms_SE - ms_S > 1e-9 * (ms_SE + ms_S)
    total = np.where(floored, ms_SE, ms_S) + extra
    spread = ms_S**2 / (S - 1) + ms_E**2 / (E - 1) + ms_SE**2 / residual
    satterthwaite = np.maximum(total**2 / np.where(spread > 0, spread, 1.0), 1.0)
    # Floored, MS_SE cancels and MS_E alone is left.
    df = np.where(extra > 0, np.where(floored, E - 1, satterthwaite), np.where(floored, residual, S - 1.0))
    return total / (S * E), df.astype(np.float64)


def success_interval(result: Result, level: float = 0.95) -> Interval:
    """The success rate of a *method*: its checkpoints are the sample, trials within one are not independent.

    Wilson's interval with the effective number of trials n = r(1−r)/V and t in place of z, V and its degrees of
    freedom from `crossed_variance` (Korn & Graubard's idea, 1998). n is at most the number of trials, and that of
    distinct episodes at 0 % and 100 %, where V = 0. One checkpoint: over its episodes alone, and `unit` says so.
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
    low, high = wilson_bounds(rate, n, float(scipy.special.stdtrit(df, 0.5 + level / 2)))
    return Interval(rate, low, high, level, unit)
