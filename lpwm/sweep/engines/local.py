"""Workers on this machine: as many processes as fit, restarted when they die.

On GPUs the first worker of each starts alone: what it compiles the others find, and its memory says how many fit. Then
there are four times as many, again and again, while that makes all of them together faster.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lpwm.core.errors import UserError
from lpwm.sweep.engines import EngineConfig, Watch
from lpwm.sweep.ledger import DEATHS
from lpwm.sweep.status import view
from lpwm.sweep.worker import ledger_of
from lpwm.worlds.pool import cores


def load() -> None:
    """Nothing to install."""


def gpu_count(config: EngineConfig) -> int:
    """GPUs that workers share; 0 when they compute on the CPU."""
    if config.device not in ("auto", "cuda"):
        return int(config.device.startswith("cuda"))
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def worker_count(config: EngineConfig) -> int:
    """As given, or one per GPU to begin with, or as many as the cores allow."""
    return config.workers or gpu_count(config) or max(1, cores() // config.cpus)


GAIN = 1.2  # of steps per second, for which four times as many workers are worth their memory
WINDOW = 5.0  # seconds over which steps are counted


def gpu_use(device: str) -> tuple[float, float, float] | None:
    """MiB used and in all, and the share of time with a kernel running (percent), of the GPUs that workers share; None
    where nvidia-smi cannot say."""
    query = ["nvidia-smi", "--query-gpu=memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits"]
    shown, number = os.environ.get("CUDA_VISIBLE_DEVICES", ""), device.partition(":")[2]
    try:
        which = shown.split(",")[int(number)] if shown and number else shown or number
        query += ["-i", which] if which else []
        lines = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
        used, total, busy = zip(*(map(float, line.split(",")) for line in lines), strict=True)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return sum(used), sum(total), sum(busy) / len(busy)


class Growth:
    """How many workers share the GPUs. Without nvidia-smi: one each."""

    def __init__(self, gpus: int, most: int, device: str = "cuda") -> None:
        self.count, self.most, self.rates, self.device = gpus, max(gpus, most), [0.0], device
        self.before, self.busy = gpu_use(device), list[float]()
        self.settled = self.before is None
        self._from: tuple[float, dict[str, float]] | None = None

    def look(self, steps: dict[str, float]) -> int:
        """How many workers there should be, given the steps so far of each cell that trains."""
        now, use = time.monotonic(), gpu_use(self.device) if self.before else None
        if use is not None:
            self.busy.append(use[2])
        if self.settled or use is None or self.before is None:
            return self.count
        if len(steps) < self.count or (self._from and set(self._from[1]) != set(steps)):
            self._from = None  # not all of them train, or others than before
        elif self._from is None:
            self._from = (now, steps)
        elif now - self._from[0] >= WINDOW:
            rate = sum(steps[n] - self._from[1][n] for n in steps) / (now - self._from[0])
            each = max(1.0, (use[0] - self.before[0]) / self.count)
            fits = int(0.8 * (use[1] - self.before[0]) / each)  # plans and captures need some more
            more = min(4 * self.count, self.most, fits)
            self.settled = rate < GAIN * self.rates[-1] or more <= self.count
            self.rates.append(rate)
            self.count, self._from = self.count if self.settled else more, None
        return self.count

    def summary(self) -> str:
        rate = f"{max(self.rates):.0f} steps/s together, " if max(self.rates) else ""
        busy = f"{rate}GPU busy {sum(self.busy) / max(1, len(self.busy)):.0f} % of the time"
        return f"up to {self.count} runs side by side, {busy}" if self.busy else ""


def run(root: Path, names: Sequence[str], config: EngineConfig, watch: Watch = lambda: None) -> str:
    """Until every cell is done or failed; what the GPUs did. Ctrl-C: workers finish their step, write checkpoints, and
    leave."""
    ledger = ledger_of(root, config.lease)

    def open_cells() -> list[str]:
        return [n for n in names if ledger.status(n).state in ("waiting", "running")]

    workers: list[subprocess.Popen[bytes]] = []
    gpus = gpu_count(config)
    growth = Growth(gpus, cores() // config.cpus, config.device) if gpus and not config.workers else None
    count, looked = min(worker_count(config), len(open_cells())), time.monotonic()
    restarts, most = 0, DEATHS * len(names)  # more than the ledger allows: not the cells' fault
    going = count > 0
    try:
        while going:
            while len(workers) < count:
                workers.append(start(root, names, config, len(workers)))
            time.sleep(0.5)
            watch()
            going = False
            for i, worker in enumerate(workers):
                # 0: nothing left to claim. Anything else: it died, and the ledger knows how often for this cell.
                if worker.poll() not in (None, 0) and open_cells():
                    restarts += 1
                    if restarts > most + len(workers):
                        raise UserError(f"workers die before they take a cell: see {root}/logs/local-{i}.log.")
                    workers[i] = start(root, names, config, i)
                going |= worker is not workers[i] or worker.poll() is None
            if growth is not None and going and time.monotonic() - looked > 2:
                looked = time.monotonic()
                trains = {c.hash: c.progress * c.steps for c in view(root).cells if 0 < c.progress < 1}
                count = min(growth.look(trains), len(open_cells()))
    finally:
        stop(workers)
    return growth.summary() if growth is not None else ""


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
