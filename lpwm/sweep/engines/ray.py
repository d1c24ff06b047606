"""Cells as Ray tasks: on an embedded cluster of this machine, or on a real one.

Ray starts tasks again when a worker or a node dies, and holds no results: a task claims its cell in the ledger, which
all nodes must see. One started again elsewhere waits until the dead claim lapses, then continues from its checkpoint.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError, need
from lpwm.sweep.engines import EngineConfig, Watch
from lpwm.sweep.worker import ledger_of, one_cell

TASK = one_cell  # what a Ray task does


def load() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return need("ray", "the ray engine needs Ray: pip install 'lpwm[cluster]', or use --engine local.")


@contextlib.contextmanager
def cluster(config: EngineConfig) -> Iterator[Any]:
    """Ray, connected; an embedded cluster ends with the sweep, a real one stays."""
    ray = load()
    here = not ray.is_initialized()
    if here:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if config.address:
            options["address"] = config.address
        else:
            options |= {"include_dashboard": False, "num_cpus": config.workers or None}
        try:
            ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"no Ray cluster at {config.address or 'this machine'}: {error}") from None
    try:
        yield ray
    finally:
        if here:
            ray.shutdown()


def run(root: Path, names: Sequence[str], config: EngineConfig, watch: Watch = lambda: None) -> None:
    """Until every cell is done or failed."""
    ledger, root = ledger_of(root, config.lease), root.resolve()
    open_cells = [n for n in names if ledger.status(n).state in ("waiting", "running")]
    with cluster(config) as ray:
        _check_room(ray, config)
        path = os.environ.get("PYTHONPATH", "")
        # max_calls=1 would start a process per cell; workers are kept, and with them the imports.
        needs = {"num_cpus": config.cpus, "num_gpus": config.gpus, "max_retries": config.retries}
        task = ray.remote(**needs, runtime_env={"env_vars": {"PYTHONPATH": path}} if path else {})(TASK)
        # Ray shows a cell only its own GPUs; without any the cell computes on the CPU.
        device = config.device if config.device != "auto" else "cuda" if config.gpus else "cpu"
        waiting = [task.remote(root, name, device, config.cpus, config.lease) for name in open_cells]
        lost: list[str] = []
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, timeout=1.0)
                for reference in ready:
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayError as error:
                        lost.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
                watch()
        except BaseException:
            for reference in waiting:
                ray.cancel(reference)  # a KeyboardInterrupt in the task: it writes a checkpoint
            with contextlib.suppress(Exception):
                ray.wait(waiting, num_returns=len(waiting), timeout=30.0)
            raise
    left = [n for n in names if ledger.status(n).state in ("waiting", "running")]
    if lost and left:
        raise UserError(f"Ray gave up on {len(left)} cells ({lost[0]}): run the same command again to continue them.")


def _check_room(ray: Any, config: EngineConfig) -> None:
    """A task that fits nowhere would wait for ever."""
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    fits = any(n.get("CPU", 0) >= config.cpus and n.get("GPU", 0) >= min(config.gpus, 1) for n in nodes)
    if not fits and not config.address:  # a real cluster may grow
        raise UserError(f"no node has {config.cpus:g} CPUs and {config.gpus:g} GPUs: lower --cpus or --gpus.")
