"""Workers as a Slurm array job, through submitit: each element claims cells until none is left.

A job that Slurm ends (time, pre-emption) gets SIGTERM first: its cell writes a checkpoint and is released, and the
next worker that looks continues it. The ledger must be on a disk that all nodes see.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lpwm.core.errors import UserError, choose, need
from lpwm.sweep.engines import EngineConfig, Watch
from lpwm.sweep.worker import ledger_of, log_to, work
from lpwm.train import parse_options, pick_device

WORKERS = 8  # elements of the array unless given, at most as many as there are cells


def load() -> Any:
    return need("submitit", "the slurm engine needs submitit: pip install 'lpwm[cluster]', or --engine local.")


def executor(root: Path, config: EngineConfig) -> tuple[Any, str]:
    """submitit's, and the cluster it submits to: slurm, or local for the same jobs here."""
    options = parse_options(config.slurm_options)
    cluster = options.pop("cluster", "slurm")
    choose("cluster", cluster, {"slurm": 0, "local": 0})
    try:
        made = load().AutoExecutor(folder=str(root / "logs" / "slurm"), cluster=cluster)
    except RuntimeError as error:  # no sbatch here
        raise UserError(f"Slurm is not on this machine ({error}): submit from a login node.") from None
    made.update_parameters(
        name="lpwm-sweep",
        timeout_min=max(1, round(60 * config.hours)),
        cpus_per_task=config.cpus,
        mem_gb=round(config.memory_gib) or 16,
        gpus_per_node=int(config.gpus),
        **({"slurm_array_parallelism": config.workers or WORKERS} if cluster == "slurm" else {}),
        **{f"slurm_{k}": v for k, v in options.items()},
    )
    return made, cluster


def submit(root: Path, names: Sequence[str], config: EngineConfig) -> list[Any]:
    """The jobs, submitted; nothing waits for them."""
    root = root.resolve()
    ledger = ledger_of(root, config.lease)
    left = [n for n in names if ledger.status(n).state in ("waiting", "running")]
    count = min(config.workers or WORKERS, len(left))
    if not count:
        return []
    made, cluster = executor(root, config)
    with made.batch() if cluster == "slurm" else contextlib.nullcontext():
        return [made.submit(element, str(root), list(names), config) for _ in range(count)]


def run(root: Path, names: Sequence[str], config: EngineConfig, watch: Watch = lambda: None) -> None:
    """Submit, then look until the jobs have ended. Ctrl-C stops looking; the jobs go on."""
    jobs = submit(root, names, config)
    while jobs and not all(job.done() for job in jobs):
        watch()
        time.sleep(1.0)


def element(root: str, names: list[str], config: EngineConfig) -> int:
    """What one array element does."""
    torch.set_num_threads(config.cpus)
    os.environ["OMP_NUM_THREADS"] = str(config.cpus)
    say = log_to(Path(root), f"slurm-{os.environ.get('SLURM_JOB_ID', os.getpid())}")
    device = pick_device("cpu" if config.device == "auto" and not config.gpus else config.device)
    return work(Path(root), device, names=names, lease=config.lease, say=say)
