"""Workers on this machine: as many processes as fit, restarted when they die."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lpwm.core.errors import UserError
from lpwm.sweep.engines import EngineConfig
from lpwm.sweep.ledger import DEATHS
from lpwm.sweep.worker import ledger_of

Watch = Callable[[], None]  # called about once a second, to show where things stand


def load() -> None:
    """Nothing to install."""


def gpu_count(config: EngineConfig) -> int:
    """GPUs that workers share; 0 when they compute on the CPU."""
    if config.device not in ("auto", "cuda"):
        return int(config.device.startswith("cuda"))
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def worker_count(config: EngineConfig) -> int:
    """As given, or one per GPU, or as many as the cores allow."""
    from lpwm.worlds.pool import cores

    return config.workers or gpu_count(config) or max(1, cores() // config.cpus)


def run(root: Path, names: Sequence[str], config: EngineConfig, watch: Watch = lambda: None) -> None:
    """Until every cell is done or failed. Ctrl-C: workers finish their step, write checkpoints, and leave."""
    ledger = ledger_of(root, config.lease)

    def open_cells() -> list[str]:
        return [n for n in names if ledger.status(n).state in ("waiting", "running")]

    workers: list[subprocess.Popen[bytes]] = []
    count = worker_count(config)
    restarts, most = 0, DEATHS * len(names) + count  # more than the ledger allows: not the cells' fault
    try:
        for i in range(min(count, len(open_cells()))):
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


def start(root: Path, names: Sequence[str], config: EngineConfig, number: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": str(config.cpus), "MKL_NUM_THREADS": str(config.cpus)}
    gpus = gpu_count(config)  # taken in turn
    device = f"cuda:{number % gpus}" if config.device in ("auto", "cuda") and gpus else config.device
    options = f"--threads={config.cpus} --device={device} --lease={config.lease} --parent={os.getpid()}".split()
    command = [sys.executable, "-m", "lpwm.sweep.worker", str(root), *options, "--only", *names]
    # Its own session: Ctrl-C reaches the engine, which passes it on once; twice would skip the checkpoint.
    log = (root / "logs" / f"local-{number}.log").open("ab")
    with log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
        )


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
