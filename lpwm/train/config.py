"""How a run is trained and judged. Nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from lpwm.core.errors import UserError


@dataclass(frozen=True)
class HealthConfig:
    """When a run counts as dead. Each threshold lies well away from the healthy runs measured: small Piecewise models
    (28-pixel frames, D = 64, 64 clips a batch), sparse, dense and plain ReLU, four rungs, from step 300 on."""

    # Below it a code cannot hold a dot's state; left at 2, a world's own is used (4 for PushT). Healthy: 3.8–14.
    min_dimension: float = 2.0
    # Healthy small models: below 0.12. Large ones stay above for thousands of steps: this only warns.
    max_relative_error: float = 0.5
    # Of the codes' RMS and of their deviation from the mean code. Healthy: above 0.17; without a regularizer 0.0004.
    min_std: float = 0.01
    # Healthy: above 0.04; a code linear in the position of a slow dot 0.002; the rounding of bf16 alone 4e-6.
    min_variation: float = 1e-4
    # Healthy: above 0.1; trained with actions shuffled across the batch: below 0.0013.
    min_sensitivity: float = 0.003
    # Share of the steps, and number of them, that is not judged: AdaLN-zero and LTI start action-blind.
    grace: float = 0.1
    min_steps: int = 500
    # Log points in a row that must agree.
    patience: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.grace <= 1:
            raise UserError(f"health.grace = {self.grace} is a share of the steps: give 0 to 1.")
        if self.patience < 1:
            raise UserError(f"health.patience = {self.patience} log points must be at least 1.")
        for name in ("min_dimension", "max_relative_error", "min_std", "min_variation", "min_sensitivity", "min_steps"):
            if not getattr(self, name) >= 0:
                raise UserError(f"health.{name} = {getattr(self, name)} must not be negative.")

    def for_world(self, degrees_of_freedom: int) -> HealthConfig:
        """With the world's own number of dimensions, unless the field was set."""
        if self.min_dimension != HealthConfig.min_dimension:
            return self
        return replace(self, min_dimension=float(max(degrees_of_freedom, self.min_dimension)))

    def judged_after(self, steps: int) -> int:
        """The last step of the grace period."""
        return max(self.min_steps, math.ceil(self.grace * steps))


@dataclass(frozen=True)
class TrainConfig:
    """How long, how often, and on what."""

    steps: int = 10_000
    batch: int = 64  # clips of the global batch, over all ranks
    seed: int = 0
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA, float32 on CPU
    # auto: on CUDA; graph: captured without compiling
    compile: Literal["auto", "on", "graph", "off"] = "auto"
    kernels: Literal["auto", "off"] = "auto"  # own Triton kernels in the encoder, where they serve (CUDA, bf16)
    accumulate: int = 1  # micro-batches per step, with the gradient of the whole batch
    log_every: int = 50
    eval_every: int = 1000  # held-out errors; 0 = only at the end
    eval_batches: int = 4
    checkpoint_every: int = 1000
    keep: int = 2  # last checkpoints kept, and the best
    stop_dead: bool = True  # a run that is dead says so; whether it also stops
    health: HealthConfig = field(default_factory=HealthConfig)

    def __post_init__(self) -> None:
        ones = ("steps", "batch", "accumulate", "log_every", "keep", "eval_batches", "checkpoint_every")
        for name, least in (*((name, 1) for name in ones), ("eval_every", 0)):
            if getattr(self, name) < least:
                raise UserError(f"train.{name} = {getattr(self, name)} must be at least {least}.")
