"""A sweep folder: what was asked, and where it stands.

sweep.json   the grid's name and settings, and the hashes of its cells in order
ledger/      the truth;  runs/  run folders and data;  logs/  what workers said
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.version import __version__
from lpwm.sweep.grid import Cell, Grid
from lpwm.sweep.ledger import Ledger, Status
from lpwm.sweep.worker import ledger_of
from lpwm.train.log import read_log

KIND = "lpwm sweep"
STATES = ("done", "running", "waiting", "failed")


def _cells(n: int) -> str:
    return f"{n} cell" if n == 1 else f"{n} cells"


def create(grid: Grid, cells: Sequence[Cell], root: Path) -> Ledger:
    """The folder of a sweep with its cells entered; one that is there already is continued."""
    make_folder(root / "logs")
    ledger = ledger_of(root).open()
    ledger.sweep_up()
    ledger.add(cell.as_dict() for cell in cells)
    content = {
        "kind": KIND,
        "name": grid.name,
        "lpwm": __version__,
        "recipe": grid.recipe,
        "seeds": list(grid.seeds),
        "select_seeds": list(grid.select_seeds),
        "measure": grid.measure,
        "goals": grid.goals,
        "axes": [[list(a.fields), [list(v) for v in a.values]] for a in grid.axes],
        "fixed": dict(grid.fixed),
        "cells": [cell.hash for cell in cells],
    }
    write_whole(root / "sweep.json", json.dumps(content, indent=1) + "\n")
    return ledger


def is_sweep(folder: str | Path) -> bool:
    return (Path(folder) / "sweep.json").exists()


def find_sweep(folder: Path, out: Path) -> Path:
    """The sweep that is meant: `folder` itself, its name in `out`, or the only sweep inside one of the two."""
    places = list(dict.fromkeys((folder, out / folder)))  # the same if it is absolute
    for place in places:
        if is_sweep(place):
            return place
    for place in places:
        inside = sorted(p.parent for p in place.glob("*/sweep.json"))
        if len(inside) == 1:
            return inside[0]
        if inside:
            raise UserError(
                f"{place} holds {len(inside)} sweeps ({', '.join(p.name for p in inside)}): "
                f"name one, as in {inside[0]}."
            )
    said = f"neither {places[0]} nor {places[-1]} is" if len(places) > 1 else f"{folder} is not"
    raise UserError(f"{said} a sweep or a folder of sweeps: there is no sweep.json. lpwm sweep makes one.")


def read_sweep(root: str | Path) -> dict[str, Any]:
    path = Path(root) / "sweep.json"
    try:
        content = json.loads(path.read_text())
        if content["kind"] != KIND:
            raise ValueError
        return content
    except FileNotFoundError:
        raise UserError(f"{root} is not a sweep: it has no sweep.json. lpwm sweep makes one.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged: start the same lpwm sweep again, which writes it anew.") from None


@dataclass(frozen=True)
class Row:
    cell: Mapping[str, Any]
    status: Status
    progress: float  # 0…1 of the training steps, while it runs
    seconds: float  # taken (done), or so far (running)
    outcome: str  # success, death or failure in words


@dataclass(frozen=True)
class View:
    name: str
    rows: tuple[Row, ...]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(str(r.status.state) for r in self.rows)
        return {s: found[s] for s in STATES}

    @property
    def open(self) -> bool:
        return bool(self.counts["running"] or self.counts["waiting"])

    def line(self) -> str:
        parts = [f"{n} {state}" for state, n in self.counts.items() if n]
        return f"{self.name}: {_cells(len(self.rows))}: {', '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "counts": self.counts,
            "cells": [
                {
                    "hash": r.status.hash,
                    "name": r.cell["name"],
                    "where": r.cell["where"],
                    "seed": r.cell["config"]["train"]["seed"],
                    "state": r.status.state,
                    "attempt": r.status.attempt,
                    "host": r.status.claim.get("host"),
                    "pid": r.status.claim.get("pid"),
                    "progress": r.progress,
                    "seconds": r.seconds,
                    "outcome": r.outcome,
                }
                for r in self.rows
            ],
        }


def view(root: str | Path) -> View:
    """Where every cell of a sweep stands now."""
    root = Path(root)
    sweep, ledger = read_sweep(root), ledger_of(root)
    return View(sweep["name"], tuple(_row(root, ledger, name, sweep) for name in sweep["cells"]))


def _row(root: Path, ledger: Ledger, name: str, sweep: Mapping[str, Any]) -> Row:
    status, cell = ledger.status(name), ledger.planned(name)
    record = ledger.record(name) if status.state == "done" else None
    if record is not None:
        return Row(cell, status, 1.0, record["finished"] - record["started"], outcome(record, sweep))
    progress = _progress(root, cell, status.since) if status.state == "running" else 0.0
    return Row(cell, status, progress, time.time() - status.since if status.state == "running" else 0.0, status.why)


def watcher(root: str | Path) -> Callable[[], str]:
    """A cheap line about a sweep, to be asked again and again: what is done stays done and is not read twice."""
    sweep, ledger = read_sweep(root), ledger_of(Path(root))
    left, done = set(sweep["cells"]), 0

    def line() -> str:
        nonlocal done
        states = {name: ledger.status(name).state for name in left}
        finished = {name for name, state in states.items() if state == "done"}
        done += len(finished)
        left.difference_update(finished)
        counts = Counter(str(s) for s in states.values() if s != "done")
        parts = [f"{n} {s}" for s, n in (("done", done), *((s, counts[s]) for s in STATES[1:])) if n]
        return f"{sweep['name']}: {_cells(len(sweep['cells']))}: {', '.join(parts)}"

    return line


def outcome(record: Mapping[str, Any], sweep: Mapping[str, Any]) -> str:
    result = record["result"]
    if result["dead"]:
        return result["dead"]
    parts = []
    for name, cells in result["evals"].items():
        judged = [c for c in cells if c["goals"] == sweep["goals"]] or cells
        for cell in judged:
            budget = max(cell["budgets"], key=int)
            rate = cell["budgets"][budget][sweep["measure"]]["rate"]
            parts.append(f"{name} {cell['goals']} R={cell['receding']} {100 * rate:.0f} %")
    if not parts and result["held_out"]:
        parts = [f"held-out error {result['held_out']['error_depth'][0]:.3f}"]
    return "; ".join(parts)


def _progress(root: Path, cell: Mapping[str, Any], since: float) -> float:
    """From the log of the run, found by its config: the run's hash needs the data, which may not exist yet.

    A run writes run.json when it starts and when it continues, so that older folders are not its.
    """
    stem = cell["name"].replace("/", "-")
    for folder in (root / "runs").glob(f"{stem}-*"):
        try:
            if (folder / "run.json").stat().st_mtime < since - 60:  # clocks may differ a little
                continue
            if json.loads((folder / "run.json").read_text())["config"] == cell["config"]:
                train = read_log(folder, "train")
                return float(train[-1]["step"] / cell["config"]["train"]["steps"]) if train else 0.0
        except (OSError, ValueError, KeyError, UserError):
            continue
    return 0.0


def table(found: View, limit: int = 40) -> str:
    """The view as text: what runs and what failed first, then the rest."""
    order = {"running": 0, "failed": 1, "waiting": 2, "done": 3}
    rows = sorted(found.rows, key=lambda r: order[r.status.state])
    lines = []
    for r in rows[:limit]:
        at = [f"{k.rpartition('.')[2]} {v}" for k, v in r.cell["where"].items()]
        where = ", ".join([*at, f"seed {r.cell['config']['train']['seed']}"])
        now = {"running": f"{100 * r.progress:.0f} % on {r.status.claim.get('host')}", "waiting": ""}
        told = now.get(r.status.state, r.outcome)
        again = f" (attempt {r.status.attempt})" if r.status.attempt > 1 else ""
        lines.append(f"{r.status.hash}  {r.status.state:<7}  {r.seconds:6.0f} s  {where}{again}  {told}")
    if len(rows) > limit:
        lines.append(f"… and {len(rows) - limit} more (--json lists all)")
    return "\n".join([found.line(), *lines])
