"""What starts the workers of a sweep: processes here (local), Ray, or Slurm. An engine decides nothing about cells."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from lpwm.core.errors import UserError

Watch = Callable[[], None]  # called about once a second, to show where things stand


@dataclass(frozen=True)
class EngineConfig:
    engine: Literal["local", "ray", "slurm"] = "local"
    """What starts the cells. The ledger in the folder is the truth; engines may even be mixed."""
    workers: int = 0
    """Processes (local), CPUs of the embedded cluster (ray), array elements (slurm); 0: what the machine has, or 8."""
    cpus: int = 1  # CPUs of each cell, and its threads.
    gpus: float = 0.0
    """GPUs of each cell on Ray (0.25 puts four on one) and Slurm; local workers share what --device names."""
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    memory_gib: float = 0.0  # Memory a cell may have; 0: what is free on this machine's device, 16 on Slurm.
    address: str = ""  # Of a running Ray cluster (auto, ray://HOST:10001); empty: a cluster embedded here.
    hours: float = 24.0  # Time limit of a Slurm job; what is cut off is continued by the next.
    slurm_options: tuple[str, ...] = ()
    """Further sbatch options, e.g. --slurm-options partition=gpu account=me; cluster=local runs the jobs here."""
    retries: int = 3  # Of a cell whose process or node dies (ray).
    lease: Annotated[float, tyro.conf.Suppress] = 90.0  # seconds without a heartbeat that void a claim elsewhere

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("cpus", 1), ("gpus", 0), ("memory_gib", 0), ("retries", 0)):
            if not least <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} = {getattr(self, name)}: give at least {least}.")
        if not 0 < self.hours < float("inf"):
            raise UserError(f"hours = {self.hours}: give a time above 0.")

    def load(self) -> Any:
        """The module with this engine's `run`, once what it needs is known to be installed."""
        module = importlib.import_module(f"lpwm.sweep.engines.{self.engine}")
        module.load()
        return module
