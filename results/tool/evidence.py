"""From what was read to evidence: every claim with every size and protocol at which something speaks to it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lpwm.stats import Interval, Result, compare, paired_t, success_interval, t_interval
from lpwm.stats.power import detectable_ncp

from .claims import Claim, Query
from .read import Planned, Results, Studied
from .runs import Trained
from .verdict import INCONCLUSIVE, REPRODUCED, Verdict, health, interval_text, judge, share

FREEDOM = {"pusht": 4}  # below the world's degrees of freedom (2 for the dot worlds) the code has collapsed
LARGE_RATE, NEARLY_ZERO = 0.005, 0.02


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
    rank: tuple[Any, ...] = ()


def evidence(claim: Claim, results: Results) -> list[Evidence]:
    """Best first, by a rule that does not know the outcome; [] when nothing was run."""
    return sorted(SOURCES[claim.query.source](claim, results), key=lambda e: (e.rank, e.size, e.protocol))


def wanted(run: Trained, query: Query, method: str) -> bool:
    if run.family not in query.families or run.method != method or query.rung not in ("", run.parts[1]):
        return False
    if query.latent not in (None, run.known.get("model.latent")):
        return False
    if method != "lpwm-tj" or run.tj is None:
        return True
    return math.isclose(run.tj, 0.01 if query.tj is None else query.tj)  # 0.01: the paper's weight for Piecewise


def _matching(claim: Claim, results: Results, method: str) -> list[Planned]:
    q = claim.query
    return [
        p
        for p in results.planned
        if wanted(p.run, q, method)
        and p.goals == q.goals
        and q.receding in (None, p.receding)
        and not (q.closed_loop and p.open_loop)
    ]


# Success rates ----------------------------------------------------------------------------------------------

Group = dict[int | str, Planned]  # by training seed
Groups = dict[tuple[Any, ...], Group]


def groups(planned: Iterable[Planned], by_method: bool = False) -> Groups:
    """Checkpoints that may be pooled. A seed evaluated twice counts once: the longest trained, then the first file."""
    out: Groups = defaultdict(dict)
    for p in sorted(planned, key=lambda p: (-p.run.step, p.files)):
        key = (*p.key, p.run.parts[2], p.run.tj) if by_method else p.key
        out[key].setdefault(p.run.seed, p)
    return out


def _first(group: Group) -> Planned:
    return next(iter(group.values()))


def with_all_episodes(apart: Groups) -> Groups:
    """These groups, and of those that are the same checkpoints on other episodes all episodes together."""
    alike: dict[Any, list[Group]] = defaultdict(list)
    for group in apart.values():
        checkpoints = frozenset((seed, p.run.hash, p.run.step) for seed, p in group.items())
        alike[_first(group).setting, checkpoints].append(group)
    out = dict(apart)
    for many in alike.values():
        if len(many) > 1:
            many.sort(key=lambda group: _first(group).digest)
            together = {seed: _pooled([group[seed] for group in many]) for seed in many[0]}
            out[_first(together).key] = together
    return out


def _pooled(parts: list[Planned]) -> Planned:
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


def _files(*many: Iterable[Planned | Studied]) -> tuple[str, ...]:
    return tuple(sorted({file for some in many for one in some for file in one.files}))


def _line(
    claim: Claim, p: Planned, seeds: int, ours: str, verdict: Verdict, protocol: str = "", **more: Any
) -> Evidence:
    """A line about planning; `p` is any of its checkpoints."""
    budgets = claim.query.budgets
    preferred = budgets.index(p.budget) if p.budget in budgets else len(budgets)
    rank = (p.run.reduced, p.run.other, preferred, -seeds, -p.effort, -p.episodes)
    where = (p.run.size, protocol or p.protocol, p.run.reduced)
    return Evidence(claim, ours, seeds, *where, verdict, rank=rank, **more)


def _success(claim: Claim, results: Results) -> list[Evidence]:
    def of(method: str) -> Groups:
        planned = _matching(claim, results, method)
        return with_all_episodes(groups(p for p in planned if p.horizon == claim.query.horizon))

    mine = of(claim.query.method)
    if not claim.query.against:
        return [_level(claim, group) for group in mine.values()]
    theirs = of(claim.query.against)
    return [_difference(claim, mine[k], theirs[k]) for k in mine if k in theirs]


def _level(claim: Claim, group: Group) -> Evidence:
    seeds = sorted(group, key=str)
    interval, terminal = (
        success_interval(result_of(claim.id, group, seeds, m)) for m in (claim.query.quantity, "terminal")
    )
    verdict, ours = judge(claim, interval, len(seeds)), interval_text(claim, interval)
    more: dict[str, Any] = {"files": _files(group.values()), "also": f"terminal {interval_text(claim, terminal)}"}
    return _line(claim, _first(group), len(seeds), ours, verdict, interval=interval, **more)


def _difference(claim: Claim, a: Group, b: Group) -> Evidence:
    shared = sorted(a.keys() & b.keys(), key=str)
    files, measure = _files(a.values(), b.values()), claim.query.quantity
    if not shared:
        return _line(claim, _first(a), 0, "–", judge(claim, Interval(0, 0, 0, 0.95, ""), 0), files=files)
    compared, terminal = (
        compare(result_of("a", a, shared, m), result_of("b", b, shared, m)) for m in (measure, "terminal")
    )
    verdict = judge(claim, compared.difference, len(shared), compared.smallest_detectable)
    rate_a, rate_b = compared.rate_a.estimate, compared.rate_b.estimate
    floor = max(p.floor.get(measure, 0.0) for p in (*a.values(), *b.values()))
    if max(rate_a, rate_b) <= floor:
        verdict = Verdict(INCONCLUSIVE, "neither does better than the controls", verdict.exploratory)
    ours = f"{interval_text(claim, compared.difference)} ({100 * rate_a:.1f} % against {100 * rate_b:.1f} %)"
    also = f"terminal {interval_text(claim, terminal.difference)}"
    more: dict[str, Any] = {"interval": compared.difference, "also": also, "files": files}
    return _line(claim, _first(a), len(shared), ours, verdict, **more)


def _horizons(claim: Claim, results: Results) -> Iterator[Evidence]:
    """Per seed, over the horizons that both have: the mean gap, or its slope in H."""
    mine, theirs = (_by_horizon(_matching(claim, results, m)) for m in (claim.query.method, claim.query.against))
    for key in mine.keys() & theirs.keys():
        a, b = mine[key], theirs[key]
        depths = sorted(a.keys() & b.keys())
        if len(depths) < 3:
            continue
        seeds = sorted(set.intersection(*(set(side[h]) for h in depths for side in (a, b))), key=str)
        if not seeds:
            continue
        rate_a, rate_b = (
            np.array([[side[h][s].success["latched"].mean() for h in depths] for s in seeds]) for side in (a, b)
        )
        gap_SH = rate_a - rate_b
        slope = claim.query.quantity == "slope"
        interval, detectable = _of_values(claim, np.polyfit(depths, gap_SH.T, 1)[0] if slope else gap_SH.mean(1))
        verdict = judge(claim, interval, len(seeds), detectable)
        behind = [h for h, g in zip(depths, gap_SH.mean(0), strict=True) if g <= 0]
        if not slope and behind and verdict.verdict == REPRODUCED:
            why = f"ahead on average, not at H = {', '.join(map(str, behind))}"
            verdict = Verdict(INCONCLUSIVE, why, verdict.exploratory)
        p = _first(a[depths[0]])
        protocol = _without_horizon(p, f"H={depths[0]}…{depths[-1]} ")
        files = _files(*(group.values() for side in (a, b) for group in side.values()))
        ours = interval_text(claim, interval)
        yield _line(claim, p, len(seeds), ours, verdict, protocol, files=files, interval=interval)


def _by_horizon(planned: Iterable[Planned]) -> dict[tuple[Any, ...], dict[int, Group]]:
    """Groups that differ in H alone, by H."""
    out: dict[tuple[Any, ...], dict[int, Group]] = defaultdict(dict)
    for group in groups(planned).values():
        p = _first(group)
        out[*p.setting[:3], _without_horizon(p), *p.setting[4:], p.digest][p.horizon] = group
    return out


def _without_horizon(p: Planned, instead: str = "") -> str:
    """The protocol without its H; whether a plan starts warm follows from H and R."""
    return p.protocol.replace(" warm", "").replace(f"H={p.horizon} ", instead)


def _of_values(claim: Claim, values: Sequence[float]) -> tuple[Interval, float | None]:
    """t over checkpoints; one checkpoint is a point. The smallest effect that a paired t would have shown."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 1:
        return Interval(float(x[0]), float(x[0]), float(x[0]), 0.95, "one checkpoint"), None
    if claim.kind in ("difference", "parity"):
        test = paired_t(x, np.zeros_like(x))
        return test.difference, detectable_ncp(test.df) * test.se
    return t_interval(x), None


# Studies and monitors ---------------------------------------------------------------------------------------


def quantity(study: Mapping[str, Any], name: str) -> tuple[float | None, Mapping[str, Any]]:
    """A number of a study, `correlation WHAT` (Cube) or a probe's (`zone_support`); with its own interval."""
    kind, _, what = name.replace(" ", "_").partition("_")
    place = study.get("correlations", {}) if kind == "correlation" else study.get("probes", {}).get(kind, {})
    value = place.get(what)
    return (None, {}) if value is None else (float(value["estimate"]), value)


def _study(claim: Claim, results: Results) -> Iterator[Evidence]:
    q = claim.query
    pooled: dict[tuple[str, str], dict[int | str, tuple[Studied, float]]] = defaultdict(dict)
    for one in sorted(results.studied, key=lambda s: (-s.run.step, s.files)):
        world = one.study.get("world", {})
        as_trained = world.get("options", {}).get("visible", False) == world.get("trained_visible", False)
        value, less = quantity(one.study, q.quantity)[0], quantity(one.study, q.versus)[0] if q.versus else 0.0
        if wanted(one.run, q, q.method) and as_trained and value is not None and less is not None:
            pooled[one.run.family, one.run.size].setdefault(one.run.seed, (one, value - less))
    for group in pooled.values():
        studies, values = zip(*group.values(), strict=True)
        run, study = studies[0].run, studies[0].study
        interval, detectable = _of_values(claim, values)
        own = quantity(study, q.quantity)[1]
        if len(group) == 1 and not q.versus and "low" in own:  # over trajectories or episodes of the one checkpoint
            interval = Interval(own["estimate"], own["low"], own["high"], own["level"], "one checkpoint")
        frames = study.get("probes", {}).get("frames")
        protocol = f"{run.family}, {frames:,} held-out frames" if frames else run.family
        verdict = judge(claim, interval, len(group), detectable)
        rank = (run.reduced, run.other, -len(group))
        more: dict[str, Any] = {"files": _files(studies), "interval": interval, "rank": rank}
        ours = interval_text(claim, interval)
        yield Evidence(claim, ours, len(group), run.size, protocol, run.reduced, verdict, **more)


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


def _monitors(claim: Claim, results: Results) -> Iterator[Evidence]:
    of_health = claim.kind == "health"
    name = "relative_error" if of_health else claim.query.quantity
    pooled: dict[tuple[str, str, str], dict[int | str, Trained]] = defaultdict(dict)
    for run in sorted(_with_readings(results), key=lambda r: -r.step):
        known = name in run.monitors or (of_health and run.dead)
        if known and wanted(run, claim.query, claim.query.method):
            pooled[run.family, run.parts[1], run.size].setdefault(run.seed, run)
    for (family, rung, size), group in pooled.items():
        runs, interval = list(group.values()), None
        if of_health:
            good = sum(healthy(r) for r in runs)
            ours, verdict = f"{good} of {len(runs)} seeds", health(good, len(runs))
        else:
            interval, _ = _of_values(claim, [float(r.monitors[name]) for r in runs])
            ours, verdict = interval_text(claim, interval), judge(claim, interval, len(runs))
        where = f"{family}{f', {rung}' if rung else ''}: held-out frames where read, else the end of the training log"
        more: dict[str, Any] = {"interval": interval, "rank": (runs[0].reduced, runs[0].other, -len(runs))}
        yield Evidence(claim, ours, len(runs), size, where, runs[0].reduced, verdict, **more)


# Learning rates ---------------------------------------------------------------------------------------------


def _cells(claim: Claim, results: Results) -> dict[tuple[str, str, str], dict[int, dict[float, list[float]]]]:
    """(family, rung, suffix) → D → η → mean success of every other choice (λ), at the largest budget."""
    out: dict[tuple[str, str, str], Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    planned = [p for p in _matching(claim, results, claim.query.method) if p.run.config is not None]
    largest = {f: max((p.budget for p in planned if p.run.family == f), default=0) for f in claim.query.families}
    for p in planned:
        if p.budget == largest[p.run.family]:
            place = out[p.run.family, p.run.parts[1], p.run.suffix][p.run.known["model.latent"]]
            place[p.run.known["optim.lr"]].append(float(p.success["latched"].mean()))
    return out


def _share(claim: Claim, suffix: str, protocol: str, good: int, n: int, ours: str) -> Evidence:
    size = f"reduced ({suffix})" if suffix else "paper's size"
    return Evidence(claim, ours, 0, size, protocol, bool(suffix), share(claim, good, n), rank=(bool(suffix), -n))


def _transfer(claim: Claim, results: Results) -> Iterator[Evidence]:
    for (family, rung, suffix), widths in _cells(claim, results).items():
        rates = sorted(set.intersection(*(set(v) for v in widths.values())))
        if len(widths) < 2 or len(rates) < 2:
            continue
        best = {D: max(rates, key=lambda r: max(by_rate[r])) for D, by_rate in sorted(widths.items())}
        base, *rest = best.values()
        good = sum(r == base for r in rest)
        ours = f"{good} of {len(rest)} ({', '.join(f'D={D}: {r:g}' for D, r in best.items())})"
        yield _share(claim, suffix, f"{family}/{rung}, {len(rates)} rates", good, len(rest), ours)


def _large_rate(claim: Claim, results: Results) -> Iterator[Evidence]:
    for (family, rung, suffix), widths in _cells(claim, results).items():
        by_rate = [item for rates in widths.values() for item in rates.items()]
        scores = [s for rate, many in by_rate if rate >= LARGE_RATE for s in many]
        good = sum(s <= NEARLY_ZERO for s in scores)
        if scores:
            ours = f"{good} of {len(scores)} cells at most {100 * NEARLY_ZERO:.0f} %"
            yield _share(claim, suffix, f"{family}/{rung}", good, len(scores), ours)


SOURCES: dict[str, Callable[[Claim, Results], Iterable[Evidence]]] = {
    "success": _success,
    "horizons": _horizons,
    "study": _study,
    "monitors": _monitors,
    "transfer": _transfer,
    "large_rate": _large_rate,
}
