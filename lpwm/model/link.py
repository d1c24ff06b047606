"""The link: the last non-linearity, shared by encoder and predictor, that makes zeros exact."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Link = Callable[[Tensor], Tensor]


def identity(u: Tensor) -> Tensor:
    """The dense baseline."""
    return u


def relu(u: Tensor) -> Tensor:
    return torch.relu(u)


class _RepReLU(torch.autograd.Function):
    @staticmethod
    def forward(u: Tensor) -> Tensor:
        return torch.relu(u) + 0  # −0 becomes +0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return torch.ops.aten.gelu_backward(gradient, u)


def reprelu(u: Tensor) -> Tensor:
    """relu(u) forwards, gelu'(u) backwards: a unit that is off still learns. Not written as relu(u) + gelu(u) −
    gelu(u): a compiler that fuses multiply and add may leave a residue for a zero."""
    return _RepReLU.apply(u)
