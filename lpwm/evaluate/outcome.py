"""What an evaluation found: successes of every method and control in every cell, as JSON and as statistics.

A cell is one kind of goal with one way to plan (horizon H, receding R). S training seeds, P planner seeds,
E episodes.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.core.provenance import origin
from lpwm.core.version import __version__
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.curve import Curve
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.goals import EpisodeSet
from lpwm.stats import Interval, Result, comparison_table, mcnemar, success_interval

MEASURES = ("latched", "terminal")


@dataclass(frozen=True, eq=False)
class Row:
    """One method or control: records[s][p] is what training seed s did with planner seed p."""

    name: str
    records: tuple[tuple[Record, ...], ...]
    seeds: tuple[int | str, ...]
    planner_seeds: tuple[int, ...]
    control: bool = False
    planner: Mapping[str, Any] = field(default_factory=dict)  # solver and its options, H, R, warm, context
    stored: int = 0  # records that came from the store
    names: tuple[tuple[str, ...], ...] = ()  # of the records, in the store

    def success(self, measure: str, budget: int) -> np.ndarray:
        """(S, P, E) bool."""
        return np.array([[getattr(r, measure)(budget) for r in row] for row in self.records])

    def result(self, measure: str, budget: int) -> Result:
        return Result.of(
            self.name,
            self.success(measure, budget),
            episodes=self.records[0][0].ids,
            seeds=self.seeds,
            planner_seeds=self.planner_seeds,
            control=self.control,
        )

    def interval(self, measure: str, budget: int, only: np.ndarray | None = None) -> Interval:
        result = self.result(measure, budget)
        if only is not None:
            result = result.only(episodes=[e for e, kept in zip(result.episodes, only, strict=True) if kept])
        return success_interval(result)

    def as_dict(self, budgets: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for budget in budgets:
            found[str(budget)] = {
                **{m: _interval(self.interval(m, budget)) for m in MEASURES},
                "success": {m: self.success(m, budget).astype(int).tolist() for m in MEASURES},
                "rate_per_seed": {m: self.success(m, budget).mean((1, 2)).tolist() for m in MEASURES},
                "steps_to_success": [[r.steps_to_success(budget).tolist() for r in row] for row in self.records],
                "final_distance": [[r.final_distance(budget).tolist() for r in row] for row in self.records],
            }
        traces = {
            name: [[r.traces[name].mean(0).tolist() for r in row] for row in self.records]
            for name in self.records[0][0].traces
        }
        return {
            "name": self.name,
            "control": self.control,
            "seeds": list(self.seeds),
            "planner_seeds": list(self.planner_seeds),
            "planner": dict(self.planner),
            "budgets": found,
            "mean_latent_distance": traces,
            "wall_s": sum(r.wall_s for row in self.records for r in row),
            "stored_records": self.stored,
            **({"records": [list(line) for line in self.names]} if self.names else {}),
        }


@dataclass(frozen=True, eq=False)
class Cell:
    goals: str
    horizon: int
    receding: int
    rows: tuple[Row, ...]

    @property
    def methods(self) -> list[Row]:
        return [r for r in self.rows if not r.control]

    def tested(self, every: bool) -> Cell:
        """The same cell, success counted only at the ends of executed plans."""
        if every:
            return self
        rows = []
        for row in self.rows:
            records = tuple(tuple(replace(r, tested=self.receding * r.frameskip) for r in line) for line in row.records)
            rows.append(replace(row, records=records))
        return replace(self, rows=tuple(rows))

    def comparison(self, measure: str, budget: int) -> dict[str, Any]:
        """Methods and controls through `comparison_table`; where that cannot be, why, and McNemar on checkpoints.

        McNemar compares two checkpoints with their first planner seed, and says nothing about methods.
        """
        results = [r.result(measure, budget) for r in self.rows]
        try:
            table = comparison_table(results)
        except UserError as error:
            return {"refused": str(error), "checkpoints": self._mcnemar(measure, budget)}
        return {"rates": table.rates, "differences": table.rows, "text": [c.text() for c in table.comparisons]}

    def _mcnemar(self, measure: str, budget: int) -> list[dict[str, Any]]:
        each = [
            (f"{row.name}, seed {seed}", getattr(records[0], measure)(budget))
            for row in self.methods
            for seed, records in zip(row.seeds, row.records, strict=True)
        ]
        out = []
        for i, (a, x) in enumerate(each):
            for b, y in each[i + 1 :]:
                test = mcnemar(x, y)
                out.append(
                    {
                        "a": a,
                        "b": b,
                        "only_a": test.only_a,
                        "only_b": test.only_b,
                        "p": test.p,
                        **_interval(test.difference),
                    }
                )
        return out


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "rate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "level": interval.level,
        "unit": interval.unit,
    }


@dataclass(frozen=True, eq=False)
class Evaluation:
    config: Any  # EvalConfig
    world: Any
    sets: Mapping[str, EpisodeSet]
    cells: tuple[Cell, ...]
    agents: tuple[Agent, ...]
    curves: Mapping[str, Curve]
    groups: Mapping[str, Mapping[str, np.ndarray]]  # goals -> name -> which episodes, (E,) bool
    device: str
    holdout: float
    predicted_s: float | None
    wall_s: float
    missing: tuple[str, ...] = ()  # what was left out because it is not finished

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: everything needed to repeat the evaluation and to check that it repeats."""
        budgets = self.config.budgets
        cells = []
        for cell in self.cells:
            compared = {m: {str(b): cell.comparison(m, b) for b in budgets} for m in MEASURES}
            cells.append(
                {
                    "goals": cell.goals,
                    "horizon": cell.horizon,
                    "receding": cell.receding,
                    "rows": [row.as_dict(budgets) for row in cell.rows],
                    "groups": self._groups(cell),
                    "comparisons": compared,
                }
            )
        return plain(
            {
                "kind": "lpwm evaluation",
                "versions": versions(),
                **origin(),
                "device": self.device,
                "threads": torch.get_num_threads(),
                "settings": to_dict(self.config),
                "world": {"name": self.world.spec.name, "options": self.world.spec.options},
                "holdout": self.holdout,
                "runs": [run_entry(a) for a in self.agents],
                "episode_sets": {kind: s.as_dict() for kind, s in self.sets.items()},
                "cells": cells,
                "curves": {name: c.as_dict() for name, c in self.curves.items()},
                "predicted_s": self.predicted_s,
                "wall_s": self.wall_s,
                **({"missing": list(self.missing)} if self.missing else {}),
            }
        )

    def _groups(self, cell: Cell) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, only in self.groups.get(cell.goals, {}).items():
            out[name] = {"episodes": int(only.sum())}
            if only.any():
                for row in cell.rows:
                    out[name][row.name] = {
                        str(b): {m: _interval(row.interval(m, b, only)) for m in MEASURES} for b in self.config.budgets
                    }
        return out


def run_entry(agent: Agent) -> dict[str, Any]:
    return {
        "name": agent.name,
        "method": agent.method,
        "seed": agent.seed,
        "path": agent.path,
        "run_hash": agent.run_hash,
        "step": agent.step,
        "weights": agent.weights,
        "frameskip": agent.frameskip,
        "images": list(agent.images),
        "normalization": agent.stats.as_dict(),
        "vote": agent.vote if len(agent.models) > 1 else None,
        **agent.provenance,
    }


def versions() -> dict[str, str]:
    return {
        "lpwm": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def plain(x: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, float) and not math.isfinite(x):
        return None
    if isinstance(x, np.generic):
        return plain(x.item())
    return x


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Where two evaluations (as dicts) found other successes, one line each; [] when the second repeats the first."""
    out = []
    for kind, old in before["episode_sets"].items():
        new = after["episode_sets"].get(kind)
        if new is None or new["digest"] != old["digest"]:
            out.append(f"{kind} goals: not the same episodes")

    def successes(data: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
        found: dict[tuple[Any, ...], Any] = {}
        for cell in data["cells"]:
            for row in cell["rows"]:
                for budget, values in row["budgets"].items():
                    for measure, success in values["success"].items():
                        name = (cell["goals"], cell["horizon"], cell["receding"], row["name"], budget, measure)
                        found[name] = success
        return found

    old_all, new_all = successes(before), successes(after)
    for name, success in old_all.items():
        goals, horizon, receding, row, budget, measure = name
        where = f"{goals} goals, H={horizon}, R={receding}, {row}, {budget} steps, {measure}"
        if name not in new_all:
            out.append(f"{where}: not evaluated again")
        elif new_all[name] != success:
            a, b = np.array(success), np.array(new_all[name])
            count = int((a != b).sum()) if a.shape == b.shape else -1
            out.append(f"{where}: {count if count >= 0 else 'all'} of {a.size} outcomes differ")
    return out
