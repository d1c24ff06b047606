"""How bright the training frames are: what an encoder with pixels="data" measures its pixels by."""

from __future__ import annotations

import torch
from torch import Tensor

from lpwm.data.episodes import EpisodeData
from lpwm.data.order import splits
from lpwm.worlds.base import World

FRAMES = 1024  # looked at, evenly spaced over the training split
LEAST_STD = 0.1  # a nearly constant picture is centered, not blown up: no pixel reads beyond ±10


def pixel_stats(episodes: EpisodeData, world: World | None, size: int, holdout: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (at least LEAST_STD) of each channel over the training frames, white being 1.

    A function of the data alone: neither the training seed nor the device plays a part. Frames are drawn by `world`
    at this size, or read as they are stored.
    """
    train, _ = splits(episodes, holdout)
    spans = [(int(episodes.offsets[e]), int(episodes.lengths[e])) for e in train.tolist()]
    rows = torch.cat([torch.arange(first, first + length) for first, length in spans])
    rows = rows[torch.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).round().long()]
    total = torch.zeros(2, 3, dtype=torch.float64)  # sums of integers: exact in any order
    count = 0
    for piece in rows.split(32):
        x = _frames(episodes, world, size, piece).transpose(0, 1).flatten(1).double()
        total += torch.stack((x.sum(1), x.square().sum(1)))
        count += x.shape[1]
    mean, square = total / count
    std = (square - mean.square()).clamp(min=0).sqrt()
    return (mean / 255).float(), (std / 255).clamp(min=LEAST_STD).float()


def _frames(episodes: EpisodeData, world: World | None, size: int, rows: Tensor) -> Tensor:
    """(n, 3, h, w) uint8, on the CPU."""
    if world is not None:
        return world.render(episodes.states[rows], size)
    assert episodes.pixels is not None
    return torch.cat([torch.from_numpy(episodes.pixels[r : r + 1]) for r in rows.tolist()]).permute(0, 3, 1, 2)
