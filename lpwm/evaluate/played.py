"""Episodes that were played, in memory, and what is measured on them.

S training seeds, P planner seeds, E episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from lpwm.core.errors import UserError
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.goals import EpisodeSet
from lpwm.evaluate.results import MEASURES, Cell, CheckpointPair, Compared, Group, Outcome, Rate, Row
from lpwm.stats import Result, comparison_table, mcnemar, success_interval


@dataclass(frozen=True, eq=False)
class PlayedRow:
    """One method or control: records[s][p] is what training seed s did with planner seed p."""

    name: str
    records: tuple[tuple[Record, ...], ...]
    seeds: tuple[int | str, ...]
    planner_seeds: tuple[int, ...]
    control: bool
    planner: Mapping[str, Any]  # solver and its options, H, R, warm, context
    stored: int  # records that came from the store
    names: tuple[tuple[str, ...], ...] = ()  # of the records, in the store

    def success(self, measure: str, budget: int) -> np.ndarray:
        """(S, P, E) bool."""
        return np.array([[getattr(r, measure)(budget) for r in row] for row in self.records])

    def result(self, measure: str, budget: int, only: np.ndarray | None = None) -> Result:
        """For statistics; `only`: some of the episodes, (E,) bool."""
        ids = self.records[0][0].ids
        result = Result.of(
            self.name,
            self.success(measure, budget),
            episodes=ids,
            seeds=self.seeds,
            planner_seeds=self.planner_seeds,
            control=self.control,
        )
        return result if only is None else result.only(episodes=[e for e, k in zip(ids, only, strict=True) if k])

    def rate(self, measure: str, budget: int, only: np.ndarray | None = None) -> Rate:
        return Rate.of(success_interval(self.result(measure, budget, only)))

    def measured(self, budgets: Sequence[int]) -> Row:
        def each(of: Any) -> tuple[tuple[tuple[Any, ...], ...], ...]:
            return tuple(tuple(tuple(of(r).tolist()) for r in row) for row in self.records)

        outcomes = {}
        for budget in budgets:
            success = {m: self.success(m, budget) for m in MEASURES}
            outcomes[str(budget)] = Outcome(
                **{m: self.rate(m, budget) for m in MEASURES},
                success={m: _nested(x.astype(int)) for m, x in success.items()},
                rate_per_seed={m: tuple(x.mean((1, 2)).tolist()) for m, x in success.items()},
                steps_to_success=each(lambda r, b=budget: r.steps_to_success(b)),
                final_distance=each(lambda r, b=budget: r.final_distance(b)),
            )
        return Row(
            name=self.name,
            control=self.control,
            seeds=self.seeds,
            planner_seeds=self.planner_seeds,
            planner=dict(self.planner),
            budgets=outcomes,
            mean_latent_distance={
                name: each(lambda r, n=name: r.traces[n].mean(0)) for name in self.records[0][0].traces
            },
            wall_s=sum(r.wall_s for row in self.records for r in row),
            stored_records=self.stored,
            records=self.names,
        )


def _nested(x: np.ndarray) -> Any:
    return tuple(map(_nested, x)) if x.ndim > 1 else tuple(x.tolist())


@dataclass(frozen=True, eq=False)
class PlayedCell:
    goals: str
    horizon: int
    receding: int
    rows: tuple[PlayedRow, ...]

    @property
    def methods(self) -> list[PlayedRow]:
        return [r for r in self.rows if not r.control]

    def tested_by_plan(self) -> PlayedCell:
        """The same cell, success counted only at the ends of executed plans."""
        rows = []
        for row in self.rows:
            records = tuple(tuple(replace(r, tested=self.receding * r.frameskip) for r in line) for line in row.records)
            rows.append(replace(row, records=records))
        return replace(self, rows=tuple(rows))

    def measured(self, budgets: Sequence[int], groups: Mapping[str, np.ndarray]) -> Cell:
        """groups: episodes to report apart, (E,) bool each."""
        return Cell(
            goals=self.goals,
            horizon=self.horizon,
            receding=self.receding,
            rows=tuple(row.measured(budgets) for row in self.rows),
            groups={name: self._group(only, budgets) for name, only in groups.items()},
            comparisons={m: {str(b): self.compared(m, b) for b in budgets} for m in MEASURES},
        )

    def _group(self, only: np.ndarray, budgets: Sequence[int]) -> Group:
        rates = {
            row.name: {str(b): {m: row.rate(m, b, only) for m in MEASURES} for b in budgets}
            for row in (self.rows if only.any() else ())
        }
        return Group(int(only.sum()), rates)

    def compared(self, measure: str, budget: int) -> Compared:
        """Methods and controls through `comparison_table`; where that cannot be, why, and McNemar on checkpoints."""
        try:
            table = comparison_table([r.result(measure, budget) for r in self.rows])
        except UserError as error:
            return Compared(refused=str(error), checkpoints=self._checkpoints(measure, budget))
        return Compared(table.rates, table.rows, tuple(c.text() for c in table.comparisons))

    def _checkpoints(self, measure: str, budget: int) -> tuple[CheckpointPair, ...]:
        """Every two checkpoints with their first planner seed."""
        each = [
            (f"{row.name}, seed {seed}", getattr(records[0], measure)(budget))
            for row in self.methods
            for seed, records in zip(row.seeds, row.records, strict=True)
        ]
        out = []
        for (a, x), (b, y) in combinations(each, 2):
            test = mcnemar(x, y)
            out.append(CheckpointPair(a, b, test.only_a, test.only_b, test.p, **vars(Rate.of(test.difference))))
        return tuple(out)


@dataclass(frozen=True, eq=False)
class Played:
    """The episodes of an evaluation, in its cells' order."""

    world: Any
    sets: Mapping[str, EpisodeSet]
    cells: tuple[PlayedCell, ...]
