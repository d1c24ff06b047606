"""What the records of a sweep say: best cells chosen on some seeds and reported on others, differences, transfer.

The unit of replication is the training seed. A cell chosen as the best of many on a seed looks better on that seed
than it is: so the seeds that choose do not report. A dead run counts as no success, and is counted.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lpwm.core.json import from_json
from lpwm.evaluate.config import EvalConfig
from lpwm.model import PAPER_RUNGS
from lpwm.stats import Comparison, Interval, Result, compare, success_interval
from lpwm.sweep.grid import Cell
from lpwm.sweep.ledger import Record
from lpwm.sweep.status import Sweep
from lpwm.sweep.worker import CellResult, Measured, Planned, ledger_of
from lpwm.train.run_config import RunConfig, method_digest

LADDER = list(PAPER_RUNGS)[::-1]  # from the simplest rung to the most expressive


def _rank(rung: str) -> tuple[int, str]:
    """Predictors that are not the paper's come last."""
    return (LADDER.index(rung), "") if rung in LADDER else (len(LADDER), rung)


@dataclass(frozen=True)
class Look:
    """Where success is counted: an evaluation, its cell, a budget, a measure."""

    eval: str
    goals: str
    horizon: int
    receding: int
    budget: int
    measure: str

    @property
    def title(self) -> str:
        plan = f"{self.goals} goals, H = {self.horizon}, R = {self.receding}"
        return f"{self.eval}: {plan}, {self.measure} at {self.budget} steps"


@dataclass(frozen=True)
class Key:
    """What is compared; within one key the settings compete."""

    world: str
    method: str
    rung: str
    latent: int
    mup: bool


@dataclass(frozen=True, eq=False)
class Point:
    """One finished cell."""

    hash: str
    key: Key
    sparse: bool
    lam: float
    lr: float
    setting: str  # names λ, η and everything else that is not in the key, the seed left out
    seed: int
    dead: str
    evals: Mapping[str, tuple[Planned, ...]]
    protocols: Mapping[str, EvalConfig]
    active: float | None
    error: float | None  # held-out, relative, one block ahead

    def _at(self, look: Look) -> Measured | None:
        for cell in self.evals.get(look.eval, ()):
            if (cell.goals, cell.horizon, cell.receding) == (look.goals, look.horizon, look.receding):
                return cell.at(look.budget, look.measure)
        return None

    def success(self, look: Look) -> np.ndarray | None:
        """(P, E) bool; zeros for a dead run; None where this was not evaluated."""
        if self.dead:
            protocol = self.protocols.get(look.eval)
            return None if protocol is None else np.zeros((protocol.planner_seeds, protocol.episodes), dtype=bool)
        measured = self._at(look)
        return None if measured is None else np.array([[c == "1" for c in line] for line in measured.success])

    def rate(self, look: Look) -> float:
        success = self.success(look)
        return math.nan if success is None else float(success.mean())

    def controls(self, look: Look) -> dict[str, float]:
        measured = self._at(look)
        return {} if measured is None else dict(measured.controls)


@dataclass(frozen=True, eq=False)
class SweepResults:
    name: str
    points: tuple[Point, ...]
    looks: tuple[Look, ...]  # the first chooses
    select: tuple[int, ...]  # seeds that choose where settings compete
    cells: int  # of the sweep, finished or not
    versions: tuple[str, ...]

    @property
    def keys(self) -> list[Key]:
        order = {m: i for i, m in enumerate(dict.fromkeys(p.key.method for p in self.points))}
        return sorted(
            {p.key for p in self.points}, key=lambda k: (k.world, order[k.method], _rank(k.rung), k.latent, not k.mup)
        )

    def of(self, **wanted: Any) -> list[Point]:
        return [p for p in self.points if all(getattr(p.key, k) == v for k, v in wanted.items())]


def method_of(config: RunConfig) -> str:
    """The method's name from the config alone, so that any two sweeps call it the same."""
    objective, link = config.objective, config.model.link
    if objective.regularizer in ("vicreg", "sigreg", "none"):
        name = {"vicreg": "VICReg", "sigreg": "SIGReg", "none": "no regularizer"}[objective.regularizer]
        return name if link == "identity" else f"{name} {link}"
    name = {"identity": "LeWM", "relu": "LpWM (ReLU)", "reprelu": "LpWM"}.get(link, link)
    if objective.rdmreg.mu:
        name += f" μ={objective.rdmreg.mu:g}".replace("-", "−")
    if objective.tj_weight:
        name += f" +TJ {objective.tj_weight:g}"
    return name


def point_of(record: Record) -> Point:
    cell = from_json(Cell, record.cell, f"the record of cell {record.hash}: cell")
    result = from_json(CellResult, record.result, f"the record of cell {record.hash}: result")
    c = cell.config
    key = Key(
        " ".join([c.data.world, *c.data.options]), method_of(c), c.model.predictor.rung, c.model.latent, c.optim.mup
    )
    return Point(
        hash=record.hash,
        key=key,
        sparse=c.model.link != "identity",
        lam=c.objective.lam,
        lr=c.optim.lr,
        setting=method_digest(c),
        seed=c.train.seed,
        dead=result.dead,
        evals=result.evals,
        protocols=cell.evals,
        active=result.train.get("active_fraction"),
        error=next(iter(result.held_out.error_depth), None),
    )


def read_results(root: str | Path) -> SweepResults:
    """Every finished cell of a sweep's folder."""
    sweep, ledger = Sweep.read(root), ledger_of(Path(root))
    return results_of([r for r in map(ledger.record, sweep.cells) if r is not None], sweep)


def results_of(records: Sequence[Record], sweep: Sweep) -> SweepResults:
    points = tuple(point_of(r) for r in records)
    select = sweep.select_seeds
    if not select:
        seeds = sorted(sweep.seeds)
        select = tuple(seeds[: max(1, len(seeds) // 2)])
    versions = tuple(dict.fromkeys(r.lpwm for r in records))
    return SweepResults(
        sweep.name, points, looks_of(points, sweep.measure, sweep.goals), select, len(sweep.cells), versions
    )


def looks_of(points: Iterable[Point], measure: str, goals: str) -> tuple[Look, ...]:
    """Evaluations in the grid's order, each with the goals that judge, every pair (H, R), the largest budget."""
    out: dict[Look, None] = {}
    for p in points:
        for name, cells in p.evals.items():
            kinds = {c.goals for c in cells}
            kind = goals if goals in kinds else "random" if "random" in kinds else min(kinds)
            for c in cells:
                if c.goals == kind:
                    out[Look(name, kind, c.horizon, c.receding, c.largest, measure)] = None
    return tuple(out)


# Best cells --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Best:
    """The setting that the choosing seeds preferred, as the other seeds saw it."""

    key: Key
    sparse: bool
    lam: float
    lr: float
    setting: str
    of: int  # settings that competed
    chosen_on: tuple[int, ...]  # () where nothing competed
    reported_on: tuple[int, ...]
    results: Mapping[Look, Result]  # on the reporting seeds
    dead: int  # of the reporting seeds
    active: float | None
    honest: bool = True  # False: no other seed is there, and the choosing seeds report themselves
    intervals: Mapping[Look, Interval] = field(default_factory=dict)


def best_cells(sweep: SweepResults) -> list[Best]:
    """One per key, in order. Ties go to the smaller λ, then the smaller η."""
    return [b for b in (_best(sweep, key) for key in sweep.keys) if b is not None]


def _best(sweep: SweepResults, key: Key) -> Best | None:
    if not sweep.looks:
        return None
    judge = sweep.looks[0]
    settings: dict[str, list[Point]] = defaultdict(list)
    for p in sweep.points:
        if p.key == key and p.success(judge) is not None:
            settings[p.setting].append(p)
    if not settings:
        return None
    ranked = sorted(settings.values(), key=lambda ps: (ps[0].lam, ps[0].lr, ps[0].setting))
    if len(ranked) == 1:
        return _report(ranked[0], 1, (), sorted(p.seed for p in ranked[0]), sweep)
    # A setting competes once every choosing seed that any setting has finished has finished here too.
    every = {p.seed for ps in ranked for p in ps} & set(sweep.select)
    complete = [ps for ps in ranked if every <= {p.seed for p in ps}]
    if not every or not complete:
        return None

    def score(ps: Sequence[Point]) -> float:
        return float(np.mean([p.rate(judge) for p in ps if p.seed in every]))

    chosen = max(complete, key=score)  # the first of equals
    rest = sorted(p.seed for p in chosen if p.seed not in sweep.select)
    return _report(chosen, len(complete), tuple(sorted(every)), rest or sorted(every), sweep, bool(rest))


def _report(
    points: Sequence[Point],
    of: int,
    chosen_on: tuple[int, ...],
    seeds: Sequence[int],
    sweep: SweepResults,
    honest: bool = True,
) -> Best:
    kept = sorted((p for p in points if p.seed in seeds), key=lambda p: p.seed)
    results = {look: r for look in sweep.looks if (r := result_of(kept, look)) is not None}
    first, active = kept[0], [p.active for p in kept if p.active is not None]
    return Best(
        first.key,
        first.sparse,
        first.lam,
        first.lr,
        first.setting,
        of,
        chosen_on,
        tuple(p.seed for p in kept),
        results,
        sum(bool(p.dead) for p in kept),
        float(np.mean(active)) if active else None,
        honest,
        {look: success_interval(r) for look, r in results.items()},
    )


def result_of(points: Sequence[Point], look: Look) -> Result | None:
    """Successes (S, P, E) of points that differ in their seed; None if one was not evaluated like this."""
    rows = [p.success(look) for p in points]
    kept = [r for r in rows if r is not None]
    if not kept or len(kept) != len(rows) or len({r.shape for r in kept}) > 1:
        return None
    ids = [f"{look.goals}-{i}" for i in range(kept[0].shape[1])]
    return Result.of(points[0].key.method, np.stack(kept), episodes=ids, seeds=[p.seed for p in points])


# Comparisons -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Difference:
    """A sparse method minus the dense one with the same predictor and width."""

    a: Best
    b: Best
    look: Look
    comparison: Comparison


def sparse_minus_dense(sweep: SweepResults, bests: Sequence[Best]) -> list[Difference]:
    """Every sparse method against LeWM, seeds paired where both report them."""
    out = []
    for a, b in itertools.product(bests, bests):
        same = (a.key.world, a.key.rung, a.key.latent, a.key.mup) == (b.key.world, b.key.rung, b.key.latent, b.key.mup)
        if not (same and a.sparse and b.key.method == "LeWM"):
            continue
        seeds = [s for s in a.reported_on if s in b.reported_on]
        for look in sweep.looks:
            if look in a.results and look in b.results and seeds and len(a.results[look].episodes) > 1:
                pair = compare(a.results[look].only(seeds=seeds), b.results[look].only(seeds=seeds))
                out.append(Difference(a, b, look, pair))
    return out


# Learning rates ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Transfer:
    """Success against η, a curve per width, for one method and rung under one parametrization."""

    world: str
    method: str
    rung: str
    mup: bool
    lam: float
    rates: tuple[float, ...]  # η, ascending
    curves: Mapping[int, tuple[float, ...]]  # D -> mean success at each η; NaN where it was not run
    best: Mapping[int, float]  # D -> the best η
    decades: float  # between the largest and the smallest best η
    loss: float  # mean over the wider models of: best success − success at the η that was best for the narrowest


def transfers(sweep: SweepResults) -> list[Transfer]:
    """Where at least two η and two widths were run. λ is the one that the choosing seeds liked best on average; the
    curves, and the η at their tops, are of all seeds: they describe, they do not select."""
    out: list[Transfer] = []
    if not sweep.looks:
        return out
    look = sweep.looks[0]
    lanes = dict.fromkeys((k.world, k.method, k.rung, k.mup) for k in sweep.keys)
    for world, method, rung, mup in lanes:
        points = sweep.of(world=world, method=method, rung=rung, mup=mup)
        rates, widths = sorted({p.lr for p in points}), sorted({p.key.latent for p in points})
        if len(rates) < 2 or len(widths) < 2:
            continue

        def mean(lam: float, d: int, lr: float, among: Sequence[Point] = points) -> float:
            return _mean(p.rate(look) for p in among if (p.lam, p.key.latent, p.lr) == (lam, d, lr))

        lams = sorted({p.lam for p in points})
        choosers = [p for p in points if p.seed in sweep.select]
        lam = max(lams, key=lambda v: _score(mean(v, d, r, choosers) for d in widths for r in rates))
        curves = {d: tuple(mean(lam, d, r) for r in rates) for d in widths}
        curves = {d: c for d, c in curves.items() if not all(math.isnan(v) for v in c)}
        best = {d: rates[int(np.nanargmax(c))] for d, c in curves.items()}
        if len(best) < 2:
            continue
        at = rates.index(best[min(best)])
        lost = _mean(float(np.nanmax(c)) - c[at] for d, c in curves.items() if d != min(best))
        decades = math.log10(max(best.values()) / min(best.values()))
        out.append(Transfer(world, method, rung, mup, lam, tuple(rates), curves, best, decades, lost))
    return out


def _mean(values: Iterable[float]) -> float:
    kept = [v for v in values if not math.isnan(v)]
    return float(np.mean(kept)) if kept else math.nan


def _score(values: Iterable[float]) -> float:
    mean = _mean(values)
    return -1.0 if math.isnan(mean) else mean
