"""Actions and pixels as the model sees them. Actions are z-scored per raw dimension, frameskip of them side by side in
a block. Pixels are z-scored by how bright the training frames are, for an encoder with pixels="data"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data.episodes import EpisodeData
from lpwm.data.order import clip_starts, splits
from lpwm.worlds.base import World

FLOOR = 1e-6  # an action that never varies is centered, not blown up
FRAMES = 1024  # looked at, evenly spaced over the training split
LEAST_STD = 0.1  # a nearly constant picture is centered, not blown up: no pixel reads beyond ±10


@dataclass(frozen=True)
class ActionStats:
    """Mean and standard deviation of each raw action dimension, over the training split."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, actions: Tensor) -> "ActionStats":
        """actions (N, A); rows that are not finite (the last of each episode) do not count."""
        rows = actions[torch.isfinite(actions).all(dim=1)].to(torch.float64)
        if not len(rows):
            raise UserError("there is no finite action to take statistics of.")
        std = rows.std(dim=0, correction=0)
        std = torch.where(std < FLOOR, torch.ones_like(std), std)
        return cls(tuple(rows.mean(dim=0).tolist()), tuple(std.tolist()))

    def _pair(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if like.shape[-1] % len(self.mean):
            raise UserError(f"actions are {like.shape[-1]} wide, no multiple of {len(self.mean)} as in the statistics.")
        blocks = like.shape[-1] // len(self.mean)
        return like.new_tensor(self.mean * blocks), like.new_tensor(self.std * blocks)

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
    def from_dict(cls, values: Mapping[str, Any]) -> "ActionStats":
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


def pixel_stats(episodes: EpisodeData, world: World | None, size: int, holdout: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (at least LEAST_STD) of each channel over the training frames, white being 1. Frames
    are drawn by `world` at this size, or read as they are stored."""
    train, _ = splits(episodes, holdout)
    rows = clip_starts(episodes.lengths[train], episodes.offsets[train], 0)
    rows = rows[torch.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).round().long()]
    total = torch.zeros(2, 3, dtype=torch.float64)  # sums of integers: exact in any order
    count = 0
    for piece in rows.split(32):
        if world is not None:
            frames = world.render(episodes.states[piece], size)
        else:
            assert episodes.pixels is not None
            stored = [torch.from_numpy(episodes.pixels[r : r + 1]) for r in piece.tolist()]
            frames = torch.cat(stored).permute(0, 3, 1, 2)
        x = frames.transpose(0, 1).flatten(1).double()
        total += torch.stack((x.sum(1), x.square().sum(1)))
        count += x.shape[1]
    mean, square = total / count
    std = (square - mean.square()).clamp(min=0).sqrt()
    return (mean / 255).float(), (std / 255).clamp(min=LEAST_STD).float()
