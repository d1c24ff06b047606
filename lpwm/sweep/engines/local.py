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

from lpwm.core.errors import UserError
from lpwm.sweep.ledger import DEATHS, LEASE
from lpwm.sweep.worker import ledger_of

Watch = Callable[[], None]  # called about once a second, to show where things stand


@dataclass(frozen=True)
class LocalConfig:
    workers: int = 0  # 0: one per GPU, or as many as the cores allow
    cpus: int = 1  # threads of each
    device: str = "auto"  # of every worker; cuda takes the GPUs in turn
    lease: float = LEASE

    def __post_init__(self) -> None:
        if self.workers < 0 or self.cpus < 1:
            raise UserError("workers must not be negative and cpus at least 1.")

    @property
    def gpus(self) -> int:
        """GPUs that workers share; 0 when they compute on the CPU."""
        if self.device not in ("auto", "cuda"):
            return int(self.device.startswith("cuda"))
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    @property
    def count(self) -> int:
        """Workers: as given, or one per GPU, or as many as the cores allow."""
        if self.workers or self.gpus:
            return self.workers or self.gpus
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // self.cpus)


def run(root: Path, names: Sequence[str], config: LocalConfig, watch: Watch = lambda: None) -> None:
    """Until every cell is done or failed. Ctrl-C: workers finish their step, write checkpoints, and leave."""
    ledger = ledger_of(root, config.lease)

    def open_cells() -> list[str]:
        return [n for n in names if ledger.status(n).state in ("waiting", "running")]

    workers: list[subprocess.Popen[bytes]] = []
    restarts, most = (0, DEATHS * len(names) + config.count)  # more than the ledger allows: not the cells' fault
    try:
        for i in range(min(config.count, len(open_cells()))):
            workers.append(start(root, names, config, i))
        while workers:
            time.sleep(0.5)
            watch()
            again = False
            for i, worker in enumerate(workers):
                # 0: nothing left to claim. Anything else: it died, and the ledger knows how often for this cell.
                if worker.poll() not in (None, 0) and open_cells():
                    restarts += 1
                    if restarts > most:
                        raise UserError(f"workers die before they take a cell: see {root}/logs/local-{i}.log.")
                    workers[i], again = start(root, names, config, i), True
            if not again and all(w.poll() is not None for w in workers):
                break
    finally:
        stop(workers)


def start(root: Path, names: Sequence[str], config: LocalConfig, number: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": str(config.cpus), "MKL_NUM_THREADS": str(config.cpus)}
    options = {
        "threads": config.cpus,
        "device": device_of(config, number),
        "lease": config.lease,
        "parent": os.getpid(),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "lpwm.sweep.worker", str(root), *words, "--only", *names]
    # Its own session: Ctrl-C reaches the engine, which passes it on once; twice would skip the checkpoint.
    log = (root / "logs" / f"local-{number}.log").open("ab")
    with log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
        )


def device_of(config: LocalConfig, number: int) -> str:
    """GPUs are taken in turn."""
    return f"cuda:{number % config.gpus}" if config.device in ("auto", "cuda") and config.gpus else config.device


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
