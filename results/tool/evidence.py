"""From what was read to evidence: every claim with every size and protocol at which something speaks to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lpwm.stats import MIN_SEEDS, Interval, Result, compare, paired_crossed, success_interval
from lpwm.stats.paired import detectable_ncp

from .claims import TITLES, Claim
from .line import Evidence, files_of, point, wanted
from .read import Planned, Results
from .studies import from_borders, from_monitors, from_studies
from .verdict import NOT_TESTED, OPEN, SAME, Verdict, interval_text, judge, share

LARGE_RATE, NEARLY_ZERO = 0.005, 0.02
HOLDS = 0.3  # rank correlation of latent and cube distance from which on a code is said to hold the cube


def evidence(claim: Claim, results: Results) -> list[Evidence]:
    """Best first, by a rule that does not know the outcome; [] when nothing was run."""
    lines = sorted(SOURCES[claim.query.source](claim, results), key=lambda e: (e.rank, e.size, e.protocol))
    return [_tested(line, results) for line in lines] if claim.row == "cube" else lines


def _tested(line: Evidence, results: Results) -> Evidence:
    """A claim about Cube is judged where the code holds the cube."""
    guide = max(
        (g for r in results.runs if r.family == "cube" and (g := results.guides.get(r.hash)) is not None), default=0.0
    )
    if guide >= HOLDS:
        return line
    why = f"no cube in the code (rank correlation {round(guide, 2) + 0.0:.2f})"
    return replace(line, verdict=Verdict(NOT_TESTED, "", why, line.verdict.exploratory), reached=None)


def _matching(claim: Claim, results: Results, method: str) -> list[Planned]:
    """Where two methods are compared, what was planned with a method at its own cell is there twice."""
    q = claim.query
    planned = [
        p
        for p in results.planned
        if wanted(p.run, q, method)
        and p.goals == q.goals
        and p.cost == q.cost
        and q.receding in (None, p.receding)
        and not (q.closed_loop and p.open_loop)
    ]
    return planned + [replace(p, own=True) for p in planned if q.against and p.run.own]


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
    return replace(parts[0], success=success, floor=floor, files=files_of(parts), digest=digest)


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


def _line(
    claim: Claim, p: Planned, seeds: int, ours: str, verdict: Verdict, protocol: str = "", **more: Any
) -> Evidence:
    """A line about planning; `p` is any of its checkpoints."""
    budgets = claim.query.budgets
    preferred = budgets.index(p.budget) if p.budget in budgets else len(budgets)
    rank = (p.run.reduced, not p.own, 0 if p.own else p.run.other, preferred, -seeds, -p.effort, -p.episodes)
    where = (p.size, protocol or p.protocol, p.run.reduced)
    return Evidence(claim, ours, seeds, *where, verdict, rank=rank, **more)


def _success(claim: Claim, results: Results) -> list[Evidence]:
    def of(method: str) -> Groups:
        planned = [p for p in _matching(claim, results, method) if p.horizon == claim.query.horizon]
        return with_all_episodes(groups(planned))

    mine = of(claim.query.method)
    if not claim.query.against:
        return [_level(claim, group) for group in mine.values()]
    theirs = of(claim.query.against)
    return [_difference(claim, mine[k], theirs[k]) for k in mine if k in theirs]


def _level(claim: Claim, group: Group) -> Evidence:
    seeds = sorted(group, key=str)
    held, reached = (success_interval(result_of(claim.id, group, seeds, m)) for m in ("terminal", "latched"))
    verdict = judge(claim, held, len(seeds), paper=_first(group).run.paper)
    more: dict[str, Any] = {"files": files_of(group.values()), "also": f"reached {interval_text(claim, reached)}"}
    ours = interval_text(claim, held)
    return _line(claim, _first(group), len(seeds), ours, verdict, interval=held, reached_interval=reached, **more)


def _difference(claim: Claim, a: Group, b: Group) -> Evidence:
    shared = sorted(a.keys() & b.keys(), key=str)
    files = files_of(a.values(), b.values())
    if not shared:
        return _line(claim, _first(a), 0, "–", judge(claim, Interval(0, 0, 0, 0.95, ""), 0), files=files)
    parts, verdicts = {}, {}
    for m in ("terminal", "latched"):
        parts[m] = one = compare(result_of("a", a, shared, m), result_of("b", b, shared, m))
        verdicts[m] = judge(claim, one.difference, len(shared), one.smallest_detectable)
        floor = max(p.floor.get(m, 0.0) for p in (*a.values(), *b.values()))
        if max(one.rate_a.estimate, one.rate_b.estimate) <= floor:
            verdicts[m] = Verdict(OPEN, "", "neither does better than the controls", verdicts[m].exploratory)
    texts = {}
    for m, one in parts.items():
        rates = " against ".join(f"{100 * r.estimate:.1f} %" for r in (one.rate_a, one.rate_b))
        texts[m] = f"{interval_text(claim, one.difference)} ({rates})"
    more: dict[str, Any] = {"interval": parts["terminal"].difference, "files": files, "reached": verdicts["latched"]}
    more |= {"also": f"reached {texts['latched']}", "reached_interval": parts["latched"].difference}
    return _line(claim, _first(a), len(shared), texts["terminal"], verdicts["terminal"], **more)


def _replanning(claim: Claim, results: Results) -> list[Evidence]:
    """The same checkpoints on the same episodes, replanned after every block and after every plan."""
    sides: dict[int, dict[tuple[Any, ...], Group]] = {}
    for R in (1, 5):
        planned = [p for p in _matching(claim, results, claim.query.method) if (p.receding, p.horizon) == (R, 5)]
        all_groups = groups(planned).values()
        sides[R] = {(*(p := _first(g)).setting[:3], p.budget, *p.setting[4:], p.digest): g for g in all_groups}
    return [
        replace(e, protocol=e.protocol.replace("R=1 warm", "R=1 warm against R=5"))
        for key, group in sides[1].items()
        if key in sides[5]
        for e in [_difference(claim, group, sides[5][key])]
    ]


def _contrasts(claim: Claim, results: Results) -> Iterator[Evidence]:
    """Success added up over the sides of a contrast, all of one file: the same seeds on the same goals."""
    q = claim.query
    rounds: dict[tuple[Any, ...], dict[tuple[str, str], Group]] = defaultdict(lambda: defaultdict(dict))
    for p in results.planned:
        same = (p.run.family in q.families, p.goals == q.goals, p.cost == q.cost, p.receding == q.receding)
        if all(same) and p.horizon == q.horizon:
            rounds[p.files, p.protocol, p.digest][p.run.method, p.run.rung][p.run.seed] = p
    for sides in rounds.values():
        if len({rung for _, rung in sides}) < 2 or any((m, rung) not in sides for _, m, rung in q.sides):
            continue
        chosen = [sides[m, rung] for _, m, rung in q.sides]
        seeds, parts, verdicts = sorted(set.intersection(*map(set, chosen)), key=str), {}, {}
        for measure in ("terminal", "latched"):
            rates = [np.array([group[s].success[measure].mean(0) for s in seeds]) for group in chosen]
            d_SE = sum(sign * rate for (sign, _, _), rate in zip(q.sides, rates, strict=True))
            parts[measure], detectable = _over_both(np.asarray(d_SE))
            verdicts[measure] = judge(claim, parts[measure], len(seeds), detectable)
            floor = max(p.floor.get(measure, 0.0) for group in chosen for p in group.values())
            if max(float(rate.mean()) for rate in rates) <= floor:
                verdicts[measure] = Verdict(OPEN, "", "no side does better than the controls", len(seeds) < MIN_SEEDS)
            told = " against ".join(f"{100 * rate.mean():.1f} %" for rate in rates) if len(rates) == 2 else ""
            parts[f"{measure} text"] = interval_text(claim, parts[measure]) + (f" ({told})" if told else "")
        p = _first(chosen[0])
        more: dict[str, Any] = {"interval": parts["terminal"], "files": files_of(*(g.values() for g in chosen))}
        more |= {"also": f"reached {parts['latched text']}", "reached_interval": parts["latched"]}
        line = _line(
            claim, p, len(seeds), parts["terminal text"], verdicts["terminal"], reached=verdicts["latched"], **more
        )
        rungs = {rung for _, _, rung in q.sides}
        size = p.run.at_own_cell if len(rungs) == 1 else p.run.at_own_cell.replace(TITLES[p.run.rung], "two rungs")
        yield replace(line, size=size)


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
        rate_a, rate_b = (  # by seed, horizon and episode, planner seeds averaged
            np.array([[side[h][s].success["terminal"].mean(0) for h in depths] for s in seeds]) for side in (a, b)
        )
        gap_SHE = rate_a - rate_b
        slope = claim.query.quantity == "slope"
        weights_H = np.full(len(depths), 1 / len(depths))
        if slope:
            centered = np.array(depths) - np.mean(depths)
            weights_H = centered / np.square(centered).sum()
        interval, detectable = _over_both(np.einsum("h,she->se", weights_H, gap_SHE))
        verdict = judge(claim, interval, len(seeds), detectable)
        behind = [h for h, g in zip(depths, gap_SHE.mean((0, 2)), strict=True) if g <= 0]
        if not slope and behind and verdict.direction == SAME:
            why = f"ahead on average, not at H = {', '.join(map(str, behind))}"
            verdict = Verdict(OPEN, "", why, verdict.exploratory)
        p = _first(a[depths[0]])
        protocol = _without_horizon(p, f"H={depths[0]}…{depths[-1]} ")
        files = files_of(*(group.values() for side in (a, b) for group in side.values()))
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


def _over_both(x_SE: np.ndarray) -> tuple[Interval, float | None]:
    """The mean when seeds and episodes are samples, and the smallest effect that would have been seen."""
    if len(x_SE) == 1:
        return point(float(x_SE.mean())), None
    test = paired_crossed(x_SE)
    return test.difference, detectable_ncp(test.df) * test.se


# Learning rates ---------------------------------------------------------------------------------------------


def _cells(claim: Claim, results: Results) -> dict[tuple[str, str, str], dict[int, dict[float, list[float]]]]:
    """(family, rung, suffix) → D → η → mean success of every other choice (λ), at the largest budget."""
    out: dict[tuple[str, str, str], Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    planned = [p for p in _matching(claim, results, claim.query.method) if p.run.config is not None]
    largest = {f: max((p.budget for p in planned if p.run.family == f), default=0) for f in claim.query.families}
    for p in planned:
        if p.budget == largest[p.run.family]:
            place = out[p.run.family, p.run.parts[1], p.run.suffix][p.run.known["model.latent"]]
            place[p.run.known["optim.lr"]].append(float(p.success["terminal"].mean()))
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
    "replanning": _replanning,
    "contrast": _contrasts,
    "horizons": _horizons,
    "study": from_studies,
    "borders": from_borders,
    "monitors": from_monitors,
    "transfer": _transfer,
    "large_rate": _large_rate,
}
