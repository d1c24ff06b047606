"""A worker: claims cells of a sweep and runs them until none is left. Engines only start workers.

    python -m lpwm.sweep.worker FOLDER [--device cpu] [--threads 1] [--only HASH …]

Exit status: 0 nothing is left to claim, 3 interrupted (the cell in hand is released and can be continued).
"""

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder
from lpwm.core.json import from_json
from lpwm.core.lock import LEASE as TRAINING_LEASE
from lpwm.core.lock import Busy
from lpwm.evaluate.episodes import Store
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.results import MEASURES, Evaluation
from lpwm.evaluate.results import Cell as EvaluatedCell
from lpwm.evaluate.runs import load_team
from lpwm.sweep.grid import Cell
from lpwm.sweep.ledger import LEASE, Claim, Ledger
from lpwm.train import Run, pick_device
from lpwm.train.log import last_record
from lpwm.train.loop import DeadRun, Interrupted

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
        try:
            return self.budgets[str(budget)][measure]
        except KeyError:
            raise UserError(f"the evaluation has no {measure[:40]!r} at {budget} steps: restore the record.") from None

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
    cell: Cell,
    root: Path,
    device: torch.device,
    report: Callable[[str], None] = lambda sentence: None,
    lease: float = TRAINING_LEASE,
) -> tuple[CellResult, dict[str, str]]:
    """The result and the files of a cell, under ROOT/runs. Raises what training raises; Interrupted can be resumed."""
    began = time.perf_counter()
    job = Run.create(cell.config, root / "runs", cell.name)
    dead = ""
    try:
        job.train(device, console=False, report=report, lease=lease)
    except DeadRun as death:  # a result, not a failure: the same config would die again
        dead = str(death)
    trained, evals = time.perf_counter(), {}
    files = {"run": str(job.folder.relative_to(root))}
    if not dead and cell.evals:
        team = load_team([job.folder], device=device, data=any("dataset" in e.goals for e in cell.evals.values()))
        store = Store(job.folder.parent / "episodes")
        for name, config in cell.evals.items():
            evaluation = evaluate(
                team.agents, team.world, config, data=team.data, holdout=team.holdout, device=device, store=store
            )
            path = job.folder / "eval" / f"{cell.hash}-{name}.json"
            evaluation.to_json(path)
            files[f"eval {name}"] = str(path.relative_to(root))
            evals[name] = summary(evaluation)
    seconds = Seconds(trained - began, time.perf_counter() - trained)
    result = CellResult(job.hash, job.data.digest, dead, *logged(job.folder), evals, seconds)
    return result, files


def logged(folder: Path) -> tuple[int, dict[str, float], HeldOut]:
    """The last step and numbers of the log."""
    last, held = last_record(folder, "train"), last_record(folder, "val")
    kept = {k: last.values[k] for k in KEPT if k in last.values}
    return last.step, kept, from_json(HeldOut, held.values, str(folder))


def summary(evaluation: Evaluation) -> tuple[Planned, ...]:
    """Successes of the cell's model, and the controls' rates."""

    def measured(cell: EvaluatedCell, budget: int, measure: str) -> Measured:
        (row,) = cell.methods
        success = row.success(measure, budget)
        lines = tuple("".join("1" if s else "0" for s in line) for line in success[0])
        controls = {r.name: float(r.success(measure, budget).mean()) for r in cell.rows if r.control}
        return Measured(float(success.mean()), lines, controls)

    def planned(cell: EvaluatedCell) -> Planned:
        episodes = evaluation.episode_sets[cell.goals]
        budgets = {str(b): {m: measured(cell, b, m) for m in MEASURES} for b in evaluation.settings.budgets}
        return Planned(cell.goals, cell.horizon, cell.receding, episodes.digest, len(episodes.ids), budgets)

    return tuple(map(planned, evaluation.cells))


INTERRUPTED = 3
Say = Callable[[str], None]


def ledger_of(root: Path, lease: float = LEASE) -> Ledger:
    return Ledger(root / "ledger", lease)


def run_claim(claim: Claim, root: Path, device: torch.device, say: Say) -> None:
    """Run a claimed cell to its end, whatever that is. Nothing escapes but interruption."""
    why, detail = "", ""
    try:
        # Where somebody else has taken the cell, training is asked to stop as Ctrl-C would.
        with claim.beating(lost=lambda: os.kill(os.getpid(), signal.SIGTERM)):
            cell = from_json(Cell, claim.ledger.planned(claim.name), str(claim.ledger.plan / claim.name))
            say(f"{cell.label}: attempt {claim.attempt}")
            claim.done(*run_cell(cell, root, device, say, claim.ledger.lease))
            say(f"{cell.label}: done")
            return
    except (KeyboardInterrupt, SystemExit):  # Interrupted is one: a checkpoint is written
        claim.release()
        raise
    except Busy as error:  # another cell trains the same run, or a sleeper has not lost it yet
        say(f"{claim.name}: {error}")
        claim.release(str(error))
        time.sleep(5.0)
        return
    except UserError as error:
        why = str(error)
    except Exception as error:
        why, detail = f"{type(error).__name__}: {error}", traceback.format_exc()
    say(f"{claim.name}: {detail or why}")
    claim.failed(why, detail)


def one_cell(root: Path, name: str, device: str, threads: int, lease: float = LEASE, poll: float = 1.0) -> str:
    """Run one cell to an end, waiting while somebody else may be at it; its state afterwards. For engines that
    schedule cells themselves: after a machine died this waits for the dead claim to lapse."""
    torch.set_num_threads(threads)
    work(root, pick_device(device), names=[name], lease=lease, say=log_to(root, name), poll=poll)
    return ledger_of(root, lease).status(name).state


def work(
    root: Path,
    device: torch.device,
    *,
    names: Sequence[str] | None = None,
    lease: float = LEASE,
    say: Say = lambda sentence: None,
    poll: float = 1.0,
) -> int:
    """Claim and run until nothing is left; how many cells were run. Cells in other hands are waited for: they may
    come back."""
    ledger, ran = ledger_of(root, lease), 0
    mine = list(names) if names is not None else ledger.names()
    while mine:
        for name in mine:
            claim = ledger.claim(name)
            if claim is not None:
                run_claim(claim, root, device, say)
                ran += 1
        mine = [n for n in mine if ledger.status(n).state in ("running", "waiting")]
        if mine:
            time.sleep(poll)
    return ran


def log_to(root: Path, name: str) -> Say:
    path = root / "logs" / f"{name}.log"
    make_folder(path.parent)

    def say(sentence: str) -> None:
        with path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {os.getpid()} {sentence}\n")

    return say


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lpwm.sweep.worker", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lease", type=float, default=LEASE)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--parent", type=int, default=0, help="stop when this process is no longer the parent")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.parent:
        threading.Thread(target=_follow_parent, args=(args.parent,), daemon=True).start()
    say = log_to(args.folder, f"worker-{os.getpid()}")
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))  # training has its own while it runs
        work(args.folder, pick_device(args.device), names=args.only, lease=args.lease, say=say)
    except (Interrupted, KeyboardInterrupt, SystemExit):
        return INTERRUPTED
    return 0


def _follow_parent(parent: int) -> None:
    """A worker whose engine was killed stops at its next step, rather than going on unseen."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
