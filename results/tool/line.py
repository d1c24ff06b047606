"""One line under a claim, and the intervals of what is not planned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from lpwm.stats import Interval
from lpwm.stats.paired import detectable_ncp

from .claims import Claim, Query
from .read import Planned, Studied
from .runs import Trained
from .verdict import Verdict


@dataclass(frozen=True)
class Evidence:
    """One line under a claim."""

    claim: Claim
    ours: str
    seeds: int
    size: str
    protocol: str
    reduced: bool
    verdict: Verdict
    files: tuple[str, ...] = ()
    interval: Interval | None = None
    also: str = ""  # the same by another measure
    reached: Verdict | None = None  # of a difference in goals held at the end: the same of those reached on the way
    reached_interval: Interval | None = None
    rank: tuple[Any, ...] = ()


def wanted(run: Trained, query: Query, method: str) -> bool:
    if not run.usual:  # those are of contrasts alone
        return False
    if run.family not in query.families or run.method != method or query.rung not in ("", run.parts[1]):
        return False
    if query.latent not in (None, run.known.get("model.latent")):
        return False
    if method != "lpwm-tj" or run.tj is None:
        return True
    return math.isclose(run.tj, 0.01 if query.tj is None else query.tj)  # 0.01: the paper's weight for Piecewise


def files_of(*many: Iterable[Planned | Studied]) -> tuple[str, ...]:
    return tuple(sorted({file for some in many for one in some for file in one.files}))


def point(value: float) -> Interval:
    return Interval(value, value, value, 0.95, "one checkpoint")


def over_seeds(values: Sequence[float], own: Sequence[float] = ()) -> tuple[Interval, float | None]:
    """mean ± t·√(var/n + mean(own²)) over n checkpoints; one checkpoint is a point.

    own: the standard error of each over frames or trajectories. All checkpoints are measured on the same ones, so more
    checkpoints do not make it smaller.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 1:
        return point(float(x[0])), None
    se = math.sqrt(float(x.var(ddof=1)) / len(x) + (float(np.square(own).mean()) if len(own) else 0.0))
    half, mean = float(stats.t.ppf(0.975, len(x) - 1)) * se, float(x.mean())
    return Interval(mean, mean - half, mean + half, 0.95, "checkpoints"), detectable_ncp(len(x) - 1) * se


def own_error(value: Mapping[str, Any]) -> float:
    """The standard error behind a study's own interval; 0 where it has none."""
    if value.get("low") is None or value.get("high") is None:
        return 0.0
    return float(value["high"] - value["low"]) / (2 * float(stats.norm.ppf(0.5 + value.get("level", 0.95) / 2)))
