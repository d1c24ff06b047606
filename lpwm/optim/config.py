"""The optimizer of a run. Nothing here imports torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lpwm.core.errors import UserError, at_least, choose
from lpwm.core.registry import Registry


def constant(progress: float) -> float:
    return 1.0


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": constant, "cosine": cosine}


def factor(schedule: str, warmup: float, step: int, steps: int) -> float:
    """The multiple of the peak rate at `step` of `steps`: a linear warm-up over a share of them, then the schedule. The
    first step is already above 0 (step 0 of a warm-up of w steps has 1/w), the last of a cosine just above 0."""
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / max(steps - rising, 1))


OPTIMIZERS: Registry[Any] = Registry("optimizer", {"adam": "torch.optim:Adam", "adamw": "torch.optim:AdamW"})


@dataclass(frozen=True)
class OptimConfig:
    """The defaults are the ladder's; see recipes for the support pipeline's."""

    name: str = "adamw"  # adam or adamw
    lr: float = 5e-4  # learning rate, η
    weight_decay: float = 0.01  # on matrices alone; ignored by Adam
    betas: tuple[float, float] = (0.9, 0.999)  # Adam's
    eps: float = 1e-8  # Adam's
    mup: bool = True  # learning rates by width, so that one η serves all widths
    input_lr: Literal["constant", "fan_in"] = "constant"  # η of input layers; fan_in: divided by it, as the authors do
    clip: float = 0.0  # largest gradient norm; 0 = no clipping
    schedule: str = "constant"  # constant or cosine
    warmup: float = 0.0  # share of the steps

    def __post_init__(self) -> None:
        OPTIMIZERS.check(self.name)
        choose("schedule", self.schedule, SCHEDULES)
        if not self.lr > 0:
            raise UserError(f"optim.lr = {self.lr} must be positive.")
        if not 0 <= self.warmup < 1:
            raise UserError(f"optim.warmup = {self.warmup} is a share of the steps and must be in [0, 1).")
        at_least(0, self, "optim", "weight_decay", "clip", "eps")
