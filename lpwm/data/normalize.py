"""Actions as the model sees them: z-scored per raw dimension, frameskip of them side by side in a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError

FLOOR = 1e-6  # an action that never varies is centered, not blown up


@dataclass(frozen=True)
class ActionStats:
    """Mean and standard deviation of each raw action dimension, over the training split."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, actions: Tensor) -> ActionStats:
        """actions (N, A); rows that are not finite (the last of each episode) do not count."""
        rows = actions[torch.isfinite(actions).all(dim=1)].to(torch.float64)
        if not len(rows):
            raise UserError("there is no finite action to take statistics of.")
        std = rows.std(dim=0, correction=0)
        std = torch.where(std < FLOOR, torch.ones_like(std), std)
        return cls(tuple(rows.mean(dim=0).tolist()), tuple(std.tolist()))

    def _pair(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if like.shape[-1] % len(self.mean):
            raise UserError(
                f"actions are {like.shape[-1]} wide, which is no multiple of the {len(self.mean)} raw dimensions "
                "of these statistics."
            )
        blocks = like.shape[-1] // len(self.mean)
        mean = torch.tensor(self.mean * blocks, dtype=like.dtype, device=like.device)
        std = torch.tensor(self.std * blocks, dtype=like.dtype, device=like.device)
        return mean, std

    def normalize(self, actions: Tensor) -> Tensor:
        """(…, A) or blocks (…, A·frameskip) -> the same shape, z-scored."""
        mean, std = self._pair(actions)
        return (actions - mean) / std

    def denormalize(self, actions: Tensor) -> Tensor:
        """The inverse of `normalize`."""
        mean, std = self._pair(actions)
        return actions * std + mean

    def as_dict(self) -> dict[str, list[float]]:
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ActionStats:
        try:
            mean, std = (tuple(float(x) for x in values[name]) for name in ("mean", "std"))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError("action statistics need two lists of numbers, 'mean' and 'std'.") from error
        if len(mean) != len(std) or not mean or not all(s > 0 for s in std):
            raise UserError("action statistics need as many standard deviations (> 0) as means.")
        return cls(mean, std)


def to_blocks(actions: Tensor, frameskip: int) -> Tensor:
    """(…, n·frameskip, A) -> (…, n, frameskip·A): the raw actions of a block side by side, in time."""
    *lead, steps, size = actions.shape
    return actions.reshape(*lead, steps // frameskip, frameskip * size)


def from_blocks(blocks: Tensor, frameskip: int) -> Tensor:
    """(…, n, frameskip·A) -> (…, n·frameskip, A)."""
    *lead, n, size = blocks.shape
    return blocks.reshape(*lead, n * frameskip, size // frameskip)
