"""One cell: train, evaluate, one JSON record. A pure function of the cell's config, whoever runs it and how often."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lpwm.core.files import make_folder
from lpwm.core.json import from_json
from lpwm.evaluate.cache import Store
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.results import MEASURES, Evaluation
from lpwm.evaluate.results import Cell as EvaluatedCell
from lpwm.evaluate.runs import load_team
from lpwm.sweep.grid import Cell
from lpwm.train import Run
from lpwm.train.log import read_log
from lpwm.train.loop import DeadRun

# Of the log, what a table of cells shows.
KEPT = (
    *("loss", "prediction", "regularizer", "relative_error", "copy_error", "active_fraction", "dead_units"),
    *("effective_dimension", "temporal_variation", "action_sensitivity", "support_instability"),
)


@dataclass(frozen=True)
class Measured:
    """Success of one cell at one budget by one measure."""

    rate: float
    success: tuple[str, ...]  # per planner seed, a string of 0 and 1 over the episodes
    controls: dict[str, float]  # name -> rate


@dataclass(frozen=True)
class Planned:
    """The outcome for one kind of goals and one pair (H, R)."""

    goals: str
    horizon: int
    receding: int
    episodes: str  # digest of the set
    count: int
    budgets: dict[str, dict[str, Measured]]  # budget -> measure

    def at(self, budget: int, measure: str) -> Measured:
        return self.budgets[str(budget)][measure]

    @property
    def largest(self) -> int:
        return max(map(int, self.budgets))


@dataclass(frozen=True)
class HeldOut:
    """The last held-out errors by depth; empty where there were none."""

    step: int = field(default=0, metadata={"omit": True})
    error_depth: tuple[float, ...] = field(default=(), metadata={"omit": True})
    copy_error_depth: tuple[float, ...] = field(default=(), metadata={"omit": True})


@dataclass(frozen=True)
class Seconds:
    train: float
    evaluate: float


@dataclass(frozen=True)
class CellResult:
    """The outcome of a finished cell: `result` of its record."""

    run: str
    data: str
    dead: str  # why the run died; "" if it did not
    step: int
    train: dict[str, float]
    held_out: HeldOut
    evals: dict[str, tuple[Planned, ...]]
    seconds: Seconds


def run_cell(
    cell: Cell, root: Path, device: torch.device, report: Callable[[str], None] = lambda sentence: None
) -> tuple[CellResult, dict[str, str]]:
    """The result and the files of a cell, under ROOT/runs. Raises what training raises; Interrupted can be resumed."""
    began = time.perf_counter()
    job = Run.create(cell.config, root / "runs", cell.name)
    dead = ""
    try:
        job.train(device, console=False, report=report)
    except DeadRun as death:  # a result, not a failure: the same config would die again
        dead = str(death)
    trained = time.perf_counter()
    files = {"run": str(job.folder.relative_to(root))}
    evals = {}
    if not dead and cell.evals:
        team = load_team([job.folder], device=device, data=any("dataset" in e.goals for e in cell.evals.values()))
        store = Store(job.folder.parent / "episodes")
        for name, config in cell.evals.items():
            evaluation = evaluate(
                team.agents, team.world, config, data=team.data, holdout=team.holdout, device=device, store=store
            )
            path = job.folder / "eval" / f"{cell.hash}-{name}.json"
            make_folder(path.parent)
            evaluation.to_json(path)
            files[f"eval {name}"] = str(path.relative_to(root))
            evals[name] = summary(evaluation)
    seconds = Seconds(trained - began, time.perf_counter() - trained)
    result = CellResult(job.hash, job.data.digest, dead, *logged(job.folder), evals, seconds)
    return result, files


def logged(folder: Path) -> tuple[int, dict[str, float], HeldOut]:
    """The last step and numbers of the log."""
    train, val = read_log(folder, "train"), read_log(folder, "val")
    last = train[-1] if train else {}
    held = from_json(HeldOut, val[-1] if val else {}, str(folder))
    return int(last.get("step", 0)), {k: last[k] for k in KEPT if k in last}, held


def summary(evaluation: Evaluation) -> tuple[Planned, ...]:
    """Successes of the cell's model, and the controls' rates."""

    def measured(cell: EvaluatedCell, budget: int, measure: str) -> Measured:
        (row,) = cell.methods
        success = row.success(measure, budget)
        lines = tuple("".join("1" if s else "0" for s in line) for line in success[0])
        controls = {r.name: float(r.success(measure, budget).mean()) for r in cell.rows if r.control}
        return Measured(float(success.mean()), lines, controls)

    out = []
    for cell in evaluation.cells:
        episodes = evaluation.episode_sets[cell.goals]
        budgets = {str(b): {m: measured(cell, b, m) for m in MEASURES} for b in evaluation.settings.budgets}
        out.append(Planned(cell.goals, cell.horizon, cell.receding, episodes.digest, len(episodes.ids), budgets))
    return tuple(out)
