"""One cell: train, evaluate, one JSON record. A pure function of the cell's config, whoever runs it and how often."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lpwm.core.files import make_folder
from lpwm.core.json import to_json
from lpwm.evaluate.cache import Store
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.results import MEASURES, Evaluation
from lpwm.evaluate.runs import Team, load_team
from lpwm.sweep.grid import Cell
from lpwm.train import Run
from lpwm.train.log import read_log
from lpwm.train.loop import DeadRun

# Of the log, what a table of cells shows.
KEPT = (
    "loss",
    "prediction",
    "regularizer",
    "relative_error",
    "copy_error",
    "active_fraction",
    "dead_units",
    "effective_dimension",
    "temporal_variation",
    "action_sensitivity",
    "support_instability",
)


def run_cell(
    cell: Cell, root: Path, device: torch.device, report: Callable[[str], None] = lambda sentence: None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The result and the files of a cell, under ROOT/runs. Raises what training raises; Interrupted can be resumed."""
    began = time.perf_counter()
    job = Run.create(cell.config, root / "runs", cell.name)
    dead = ""
    try:
        job.train(device, console=False, report=report)
    except DeadRun as death:  # a result, not a failure: the same config would die again
        dead = str(death)
    return finish_cell(cell, job, root, device, dead, time.perf_counter() - began)


def finish_cell(
    cell: Cell, job: Run, root: Path, device: torch.device, dead: str, train_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """What comes after training: the evaluations, and the record."""
    files = {"run": str(job.folder.relative_to(root))}
    began, evals = time.perf_counter(), {}
    if not dead and cell.evals:
        team = load_team([job.folder], device=device, data=any("dataset" in e.goals for e in cell.evals.values()))
        for name in cell.evals:
            found = evaluated(cell, name, team, job.folder.parent / "episodes", device)
            path = job.folder / "eval" / f"{cell.hash}-{name}.json"
            make_folder(path.parent)
            found.to_json(path)
            files[f"eval {name}"] = str(path.relative_to(root))
            evals[name] = summary(found)
    result = {
        "run": job.hash,
        "data": job.data.digest,
        "dead": dead,
        **logged(job.folder),
        "evals": evals,
        "seconds": {"train": train_s, "evaluate": time.perf_counter() - began},
    }
    return to_json(result), files


def evaluated(cell: Cell, name: str, team: Team, store: Path, device: torch.device) -> Evaluation:
    return evaluate(
        team.agents,
        team.world,
        cell.evals[name],
        data=team.data,
        holdout=team.holdout,
        device=device,
        store=Store(store),
    )


def logged(folder: Path) -> dict[str, Any]:
    """The last numbers of the log."""
    train, val = read_log(folder, "train"), read_log(folder, "val")
    last, held = (train[-1] if train else {}), (val[-1] if val else {})
    return {
        "step": last.get("step", 0),
        "train": {k: last[k] for k in KEPT if k in last},
        "held_out": {k: v for k, v in held.items() if k in ("step", "error_depth", "copy_error_depth")},
    }


def summary(found: Evaluation) -> list[dict[str, Any]]:
    """Successes of the cell's model, per planner seed and episode as a string of 0 and 1, and the controls' rates."""
    out = []
    for cell in found.cells:
        (row,) = cell.methods
        entry: dict[str, Any] = {
            "goals": cell.goals,
            "horizon": cell.horizon,
            "receding": cell.receding,
            "episodes": found.episode_sets[cell.goals].digest,
            "count": len(found.episode_sets[cell.goals].ids),
            "budgets": {},
        }
        for budget in found.settings.budgets:
            entry["budgets"][str(budget)] = {
                m: {
                    "rate": float(row.success(m, budget).mean()),
                    "success": ["".join("1" if s else "0" for s in line) for line in row.success(m, budget)[0]],
                    "controls": {r.name: float(r.success(m, budget).mean()) for r in cell.rows if r.control},
                }
                for m in MEASURES
            }
        out.append(entry)
    return out


def same_result(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two records found the same, times aside."""
    strip = [{k: v for k, v in r["result"].items() if k != "seconds"} for r in (a, b)]
    return strip[0] == strip[1]
