"""Runs of the target study over seeds: each cell, coordinate against plain slices, and how activity follows the target.

Everything is paired on (p, μ, seed). Two intervals stand side by side, both t at 95 %: over seeds, of each seed's mean
over the targets (what new seeds would give, with these targets), and over pairs, one for every (p, μ, seed) (more of
them, but runs of one seed share their first weights and their clips). A run that diverged, failed or is not there has
no numbers: it is left out of an interval, and counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lpwm.stats import t_interval

from .study_cells import TargetCell

Reading = dict[str, Any]
Values = dict[tuple[TargetCell, int], dict[str, float | None]]
FOLLOW = ("off", "share", "slope", "correlation")


def summary(readings: Sequence[Reading], seeds: Sequence[int] | None = None) -> dict[str, Any]:
    """cells, follow (of each kind of slices), follow_differences and overall (both coordinate − plain).

    seeds: those there should be, if not those of the readings.
    """
    runs = {(TargetCell(**r["cell"]), r["seed"]): r for r in readings}
    values: Values = {job: flat(r) for job, r in runs.items()}
    cells = list(dict.fromkeys(cell for cell, _ in runs))
    seeds = sorted(seeds if seeds is not None else {s for _, s in runs})
    names = list(dict.fromkeys(n for r in values.values() for n in r))
    rows = []
    for c in cells:
        there = [runs[c, s] for s in seeds if (c, s) in runs]
        row = {"cell": dataclasses.asdict(c), "target": next(r["target"] for job, r in runs.items() if job[0] == c)}
        row |= {"runs": len(there), "dead": sum(bool(r.get("dead") or r.get("failed")) for r in there)}
        rows.append(row | {"measures": {n: interval([_value(values, c, s, n) for s in seeds]) for n in names}})
    follow = []
    for axis in sorted({c.axis_fraction for c in cells}):
        wanted = {c: row["target"]["active"] for c, row in zip(cells, rows, strict=True) if c.axis_fraction == axis}
        each = [_follows(wanted, values, s) for s in seeds]
        over = {n: interval([e[n] for e in each]) for n in FOLLOW}
        follow.append({"axis_fraction": axis, "cells": len(wanted), **over, "seeds": each})
    differences, over_all = _follow_differences(follow), _overall(cells, values, seeds, names)
    return {"cells": rows, "follow": follow, "follow_differences": differences, "overall": over_all}


def flat(reading: Reading) -> dict[str, float | None]:
    """A run's measures and its success rates under one name each."""
    out = dict(reading["measures"])
    for name, rates in reading["planning"].items():
        out |= {f"{what} success, {name}": value for what, value in rates.items()}
    return out


def interval(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Over those there are; None with fewer than two."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return None
    return dataclasses.asdict(t_interval(known)) | {"values": known, "missing": len(values) - len(known)}


def _value(values: Values, cell: TargetCell, seed: int, name: str) -> float | None:
    return values.get((cell, seed), {}).get(name)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _follows(wanted: dict[TargetCell, float], values: Values, seed: int) -> dict[str, Any]:
    """One seed over the targets: mean |active − target|; the median of active/target; slope and correlation of
    realized on target activity.

    Slope 1 and share 1 would be obedience, slope 0 indifference. Targets differ twentyfold: the slope is that of the
    large ones, the share counts each alike.
    """
    out: dict[str, Any] = {"seed": seed, **dict.fromkeys(FOLLOW)}
    known = [(want, v) for c, want in wanted.items() if (v := _value(values, c, seed, "active")) is not None]
    if len(known) < min(3, len(wanted)):
        return out
    want, got = np.array(known).T
    out |= {"off": float(np.abs(got - want).mean()), "share": float(np.median(got / want))}
    if np.ptp(want) > 1e-9:
        out["slope"] = float(np.polyfit(want, got, 1)[0])
        if np.ptp(got) > 1e-9:
            out["correlation"] = float(np.corrcoef(want, got)[0, 1])
    return out


def _follow_differences(follow: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for plain in (f for f in follow if not f["axis_fraction"]):
        for f in (f for f in follow if f["axis_fraction"]):
            pairs = list(zip(f["seeds"], plain["seeds"], strict=True))
            gaps = {n: interval([_minus(a[n], b[n]) for a, b in pairs]) for n in FOLLOW}
            out.append({"axis_fraction": f["axis_fraction"], **gaps})
    return out


def _overall(
    cells: Sequence[TargetCell], values: Values, seeds: Sequence[int], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Coordinate − plain over all targets both have: `measures` over seeds, `pairs` over (p, μ, seed)."""
    out = []
    for axis in sorted({c.axis_fraction for c in cells} - {0.0}):
        plain = {c: replace(c, axis_fraction=0.0) for c in cells if c.axis_fraction == axis}
        plain = {c: base for c, base in plain.items() if base in cells}
        if not plain:
            continue
        over_seeds, over_pairs = {}, {}
        for n in names:
            gaps = [[_minus(_value(values, c, s, n), _value(values, b, s, n)) for s in seeds] for c, b in plain.items()]
            # A seed's mean is over the same targets for every seed, or seeds would differ by them.
            whole = [line for line in gaps if None not in line]
            over = interval(np.mean(np.array(whole, dtype=float), axis=0).tolist()) if whole else None
            over_seeds[n] = over and over | {"targets": len(whole)}
            over_pairs[n] = interval([g for line in gaps for g in line])
        out.append({"axis_fraction": axis, "cells": len(plain), "measures": over_seeds, "pairs": over_pairs})
    return out
