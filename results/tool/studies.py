"""Evidence from studies of codes and from the monitors of training."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lpwm.stats import Interval

from .claims import Claim
from .line import Evidence, files_of, over_seeds, own_error, wanted
from .read import Results, Studied
from .runs import Trained
from .verdict import OPEN, health, interval_text, judge, share

FREEDOM = {"pusht": 4}  # below the world's degrees of freedom (2 for the dot worlds) the code has collapsed


def quantity(study: Mapping[str, Any], name: str) -> tuple[float | None, Mapping[str, Any]]:
    """A number of a study, `correlation WHAT` (Cube) or a probe's (`zone_support`); with its own interval."""
    kind, _, what = name.replace(" ", "_").partition("_")
    place = study.get("correlations", {}) if kind == "correlation" else study.get("probes", {}).get(kind, {})
    value = place.get(what)
    return (None, {}) if value is None else (float(value["estimate"]), value)


Groups = dict[tuple[str, str, tuple[str, ...]], dict[int | str, Studied]]


def _studies(claim: Claim, results: Results, method: str) -> Groups:
    """The studies of a method on frames as it was trained, by world, size and file (one round), then by seed. Where two
    methods are compared, each at its own cell is a size of its own."""
    out: Groups = defaultdict(dict)
    for one in sorted(results.studied, key=lambda s: (-s.run.step, s.files)):
        world, run = one.study.get("world", {}), one.run
        as_trained = world.get("options", {}).get("visible", False) == world.get("trained_visible", False)
        if wanted(run, claim.query, method) and as_trained:
            for size in (run.size, *([run.at_own_cell] if claim.query.against and run.own else [])):
                out[run.family, size, one.files].setdefault(run.seed, one)
    return out


def _rank(run: Trained, seeds: int) -> tuple[Any, ...]:
    """A method's own cell counts like its recipe."""
    return run.reduced, 0 if run.own else run.other, -seeds


def from_studies(claim: Claim, results: Results) -> Iterator[Evidence]:
    """A number of each study; or its difference from another number of it, or from the same of another method."""
    q = claim.query
    mine = _studies(claim, results, q.method)
    theirs = _studies(claim, results, q.against) if q.against else mine
    for key in mine.keys() & theirs.keys():
        used, values, own = list[Studied](), list[float](), list[float]()
        for seed in sorted(mine[key].keys() & theirs[key].keys(), key=str):
            a, other = mine[key][seed], theirs[key][seed]
            value, error = quantity(a.study, q.quantity)
            less: float | None = 0.0
            less_error: Mapping[str, Any] = {}
            if q.versus or q.against:
                less, less_error = quantity(other.study, q.versus or q.quantity)
            if value is None or less is None:
                continue
            used += [a, other]
            values.append(value - less)
            own.append(math.hypot(own_error(error), own_error(less_error)))
        if values:
            yield _studied(claim, key[1], used, values, own)


def _studied(
    claim: Claim, size: str, used: Sequence[Studied], values: Sequence[float], own: Sequence[float]
) -> Evidence:
    run, study = used[0].run, used[0].study
    interval, detectable = over_seeds(values, own)
    if len(values) == 1 and own[0]:  # over trajectories or episodes of the one checkpoint
        _, known = quantity(study, claim.query.quantity)
        interval = Interval(known["estimate"], known["low"], known["high"], known["level"], "one checkpoint")
    frames = study.get("probes", {}).get("frames")
    protocol = f"{run.family}, {frames:,} held-out frames" if frames else run.family
    verdict = judge(claim, interval, len(values), detectable, run.paper)
    more: dict[str, Any] = {"files": files_of(used), "interval": interval, "rank": _rank(run, len(values))}
    return Evidence(claim, interval_text(claim, interval), len(values), size, protocol, run.reduced, verdict, **more)


def from_borders(claim: Claim, results: Results) -> Iterator[Evidence]:
    """In how many checkpoints supports differ more across zone borders than the borders' translations do, at equal
    displacement (p < 0.05); what the signs of dense codes say next to it."""
    mine, theirs = (_studies(claim, results, m) for m in (claim.query.method, claim.query.against))

    def chances(group: Mapping[int | str, Studied]) -> list[float]:
        every = [s.study.get("sharpness", {}).get("matched_translated") for s in group.values()]
        return sorted(float(m["p"]) for m in every if m and m.get("p") is not None)

    def text(ps: Sequence[float]) -> str:
        return f"{sum(p < 0.05 for p in ps)} of {len(ps)} seeds with p < 0.05 (p {ps[0]:.3f}–{ps[-1]:.3f})"

    for key, group in mine.items():
        ps, dense = chances(group), chances(theirs.get(key, {}))
        if not ps:
            continue
        run = next(iter(group.values())).run
        verdict = share(claim, sum(p < 0.05 for p in ps), len(ps), otherwise=OPEN)
        more: dict[str, Any] = {"files": files_of(group.values()), "rank": _rank(run, len(ps))}
        more["also"] = f"signs of dense codes: {text(dense)}" if dense else ""
        protocol = f"{run.family}, grid of positions"
        yield Evidence(claim, text(ps), len(ps), key[1], protocol, run.reduced, verdict, **more)


def healthy(run: Trained) -> bool:
    """No warning in the log, a relative error below 1/2 and below copying, a code of at least the world's dimension."""
    m = run.monitors
    enough = m.get("effective_dimension", 0) >= FREEDOM.get(run.family, 2)
    return not run.dead and enough and m["relative_error"] < min(0.5, m["copy_error"])


def _with_readings(results: Results) -> list[Trained]:
    """The runs; where held-out frames were read for their sparsity, that number instead of the training log's."""
    held = {
        (s.run.hash, s.run.step): float(s.study["active_fraction"]["estimate"])
        for s in results.studied
        if s.study.get("kind") == "lpwm sparsity"
    }
    return [
        replace(r, monitors={**r.monitors, "active_fraction": held[r.hash, r.step]}) if (r.hash, r.step) in held else r
        for r in results.runs
    ]


def from_monitors(claim: Claim, results: Results) -> Iterator[Evidence]:
    of_health = claim.kind == "health"
    name = "relative_error" if of_health else claim.query.quantity
    pooled: dict[tuple[str, ...], dict[int | str, Trained]] = defaultdict(dict)
    for run in sorted(_with_readings(results), key=lambda r: -r.step):
        known = name in run.monitors or (of_health and run.dead)
        if known and wanted(run, claim.query, claim.query.method):
            pooled[run.family, run.parts[1], run.size, run.file].setdefault(run.seed, run)
    for (family, rung, size, _), group in pooled.items():
        runs, interval = list(group.values()), None
        if of_health:
            good = sum(healthy(r) for r in runs)
            ours, verdict = f"{good} of {len(runs)} seeds", health(good, len(runs))
        else:
            interval, _ = over_seeds([float(r.monitors[name]) for r in runs])
            ours, verdict = interval_text(claim, interval), judge(claim, interval, len(runs), paper=runs[0].paper)
        where = f"{family}{f', {rung}' if rung else ''}: held-out frames where read, else the end of the training log"
        more: dict[str, Any] = {"interval": interval, "rank": (runs[0].reduced, runs[0].other, -len(runs))}
        yield Evidence(claim, ours, len(runs), size, where, runs[0].reduced, verdict, **more)
