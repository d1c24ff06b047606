"""Workers as a Slurm array job, through submitit: each element claims cells until none is left.

A job that Slurm ends (time, pre-emption) gets SIGTERM first: its cell writes a checkpoint and is released, and the
next worker that looks continues it. The ledger must be on a disk that all nodes see.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lpwm.core.errors import UserError
from lpwm.sweep.ledger import LEASE
from lpwm.sweep.worker import ledger_of, log_to, work
from lpwm.train import pick_device

Watch = Callable[[], None]


@dataclass(frozen=True)
class SlurmConfig:
    workers: int = 8  # elements of the array, at most as many as there are cells
    cpus: int = 4
    gpus: int = 0  # per worker
    hours: float = 24.0
    memory_gib: int = 16
    options: dict[str, Any] = field(default_factory=dict)  # further sbatch options: partition, account, …
    device: str = "auto"
    lease: float = LEASE
    cluster: str = "slurm"  # "local" runs the same jobs here, for trying

    def __post_init__(self) -> None:
        if min(self.workers, self.cpus) < 1 or self.hours <= 0 or self.gpus < 0 or self.memory_gib < 1:
            raise UserError("workers, cpus and memory must be at least 1, hours above 0, gpus not below 0.")
        if self.cluster not in ("slurm", "local"):
            raise UserError(f"cluster {self.cluster!r}: choose slurm or local.")


def executor(root: Path, config: SlurmConfig) -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError(
            "the slurm engine needs submitit: pip install 'lpwm[cluster]', or use --engine local."
        ) from None
    try:
        made = submitit.AutoExecutor(folder=str(root / "logs" / "slurm"), cluster=config.cluster)
    except RuntimeError as error:  # no sbatch here
        raise UserError(f"Slurm is not on this machine ({error}): submit from a login node.") from None
    made.update_parameters(
        name="lpwm-sweep",
        timeout_min=max(1, round(60 * config.hours)),
        cpus_per_task=config.cpus,
        mem_gb=config.memory_gib,
        gpus_per_node=config.gpus,
        **({"slurm_array_parallelism": config.workers} if config.cluster == "slurm" else {}),
        **{f"slurm_{k}": v for k, v in config.options.items()},
    )
    return made


def submit(root: Path, names: Sequence[str], config: SlurmConfig) -> list[Any]:
    """The jobs, submitted; nothing waits for them."""
    root = root.resolve()
    ledger = ledger_of(root, config.lease)
    left = [n for n in names if ledger.status(n).state in ("waiting", "running")]
    count = min(config.workers, len(left))
    if not count:
        return []
    made = executor(root, config)
    with made.batch() if config.cluster == "slurm" else contextlib.nullcontext():
        return [made.submit(element, str(root), list(names), config) for _ in range(count)]


def run(root: Path, names: Sequence[str], config: SlurmConfig, watch: Watch = lambda: None) -> None:
    """Submit, then look until the jobs have ended. Ctrl-C stops looking; the jobs go on."""
    jobs = submit(root, names, config)
    while jobs and not all(job.done() for job in jobs):
        watch()
        time.sleep(1.0)


def element(root: str, names: list[str], config: SlurmConfig) -> int:
    """What one array element does."""
    torch.set_num_threads(config.cpus)
    os.environ["OMP_NUM_THREADS"] = str(config.cpus)
    say = log_to(Path(root), f"slurm-{os.environ.get('SLURM_JOB_ID', os.getpid())}")
    device = pick_device("cpu" if config.device == "auto" and not config.gpus else config.device)
    return work(Path(root), device, names=names, lease=config.lease, say=say)
