"""From what was read to evidence: every claim with every size and protocol at which something speaks to it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lpwm.interpret.compare import MEASURES
from lpwm.stats import Interval, Result, compare, paired_t, success_interval, t_interval
from lpwm.stats.power import detectable_ncp

from .claims import Claim, Reads
from .read import Planned, Results, Studied, Trained
from .verdict import INCONCLUSIVE, Verdict, health, interval_text, judge, share

FREEDOM = {"pusht": 4}  # below the world's degrees of freedom (2 for the dot worlds) the code has collapsed


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
    files: tuple[str, ...]
    found: Interval | None = None
    also: str = ""  # the same by another measure
    rank: tuple[Any, ...] = ()


def evidence(claim: Claim, results: Results) -> list[Evidence]:
    """Best first, by a rule that does not know the outcome; [] when nothing was run."""
    found = SOURCES[claim.reads.source](claim, results)
    return sorted(found, key=lambda e: (e.rank, e.size, e.protocol))


def wanted(run: Trained, reads: Reads, method: str) -> bool:
    family = run.family in reads.families
    same = run.method == method and (not reads.rung or run.parts[1] == reads.rung)
    weight = reads.tj if method == "lpwm-tj" or not method.startswith("lpwm") else None
    tj = run.tj is None or weight is None or math.isclose(run.tj, weight)
    if method == "lpwm-tj" and reads.tj is None:  # the paper's weight for Piecewise
        tj = run.tj is None or math.isclose(run.tj, 0.01)
    return family and same and tj and (reads.latent is None or run.known.get("model.latent") == reads.latent)


def _matching(claim: Claim, results: Results, method: str) -> list[Planned]:
    r = claim.reads
    return [
        p
        for p in results.planned
        if wanted(p.run, r, method)
        and p.goals == r.goals
        and (r.receding is None or p.receding == r.receding)
        and (not r.loop or (r.loop == "open") == p.open_loop)
    ]


Group = dict[int | str, Planned]  # by training seed


def groups(planned: Iterable[Planned], by_method: bool = False) -> dict[tuple[Any, ...], Group]:
    """Checkpoints that may be pooled. A seed evaluated twice counts once: the longest trained, then the first file."""
    out: dict[tuple[Any, ...], Group] = defaultdict(dict)
    for p in sorted(planned, key=lambda p: (-p.run.step, p.files)):
        key = (*p.key, p.run.parts[2], p.run.tj) if by_method else p.key
        out[key].setdefault(p.run.seed, p)
    return out


def with_all_episodes(found: dict[tuple[Any, ...], Group]) -> dict[tuple[Any, ...], Group]:
    """These groups, and of those that are the same checkpoints on other episodes all episodes together."""
    alike: dict[Any, list[Group]] = defaultdict(list)
    for group in found.values():
        first = next(iter(group.values()))
        checkpoints = frozenset((seed, p.run.hash, p.run.step) for seed, p in group.items())
        alike[first.way, checkpoints].append(group)
    out = dict(found)
    for many in alike.values():
        if len(many) > 1:
            many.sort(key=lambda group: next(iter(group.values())).digest)
            whole = {seed: _one_of([group[seed] for group in many]) for seed in many[0]}
            out[next(iter(whole.values())).key] = whole
    return out


def _one_of(parts: list[Planned]) -> Planned:
    """A checkpoint on all episodes on which it was evaluated; what doing nothing reaches is the most of it."""
    success = {m: np.concatenate([p.success[m] for p in parts], axis=1) for m in parts[0].success}
    floor = {m: max(p.floor.get(m, 0.0) for p in parts) for p in parts for m in p.floor}
    digest = "+".join(p.digest for p in parts)
    return replace(parts[0], success=success, floor=floor, files=_files(parts), digest=digest)


def conflicts(results: Results) -> list[str]:
    """Checkpoints that were evaluated twice, alike in all that is recorded, and came out differently."""
    first: dict[tuple[Any, ...], Planned] = {}
    out = []
    for p in sorted(results.planned, key=lambda p: p.files):
        other = first.setdefault((*p.key, p.run.hash, p.run.step), p)
        if any((p.success[m] != other.success[m]).any() for m in p.success):
            out.append(f"{p.run.recipe} seed {p.run.seed} ({p.protocol}): {', '.join(other.files + p.files)}")
    return out


def result_of(name: str, group: Group, seeds: Sequence[int | str], measure: str) -> Result:
    success = np.array([group[s].success[measure] for s in seeds])
    return Result.of(name, success, episodes=range(success.shape[2]), seeds=seeds)


def _rank(claim: Claim, group: Group, seeds: int) -> tuple[Any, ...]:
    p, wished = next(iter(group.values())), claim.reads.budgets
    preferred = wished.index(p.budget) if p.budget in wished else len(wished)
    return (p.run.reduced, p.run.other, preferred, -seeds, -p.effort, -p.episodes)


def _files(*many: Iterable[Planned | Studied]) -> tuple[str, ...]:
    return tuple(sorted({file for some in many for one in some for file in one.files}))


def _success(claim: Claim, results: Results) -> list[Evidence]:
    def of(method: str) -> dict[tuple[Any, ...], Group]:
        found = (p for p in _matching(claim, results, method) if p.horizon == claim.reads.horizon)
        return with_all_episodes(groups(found))

    mine = of(claim.reads.method)
    if not claim.reads.against:
        return [_level(claim, group) for group in mine.values()]
    theirs = of(claim.reads.against)
    return [_difference(claim, mine[k], theirs[k]) for k in mine if k in theirs]


def _level(claim: Claim, group: Group) -> Evidence:
    seeds = sorted(group, key=str)
    first, measure = group[seeds[0]], claim.reads.quantity
    found = success_interval(result_of(claim.id, group, seeds, measure))
    other = success_interval(result_of(claim.id, group, seeds, "terminal"))
    return Evidence(
        claim,
        interval_text(claim, found),
        len(seeds),
        first.run.size,
        first.protocol,
        first.run.reduced,
        judge(claim, found, len(seeds)),
        _files(group.values()),
        found,
        f"terminal {interval_text(claim, other)}",
        _rank(claim, group, len(seeds)),
    )


def _difference(claim: Claim, a: Group, b: Group) -> Evidence:
    shared = sorted(a.keys() & b.keys(), key=str)
    first, files = next(iter(a.values())), _files(a.values(), b.values())
    rank = _rank(claim, a, len(shared))
    if not shared:
        verdict = judge(claim, Interval(0, 0, 0, 0.95, ""), 0)
        return Evidence(claim, "–", 0, first.run.size, first.protocol, first.run.reduced, verdict, files, rank=rank)
    measured = {m: compare(result_of("a", a, shared, m), result_of("b", b, shared, m)) for m in ("latched", "terminal")}
    found = measured[claim.reads.quantity]
    verdict = judge(claim, found.difference, len(shared), found.smallest_detectable)
    floor = max(p.floor.get(claim.reads.quantity, 0.0) for p in (*a.values(), *b.values()))
    if max(found.rate_a.estimate, found.rate_b.estimate) <= floor:
        verdict = Verdict(INCONCLUSIVE, "neither does better than the controls", verdict.exploratory)
    rates = f"{100 * found.rate_a.estimate:.1f} % against {100 * found.rate_b.estimate:.1f} %"
    return Evidence(
        claim,
        f"{interval_text(claim, found.difference)} ({rates})",
        len(shared),
        first.run.size,
        first.protocol,
        first.run.reduced,
        verdict,
        files,
        found.difference,
        f"terminal {interval_text(claim, measured['terminal'].difference)}",
        rank,
    )


def _of_values(claim: Claim, values: Sequence[float]) -> tuple[Interval, float | None]:
    """t over checkpoints; one checkpoint is a point. The smallest effect that a paired t would have shown."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 1:
        return Interval(float(x[0]), float(x[0]), float(x[0]), 0.95, "one checkpoint"), None
    if claim.kind in ("difference", "parity"):
        test = paired_t(x, np.zeros_like(x))
        return test.difference, detectable_ncp(test.df) * test.se
    return t_interval(x), None


def any_horizon(p: Planned, instead: str) -> str:
    """The protocol without its H; whether a plan starts warm follows from H and R."""
    return p.protocol.replace(" warm", "").replace(f"H={p.horizon} ", instead)


def _horizons(claim: Claim, results: Results) -> list[Evidence]:
    """Per seed, over the horizons that both have: the mean gap, or its slope in H."""
    r = claim.reads
    sides = []
    for method in (r.method, r.against):
        table: dict[tuple[Any, ...], dict[int, Group]] = defaultdict(dict)
        for group in groups(_matching(claim, results, method)).values():
            p = next(iter(group.values()))
            same = (*p.way[:3], any_horizon(p, ""), *p.way[4:], p.digest)
            table[same][p.horizon] = group
        sides.append(table)
    out = []
    for key in sides[0].keys() & sides[1].keys():
        a, b = sides[0][key], sides[1][key]
        depths = sorted(a.keys() & b.keys())
        seeds = (
            sorted(set.intersection(*(set(g.keys()) for h in depths for g in (a[h], b[h]))), key=str) if depths else []
        )
        if len(depths) < 3 or not seeds:
            continue
        gap_SH = np.array(
            [
                [float(a[h][s].success["latched"].mean() - b[h][s].success["latched"].mean()) for h in depths]
                for s in seeds
            ]
        )
        values = gap_SH.mean(1) if r.quantity == "mean" else np.polyfit(depths, gap_SH.T, 1)[0]
        found, detectable = _of_values(claim, values.tolist())
        verdict = judge(claim, found, len(seeds), detectable)
        behind = [h for h, g in zip(depths, gap_SH.mean(0), strict=True) if g <= 0]
        if r.quantity == "mean" and behind and verdict.verdict == "reproduced":
            verdict = Verdict(
                "inconclusive", f"ahead on average, not at H = {', '.join(map(str, behind))}", verdict.exploratory
            )
        first = a[depths[0]][seeds[0]]
        protocol = any_horizon(first, f"H={depths[0]}…{depths[-1]} ")
        out.append(
            Evidence(
                claim,
                interval_text(claim, found),
                len(seeds),
                first.run.size,
                protocol,
                first.run.reduced,
                verdict,
                _files(*(g.values() for x in (a, b) for g in x.values())),
                found,
                rank=_rank(claim, a[depths[0]], len(seeds)),
            )
        )
    return out


def quantity(study: Any, name: str) -> float | None:
    """A number of a study by its name in interpret.compare.MEASURES, or `correlation WHAT` (Cube)."""
    found = _own(study, name)
    return None if found is None else float(found["estimate"] if isinstance(found, dict) else found)


def _own(study: Any, name: str) -> Any:
    """The number as the study has it, with its own interval where it has one."""
    if name.startswith("correlation "):
        return study.get("correlations", {}).get(name.split(" ", 1)[1])
    try:
        return MEASURES[name].of(study)
    except (KeyError, TypeError):
        return None


def _study(claim: Claim, results: Results) -> list[Evidence]:
    r = claim.reads
    pooled: dict[tuple[str, str], dict[int | str, tuple[Studied, float]]] = defaultdict(dict)
    for one in sorted(results.studied, key=lambda s: (-s.run.step, s.file)):
        world = one.study.get("world", {})
        drawn = world.get("options", {}).get("visible", False) == world.get("trained_visible", False)
        value = quantity(one.study, r.quantity)
        less = quantity(one.study, r.versus) if r.versus else 0.0
        if wanted(one.run, r, r.method) and drawn and value is not None and less is not None:
            pooled[one.run.family, one.run.size].setdefault(one.run.seed, (one, value - less))
    out = []
    for group in pooled.values():
        first = next(iter(group.values()))[0]
        found, detectable = _of_values(claim, [v for _, v in group.values()])
        own = None if len(group) > 1 or r.versus else _own(first.study, r.quantity)
        if isinstance(own, dict) and "low" in own:  # over trajectories or episodes of the one checkpoint
            found = Interval(own["estimate"], own["low"], own["high"], own["level"], "one checkpoint")
        frames = first.study.get("probes", {}).get("frames")
        protocol = f"{first.run.family}, {frames:,} held-out frames" if frames else first.run.family
        rank = (first.run.reduced, first.run.other, -len(group))
        out.append(
            Evidence(
                claim,
                interval_text(claim, found),
                len(group),
                first.run.size,
                protocol,
                first.run.reduced,
                judge(claim, found, len(group), detectable),
                _files(s for s, _ in group.values()),
                found,
                rank=rank,
            )
        )
    return out


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


def _monitors(claim: Claim, results: Results) -> list[Evidence]:
    name = "relative_error" if claim.kind == "health" else claim.reads.quantity
    pooled: dict[tuple[str, str, str], dict[int | str, Trained]] = defaultdict(dict)
    for run in sorted(_with_readings(results), key=lambda r: -r.step):
        if wanted(run, claim.reads, claim.reads.method) and (
            name in run.monitors or (claim.kind == "health" and run.dead)
        ):
            pooled[run.family, run.parts[1], run.size].setdefault(run.seed, run)
    out = []
    for (family, rung, size), group in pooled.items():
        runs, found = list(group.values()), None
        if claim.kind == "health":
            good = sum(healthy(r) for r in runs)
            ours, verdict = f"{good} of {len(runs)} seeds", health(good, len(runs))
        else:
            found, _ = _of_values(claim, [float(r.monitors[name]) for r in runs])
            ours, verdict = interval_text(claim, found), judge(claim, found, len(runs))
        rank = (runs[0].reduced, runs[0].other, -len(runs))
        where = f"{family}{f', {rung}' if rung else ''}: held-out frames where read, else the end of the training log"
        out.append(Evidence(claim, ours, len(runs), size, where, runs[0].reduced, verdict, (), found, rank=rank))
    return out


def _cells(claim: Claim, results: Results) -> dict[tuple[Any, ...], dict[int, dict[float, list[float]]]]:
    """(family, rung, suffix) → D → η → mean success of every other choice (λ), at the largest budget."""
    out: dict[tuple[Any, ...], Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    planned = [p for p in _matching(claim, results, claim.reads.method) if p.run.config is not None]
    if not planned:
        return {}
    top = {p.run.family: max(q.budget for q in planned if q.run.family == p.run.family) for p in planned}
    for p in planned:
        if p.budget == top[p.run.family]:
            place = out[p.run.family, p.run.parts[1], p.run.suffix][p.run.known["model.latent"]]
            place[p.run.known["optim.lr"]].append(float(p.success["latched"].mean()))
    return out


def _transfer(claim: Claim, results: Results) -> list[Evidence]:
    out = []
    for (family, rung, suffix), widths in _cells(claim, results).items():
        rates = set.intersection(*(set(v) for v in widths.values()))
        if len(widths) < 2 or len(rates) < 2:
            continue
        best = {d: max(sorted(rates), key=lambda r, d=d: max(widths[d][r])) for d in sorted(widths)}  # type: ignore[misc]
        base, *rest = best.values()
        good = sum(r == base for r in rest)
        text = ", ".join(f"D={d}: {r:g}" for d, r in best.items())
        out.append(
            Evidence(
                claim,
                f"{good} of {len(rest)} ({text})",
                0,
                _coarse(suffix),
                f"{family}/{rung}, {len(rates)} rates",
                bool(suffix),
                share(claim, good, len(rest)),
                (),
                rank=(bool(suffix), -len(rest)),
            )
        )
    return out


def _coarse(suffix: str) -> str:
    return f"reduced ({suffix})" if suffix else "paper's size"


def _large_rate(claim: Claim, results: Results) -> list[Evidence]:
    out = []
    for (family, rung, suffix), widths in _cells(claim, results).items():
        scores = [s for by_rate in widths.values() for rate, many in by_rate.items() if rate >= 0.005 for s in many]
        if scores:
            good = sum(s <= 0.02 for s in scores)
            out.append(
                Evidence(
                    claim,
                    f"{good} of {len(scores)} cells at most 2 %",
                    0,
                    _coarse(suffix),
                    f"{family}/{rung}",
                    bool(suffix),
                    share(claim, good, len(scores)),
                    (),
                    rank=(bool(suffix), -len(scores)),
                )
            )
    return out


SOURCES: dict[str, Callable[[Claim, Results], list[Evidence]]] = {
    "success": _success,
    "horizons": _horizons,
    "study": _study,
    "monitors": _monitors,
    "transfer": _transfer,
    "large_rate": _large_rate,
}
