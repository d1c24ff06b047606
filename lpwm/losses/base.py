"""What a regularizer is.

Legend: B batch (of all ranks together), T frames, D latent width, P slices.

Randomness and arithmetic are apart. `draw` makes everything random, eagerly, outside any captured region;
calling the regularizer is deterministic, has static shapes and never waits for the device, so it compiles
and replays as a CUDA graph with the draw as an input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Key = tuple[int | str, ...]
Shape = tuple[int, int, int]  # (B, T, D) of the global batch
Draw = tuple[Tensor, ...]  # tensors only, of constant shape: a trainer may copy them into fixed buffers
Gather = Callable[[Tensor], Tensor]  # all-gather along the batch, in rank order, whose backward sums over ranks


@dataclass(frozen=True)
class Group:
    """This process among those that share a batch."""

    rank: int = 0
    ranks: int = 1
    gather: Gather | None = None


ALONE = Group()


class Regularizer(Protocol):
    """R(z) of loss = prediction + λR(z). With several ranks, the mean over ranks of the returned scalars is the
    statistic of the whole batch, and so is the gradient once it is averaged over ranks (what DDP does)."""

    def draw(self, key: Key, shape: Shape, device: torch.device | str = "cpu", group: Group = ALONE) -> Draw:
        """All randomness of one step, a pure function of `key`; of several ranks, this rank's share of it."""

    def __call__(self, codes_BTD: Tensor, draw: Draw, group: Group = ALONE) -> Tensor:
        """The scalar. `codes_BTD` is this rank's part of the batch; `draw` may be whole or this rank's share."""


def no_autocast(codes: Tensor) -> torch.autocast:
    """Statistics are float32 inside bf16 autocast: their floors are of the size of bf16's rounding."""
    return torch.autocast(device_type=codes.device.type, enabled=False)


def whole_batch(codes_BTD: Tensor, group: Group) -> Tensor:
    """The codes of all ranks, in float32 (float64 stays). Widened first, so that gradients are summed wide."""
    if codes_BTD.dtype != torch.float64:
        codes_BTD = codes_BTD.float()
    return codes_BTD if group.gather is None else group.gather(codes_BTD)


class NoRegularizer:
    """R = 0."""

    def __init__(self, config: None = None, nonnegative: bool = True) -> None:
        pass

    def draw(self, key: Key, shape: Shape, device: torch.device | str = "cpu", group: Group = ALONE) -> Draw:
        return ()

    def __call__(self, codes_BTD: Tensor, draw: Draw = (), group: Group = ALONE) -> Tensor:
        wide = torch.float64 if codes_BTD.dtype == torch.float64 else torch.float32
        return torch.zeros((), device=codes_BTD.device, dtype=wide)
