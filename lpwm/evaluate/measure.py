"""What is measured on played episodes.

S training seeds, P planner seeds, E episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from lpwm.core.errors import UserError
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.goals import EpisodeSet
from lpwm.evaluate.results import MEASURES, Cell, CheckpointPair, Compared, Group, Outcome, Rate, Row
from lpwm.stats import Result, comparison_table, mcnemar, success_interval

Records = tuple[tuple[Record, ...], ...]  # [s][p]: what training seed s did with planner seed p


@dataclass(frozen=True, eq=False)
class Played:
    """The episodes of an evaluation: records[i][row name] are those of its cell i."""

    world: Any
    sets: Mapping[str, EpisodeSet]
    records: tuple[Mapping[str, Records], ...]


def measured_row(name: str, control: bool, played: Records, budgets: Sequence[int], **more: Any) -> Row:
    """more: the fields of the row that are not measured."""

    def each(of: Any) -> tuple[tuple[tuple[Any, ...], ...], ...]:
        return tuple(tuple(tuple(of(r).tolist()) for r in line) for line in played)

    def rate(success: np.ndarray) -> Rate:
        return Rate.of(success_interval(Result.of(name, success, episodes=played[0][0].ids, control=control)))

    outcomes = {}
    for budget in budgets:
        success = {m: np.array([[getattr(r, m)(budget) for r in line] for line in played]) for m in MEASURES}
        outcomes[str(budget)] = Outcome(
            **{m: rate(x) for m, x in success.items()},
            success={m: each(lambda r, m=m, b=budget: getattr(r, m)(b).astype(int)) for m in MEASURES},
            rate_per_seed={m: tuple(x.mean((1, 2)).tolist()) for m, x in success.items()},
            steps_to_success=each(lambda r, b=budget: r.steps_to_success(b)),
            final_distance=each(lambda r, b=budget: r.final_distance(b)),
        )
    latent = {trace: each(lambda r, t=trace: r.traces[t].mean(0)) for trace in played[0][0].traces}
    wall_s = sum(r.wall_s for line in played for r in line)
    return Row(name=name, control=control, budgets=outcomes, mean_latent_distance=latent, wall_s=wall_s, **more)


def measured_cell(
    kind: str, horizon: int, receding: int, rows: tuple[Row, ...], ids: Sequence[str], groups: Mapping[str, np.ndarray]
) -> Cell:
    """ids: of the episodes. groups: those to report apart, (E,) bool each."""
    budgets = rows[0].budgets
    return Cell(
        kind,
        horizon,
        receding,
        rows,
        {name: _group(rows, ids, only) for name, only in groups.items()},
        {m: {b: _compared(rows, m, int(b), ids) for b in budgets} for m in MEASURES},
    )


def _group(rows: Sequence[Row], ids: Sequence[str], only: np.ndarray) -> Group:
    kept = [e for e, k in zip(ids, only, strict=True) if k]

    def rate(row: Row, measure: str, budget: str) -> Rate:
        return Rate.of(success_interval(row.result(measure, int(budget), ids).only(episodes=kept)))

    rates = {row.name: {b: {m: rate(row, m, b) for m in MEASURES} for b in row.budgets} for row in rows if kept}
    return Group(len(kept), rates)


def _compared(rows: Sequence[Row], measure: str, budget: int, ids: Sequence[str]) -> Compared:
    """Methods and controls through `comparison_table`; where that cannot be, why, and McNemar on checkpoints."""
    try:
        table = comparison_table([row.result(measure, budget, ids) for row in rows])
    except UserError as error:
        each = [  # the checkpoints with their first planner seed
            (f"{row.name}, seed {seed}", success[0])
            for row in rows
            for seed, success in zip(row.seeds, row.success(measure, budget), strict=True)
            if not row.control
        ]
        return Compared(refused=str(error), checkpoints=tuple(_pair(*a, *b) for a, b in combinations(each, 2)))
    return Compared(table.rates, table.rows, tuple(c.text() for c in table.comparisons))


def _pair(a: str, x_E: np.ndarray, b: str, y_E: np.ndarray) -> CheckpointPair:
    test = mcnemar(x_E, y_E)
    return CheckpointPair(**vars(Rate.of(test.difference)), a=a, b=b, only_a=test.only_a, only_b=test.only_b, p=test.p)
