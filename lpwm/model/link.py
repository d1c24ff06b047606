"""The link: the last non-linearity, shared by encoder and predictor, that makes zeros exact."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Link = Callable[[Tensor], Tensor]


def identity(u: Tensor) -> Tensor:
    """The dense baseline."""
    return u


def relu(u: Tensor) -> Tensor:
    return torch.relu(u)


def reprelu(u: Tensor) -> Tensor:
    """relu(u) forwards, gelu'(u) backwards: a unit that is off still learns.

    The grouping matters. gelu(u) − sg(gelu(u)) is exactly 0, and relu(u) + 0 is relu(u) bit for bit;
    summed left to right, (relu + gelu) − gelu is relu only up to rounding. `+ 0` also turns −0 into +0.
    """
    g = F.gelu(u)
    return torch.relu(u).detach() + (g - g.detach())
