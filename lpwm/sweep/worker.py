"""A worker: claims cells of a sweep and runs them until none is left. Engines only start workers.

    python -m lpwm.sweep.worker FOLDER [--device cpu] [--threads 1] [--only HASH …]

Exit status: 0 nothing is left to claim, 3 interrupted (the cell in hand is released and can be continued).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder
from lpwm.core.json import from_json
from lpwm.sweep.cells import run_cell
from lpwm.sweep.grid import Cell
from lpwm.sweep.ledger import LEASE, Claim, Ledger
from lpwm.train import pick_device
from lpwm.train.loop import Interrupted

INTERRUPTED = 3
Say = Callable[[str], None]


def ledger_of(root: Path, lease: float = LEASE) -> Ledger:
    return Ledger(root / "ledger", lease)


def run_claim(claim: Claim, root: Path, device: torch.device, say: Say) -> None:
    """Run a claimed cell to its end, whatever that is. Nothing escapes but interruption."""
    with finishing(claim, say):
        cell = from_json(Cell, claim.ledger.planned(claim.name), str(claim.ledger.plan / claim.name))
        say(f"{cell.label}: attempt {claim.attempt}")
        result, files = run_cell(cell, root, device, say)
        claim.done(result, files)
        say(f"{cell.label}: done")


@contextlib.contextmanager
def finishing(claim: Claim, say: Say) -> Iterator[None]:
    """The claim beats while the body runs, and ends as the body ends."""
    why, detail = "", ""
    try:
        with claim.beating(lost=_leave):
            yield
    except (KeyboardInterrupt, SystemExit):  # Interrupted is one: a checkpoint is written
        claim.release()
        raise
    except UserError as error:
        why = str(error)
    except Exception as error:
        why, detail = f"{type(error).__name__}: {error}", traceback.format_exc()
    if why:
        say(f"{claim.name}: {detail or why}")
        claim.failed(why, detail)


def _leave() -> None:
    """Somebody else has the cell: ask training to stop as Ctrl-C would."""
    os.kill(os.getpid(), signal.SIGTERM)


def one_cell(root: Path, name: str, device: str, threads: int, lease: float = LEASE, poll: float = 1.0) -> str:
    """Run one cell to an end, waiting while somebody else may be at it; its state afterwards. For engines that
    schedule cells themselves: after a machine died this waits for the dead claim to lapse."""
    torch.set_num_threads(threads)
    ledger, where = ledger_of(root, lease), pick_device(device)
    log = log_to(root, name)
    while True:
        claim = ledger.claim(name)
        if claim is not None:
            run_claim(claim, root, where, log)
        status = ledger.status(name)
        if status.state in ("done", "failed"):
            return status.state
        time.sleep(poll)


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
    while True:
        busy = False
        for name in mine:
            claim = ledger.claim(name)
            if claim is not None:
                run_claim(claim, root, device, say)
                ran += 1
            elif ledger.status(name).state in ("running", "waiting"):
                busy = True
        mine = [n for n in mine if ledger.status(n).state in ("running", "waiting")]
        if not mine or not busy:
            return ran
        time.sleep(poll)


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
