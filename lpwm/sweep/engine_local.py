"""Workers on this machine: as many processes as fit, restarted when they die. Nothing to install.

The engine decides nothing about cells: it starts workers, and they take what the ledger offers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lpwm.errors import UserError
from lpwm.sweep.ledger import LEASE
from lpwm.sweep.worker import ledger_of

Watch = Callable[[], None]  # called about once a second, to show where things stand


@dataclass(frozen=True)
class LocalConfig:
    workers: int = 0  # 0: as many as the cores allow
    cpus: int = 1  # threads of each
    device: str = "auto"  # of every worker; cuda takes the GPUs in turn
    stack_seeds: bool = False
    lease: float = LEASE

    def __post_init__(self) -> None:
        if self.workers < 0 or self.cpus < 1:
            raise UserError("workers must not be negative and cpus at least 1.")

    @property
    def count(self) -> int:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.workers or max(1, cores // self.cpus)


def run(root: Path, names: Sequence[str], config: LocalConfig, watch: Watch = lambda: None) -> None:
    """Until every cell is done or failed. Ctrl-C: workers finish their step, write checkpoints, and leave."""
    ledger = ledger_of(root, config.lease)

    def open_cells() -> list[str]:
        return [n for n in names if ledger.status(n).state in ("waiting", "running")]

    left, workers = open_cells(), []
    try:
        for i in range(min(config.count, len(left))):
            workers.append(start(root, names, config, i))
        while workers:
            time.sleep(0.5)
            watch()
            gone = [(i, w) for i, w in enumerate(workers) if w.poll() is not None]
            for i, worker in gone:
                # 0: nothing left to claim. Anything else: it died, and the ledger knows how often for this cell.
                if worker.returncode != 0 and (left := open_cells()):
                    workers[i] = start(root, names, config, i)
            if all(w.poll() is not None for w in workers):
                break
    finally:
        stop(workers)


def start(root: Path, names: Sequence[str], config: LocalConfig, number: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": str(config.cpus), "MKL_NUM_THREADS": str(config.cpus)}
    command = [sys.executable, "-m", "lpwm.sweep.worker", str(root), "--threads", str(config.cpus),
               "--device", device_of(config.device, number), "--lease", str(config.lease)]  # fmt: skip
    if config.stack_seeds:
        command.append("--stack")
    command += ["--only", *names]
    # Its own session: Ctrl-C reaches the engine, which passes it on once; twice would skip the checkpoint.
    log = (root / "logs" / f"local-{number}.log").open("ab")
    with log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                start_new_session=True)  # fmt: skip


def device_of(device: str, number: int) -> str:
    if device not in ("auto", "cuda"):
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{number % count}" if count else device


def stop(workers: Sequence[subprocess.Popen[bytes]], patience: float = 60.0) -> None:
    """Ask, wait for checkpoints, then insist."""
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
    until = time.monotonic() + patience
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(0.1, until - time.monotonic()))
        if worker.poll() is None:
            worker.kill()
            worker.wait()
