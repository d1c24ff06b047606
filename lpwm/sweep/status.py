"""A sweep folder: what it is made of, and where it stands.

sweep.json   the grid's name and settings, and the hashes of its cells in order
ledger/      the truth;  runs/  run folders and data;  logs/  what workers said
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import dump_json, from_json, read_json
from lpwm.core.version import __version__
from lpwm.sweep.grid import Cell, Grid
from lpwm.sweep.ledger import Ledger, State
from lpwm.sweep.worker import CellResult, ledger_of
from lpwm.train import read_record
from lpwm.train.log import last_record

KIND = "lpwm sweep"
STATES: tuple[State, ...] = ("done", "running", "waiting", "failed")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """sweep.json."""

    kind: str = KIND
    name: str
    lpwm: str = ""
    recipe: str = ""
    seeds: tuple[int, ...]
    select_seeds: tuple[int, ...]
    measure: str
    goals: str
    axes: tuple[tuple[Any, ...], ...] = ()  # fields, and values of each point
    fixed: dict[str, Any] = field(default_factory=dict)
    cells: tuple[str, ...]  # hashes

    @classmethod
    def read(cls, root: str | Path) -> "Sweep":
        path = Path(root) / "sweep.json"
        if not path.exists():
            raise UserError(f"{root} is not a sweep: it has no sweep.json. lpwm sweep makes one.")
        try:
            return from_json(cls, read_json(path, kind=KIND), str(path))
        except UserError as error:
            why = str(error).removeprefix(f"{path}").lstrip(": ")
            raise UserError(f"{path} is damaged; the same lpwm sweep writes it anew: {why}") from None


def create(grid: Grid, cells: Sequence[Cell], root: Path) -> Ledger:
    """The folder of a sweep with its cells entered; one that is there already is continued."""
    make_folder(root / "logs")
    ledger = ledger_of(root).open()
    ledger.sweep_up()
    ledger.add({cell.hash: cell for cell in cells})
    same = {of: getattr(grid, of) for of in ("name", "recipe", "seeds", "select_seeds", "measure", "goals", "fixed")}
    axes = tuple((a.fields, a.values) for a in grid.axes)
    sweep = Sweep(**same, lpwm=__version__, axes=axes, cells=tuple(cell.hash for cell in cells))
    write_whole(root / "sweep.json", dump_json(sweep, indent=1))
    return ledger


def find_sweep(folder: Path, out: Path) -> Path:
    """The sweep that is meant: `folder` itself, its name in `out`, or the only sweep inside one of the two."""
    places = list(dict.fromkeys((folder, out / folder)))  # the same if it is absolute
    for pattern in ("sweep.json", "*/sweep.json"):
        for place in places:
            inside = sorted(p.parent for p in place.glob(pattern))
            if len(inside) == 1:
                return inside[0]
            if inside:
                names = ", ".join(p.name for p in inside)
                raise UserError(f"{place} holds {len(inside)} sweeps ({names}): name one, as in {inside[0]}.")
    said = f"neither {places[0]} nor {places[-1]} is" if len(places) > 1 else f"{folder} is not"
    raise UserError(f"{said} a sweep or a folder of sweeps: there is no sweep.json. lpwm sweep makes one.")


@dataclass(frozen=True)
class CellStatus:
    hash: str
    name: str
    where: dict[str, Any]  # axis -> value
    seed: int
    state: State
    attempt: int
    host: str | None
    pid: int | None
    steps: int  # of its training
    progress: float  # 0…1 of them, while it runs
    seconds: float  # taken (done), or so far (running)
    outcome: str  # success, death or failure in words


@dataclass(frozen=True)
class View:
    """Where a sweep stands."""

    name: str
    counts: dict[str, int]
    cells: tuple[CellStatus, ...]

    @property
    def open(self) -> bool:
        return bool(self.counts["running"] or self.counts["waiting"])

    def line(self) -> str:
        return _line(self.name, self.counts)


def _line(name: str, counts: dict[str, int]) -> str:
    cells, parts = sum(counts.values()), [f"{n} {state}" for state, n in counts.items() if n]
    return f"{name}: {cells} cell{'s' if cells != 1 else ''}: {', '.join(parts)}"


def view(root: str | Path) -> View:
    """Where every cell of a sweep stands now."""
    root = Path(root)
    sweep, ledger = Sweep.read(root), ledger_of(root)
    cells = tuple(_cell(root, ledger, name, sweep) for name in sweep.cells)
    count = Counter(c.state for c in cells)
    return View(sweep.name, {s: count[s] for s in STATES}, cells)


def _cell(root: Path, ledger: Ledger, name: str, sweep: Sweep) -> CellStatus:
    status, cell = ledger.status(name), from_json(Cell, ledger.planned(name), f"the plan of cell {name}")
    record, owner = ledger.record(name) if status.state == "done" else None, status.claim
    progress, seconds, outcome = 0.0, 0.0, status.why
    if record is not None:
        result = from_json(CellResult, record.result, f"the record of cell {name}")
        progress, seconds, outcome = 1.0, record.seconds, _outcome(result, sweep)
    elif status.state == "running" and owner is not None:
        progress, seconds = _progress(root, cell, owner.started), time.time() - owner.started
    who = (owner.host or None, owner.pid or None) if owner else (None, None)
    place, steps = (name, cell.name, cell.where, cell.config.train.seed), cell.config.train.steps
    return CellStatus(*place, status.state, status.attempt, *who, steps, progress, seconds, outcome)


def watcher(root: str | Path) -> Callable[[], str]:
    """A cheap line about a sweep, to be called again and again: what is done stays done and is not read twice."""
    sweep, ledger = Sweep.read(root), ledger_of(Path(root))
    left = set(sweep.cells)

    def line() -> str:
        states = {name: ledger.status(name).state for name in left}
        left.difference_update(name for name, state in states.items() if state == "done")
        count, done = Counter(states[name] for name in left), len(sweep.cells) - len(left)
        return _line(sweep.name, {"done": done} | {s: count[s] for s in STATES[1:]})

    return line


def _outcome(result: CellResult, sweep: Sweep) -> str:
    if result.dead:
        return result.dead
    parts = []
    for name, every in result.evals.items():
        for cell in [c for c in every if c.goals == sweep.goals] or every:
            rate = cell.at(cell.largest, sweep.measure).rate
            parts.append(f"{name} {cell.goals} R={cell.receding} {100 * rate:.0f} %")
    if not parts and result.held_out.error_depth:
        parts = [f"held-out error {result.held_out.error_depth[0]:.3f}"]
    return "; ".join(parts)


def _progress(root: Path, cell: Cell, since: float) -> float:
    """From the log of the run, found by its config: the run's hash needs the data, which may not exist yet.
    A run writes run.json when it starts and when it continues, so that older folders are not its."""
    for path in (root / "runs").glob(f"{cell.name.replace('/', '-')}-*/run.json"):
        try:
            if path.stat().st_mtime < since - 60:  # clocks may differ a little
                continue
            if read_record(path.parent).config == cell.config:
                return last_record(path.parent, "train").step / cell.config.train.steps
        except (OSError, UserError):
            continue
    return 0.0


def table(status: View, limit: int = 40) -> str:
    """The view as text: what runs and what failed first, then the rest."""
    order = {"running": 0, "failed": 1, "waiting": 2, "done": 3}
    cells = sorted(status.cells, key=lambda c: order[c.state])
    lines = []
    for c in cells[:limit]:
        where = ", ".join([*(f"{k.rpartition('.')[2]} {v}" for k, v in c.where.items()), f"seed {c.seed}"])
        told = {"running": f"{100 * c.progress:.0f} % on {c.host}", "waiting": ""}.get(c.state, c.outcome)
        again = f" (attempt {c.attempt})" if c.attempt > 1 else ""
        lines.append(f"{c.hash}  {c.state:<7}  {c.seconds:6.0f} s  {where}{again}  {told}")
    if len(cells) > limit:
        lines.append(f"… and {len(cells) - limit} more (--json lists all)")
    return "\n".join([status.line(), *lines])
