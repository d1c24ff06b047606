"""The optimizer of a run. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lpwm.core.errors import UserError, choose
from lpwm.core.registry import Registry
from lpwm.optim.schedule import SCHEDULES

OPTIMIZERS: Registry[Any] = Registry("optimizer", {"adam": "torch.optim:Adam", "adamw": "torch.optim:AdamW"})


@dataclass(frozen=True)
class OptimConfig:
    """The defaults are the ladder's; see recipes for the support pipeline's."""

    name: str = "adamw"
    lr: float = 5e-4  # η
    weight_decay: float = 0.01  # on matrices alone; ignored by Adam
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    mup: bool = True
    input_lr: Literal["constant", "fan_in"] = "constant"
    clip: float = 0.0  # largest gradient norm; 0 = no clipping
    schedule: str = "constant"
    warmup: float = 0.0  # share of the steps

    def __post_init__(self) -> None:
        OPTIMIZERS.check(self.name)
        choose("schedule", self.schedule, SCHEDULES)
        if not self.lr > 0:
            raise UserError(f"optim.lr = {self.lr} must be positive.")
        if not 0 <= self.warmup < 1:
            raise UserError(f"optim.warmup = {self.warmup} is a share of the steps and must be in [0, 1).")
        if min(self.weight_decay, self.clip) < 0:
            raise UserError("optim.weight_decay and optim.clip must not be negative.")
