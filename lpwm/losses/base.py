"""What a regularizer is.

Legend: B batch (of all ranks together), T frames, D latent width, P slices.

Randomness and arithmetic are apart. `draw` makes everything random, eagerly, outside any captured region;
calling the regularizer is deterministic, has static shapes and never waits for the device, so it compiles
and replays as a CUDA graph with the draw as an input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Key = tuple[int | str, ...]
Draw = tuple[Tensor, ...]  # tensors only, of constant shape: a trainer may copy them into fixed buffers
Gather = Callable[[Tensor], Tensor]  # all-gather along the batch, in rank order, whose backward sums over ranks


class Regularizer(Protocol):
    """R(z) of loss = prediction + λR(z).

    With several ranks, the mean over ranks of the returned scalars is the statistic of the whole batch,
    and so is the gradient once it is averaged over ranks (what DDP does).
    """

    def draw(
        self,
        key: Key,
        batch: int,
        time: int,
        dim: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
    ) -> Draw:
        """All randomness of one step, a pure function of `key`; `batch` is the global batch.

        With `ranks` > 1 only this rank's share is returned: what it draws is the same on every rank.
        """
        ...

    def __call__(
        self, codes_BTD: Tensor, draw: Draw, gather: Gather | None = None, rank: int = 0, ranks: int = 1
    ) -> Tensor:
        """The scalar. `codes_BTD` is this rank's part of the batch; `draw` may be whole or this rank's share."""
        ...


def no_autocast(codes: Tensor) -> torch.autocast:
    """Statistics are float32 inside bf16 autocast: their floors are of the size of bf16's rounding."""
    return torch.autocast(device_type=codes.device.type, enabled=False)


def whole_batch(codes_BTD: Tensor, gather: Gather | None) -> Tensor:
    """The codes of all ranks, in float32 (float64 stays). Widened first, so that gradients are summed wide."""
    if codes_BTD.dtype != torch.float64:
        codes_BTD = codes_BTD.float()
    return codes_BTD if gather is None else gather(codes_BTD)
