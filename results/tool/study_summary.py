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

from .study_grid import TargetCell

Reading = dict[str, Any]
Values = list[float | None]
By = dict[tuple[TargetCell, int], dict[str, float | None]]
FOLLOW = ("off", "share", "slope", "correlation")


def flat(reading: Reading) -> dict[str, float | None]:
    """A run's measures and its success rates under one name each."""
    out = dict(reading["measures"])
    for name, found in reading["planning"].items():
        out |= {f"{what} success, {name}": value for what, value in found.items()}
    return out


def summary(readings: Sequence[Reading], seeds: Sequence[int] | None = None) -> dict[str, Any]:
    """cells, differences (coordinate − plain, a target each), follow (a kind of slices each) and overall.

    seeds: those there should be, if not those of the readings.
    """
    cells = list(dict.fromkeys(TargetCell(**r["cell"]) for r in readings))
    target = {TargetCell(**r["cell"]): r["target"] for r in readings}
    by: By = {(TargetCell(**r["cell"]), r["seed"]): flat(r) for r in readings}
    seeds = sorted(seeds if seeds is not None else {s for _, s in by})
    names = list(dict.fromkeys(n for r in by.values() for n in r))
    dead = {(TargetCell(**r["cell"]), r["seed"]): bool(r.get("dead") or r.get("failed")) for r in readings}
    rows = [
        {
            "cell": dataclasses.asdict(c),
            "target": target[c],
            "runs": sum((c, s) in by for s in seeds),
            "dead": sum(dead.get((c, s), False) for s in seeds),
            "measures": {n: interval([value(by, c, s, n) for s in seeds]) for n in names},
        }
        for c in cells
    ]
    pairs = [(c, replace(c, axis_fraction=0.0)) for c in cells if c.axis_fraction]
    gaps = [
        {
            "cell": dataclasses.asdict(c),
            "measures": {n: interval([minus(value(by, c, s, n), value(by, base, s, n)) for s in seeds]) for n in names},
        }
        for c, base in pairs
        if base in cells
    ]
    follow = [
        follows(a, [c for c in cells if c.axis_fraction == a], target, by, seeds)
        for a in sorted({c.axis_fraction for c in cells})
    ]
    return {
        "cells": rows,
        "differences": gaps,
        "follow": follow,
        "follow_differences": follow_differences(follow),
        "overall": overall(cells, by, seeds, names),
    }


def value(by: By, cell: TargetCell, seed: int, name: str) -> float | None:
    return by.get((cell, seed), {}).get(name)


def minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def interval(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Over those there are; None with fewer than two."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return None
    return dataclasses.asdict(t_interval(known)) | {"values": known, "missing": len(values) - len(known)}


def follows(
    axis: float, cells: Sequence[TargetCell], target: dict[TargetCell, Any], by: By, seeds: Sequence[int]
) -> dict[str, Any]:
    """Over the targets, a number a seed: mean |active − target|; the median of active/target; slope and correlation of
    realized on target activity.

    Slope 1 and share 1 would be obedience, slope 0 indifference. Targets differ twentyfold: the slope is that of the
    large ones, the share counts each alike. `seeds` holds a seed's own numbers.
    """
    each = []
    for s in seeds:
        known = [(target[c]["active"], v) for c in cells if (v := value(by, c, s, "active")) is not None]
        line: dict[str, float | None] = {"seed": s, **dict.fromkeys(FOLLOW)}
        if len(known) >= min(3, len(cells)):
            want, got = np.array(known).T
            line["off"] = float(np.abs(got - want).mean())
            line["share"] = float(np.median(got / want))
            if np.ptp(want) > 1e-9:
                line["slope"] = float(np.polyfit(want, got, 1)[0])
                if np.ptp(got) > 1e-9:
                    line["correlation"] = float(np.corrcoef(want, got)[0, 1])
        each.append(line)
    over = {n: interval([e[n] for e in each]) for n in FOLLOW}
    return {"axis_fraction": axis, "cells": len(cells), **over, "seeds": each}


def follow_differences(follow: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Coordinate − plain of what `follows` says of each seed."""
    base = next((f for f in follow if f["axis_fraction"] == 0), None)
    if base is None:
        return []
    return [
        {
            "axis_fraction": f["axis_fraction"],
            **{
                n: interval([minus(a[n], b[n]) for a, b in zip(f["seeds"], base["seeds"], strict=True)]) for n in FOLLOW
            },
        }
        for f in follow
        if f["axis_fraction"]
    ]


def overall(cells: Sequence[TargetCell], by: By, seeds: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Coordinate − plain over all targets both have: `measures` over seeds, `pairs` over (p, μ, seed)."""
    out = []
    for axis in sorted({c.axis_fraction for c in cells} - {0.0}):
        pairs = [c for c in cells if c.axis_fraction == axis and replace(c, axis_fraction=0.0) in cells]
        if not pairs:
            continue
        over_seeds, over_pairs = {}, {}
        for n in names:
            gaps = {
                c: [minus(value(by, c, s, n), value(by, replace(c, axis_fraction=0.0), s, n)) for s in seeds]
                for c in pairs
            }
            # A seed's mean is over the same targets for every seed, or seeds would differ by them.
            whole = [line for line in gaps.values() if all(g is not None for g in line)]
            found = interval(np.mean(np.array(whole, dtype=float), axis=0).tolist()) if whole else None
            over_seeds[n] = found and found | {"targets": len(whole)}
            over_pairs[n] = interval([g for line in gaps.values() for g in line])
        out.append({"axis_fraction": axis, "cells": len(pairs), "measures": over_seeds, "pairs": over_pairs})
    return out
