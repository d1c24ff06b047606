"""Small parts that several networks share. Legend: B batch, N tokens, D width, h heads, d width of a head."""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(fan_in: int, fan_out: int, bias: bool = True, problem: bool = False) -> nn.Linear:
    """A Linear that remembers whether its fan-in is a width or set by the problem (pixels, raw actions, rank). μP
    scales the rate of the former only; see `lpwm.optim.mup`."""
    layer = nn.Linear(fan_in, fan_out, bias=bias)
    layer.problem_fan_in = problem  # type: ignore[assignment]
    return layer


class BatchNorm(nn.Module):
    """Batch normalization over every leading axis, with the statistics of the *global* batch.

    torch's SyncBatchNorm needs CUDA. This one takes any differentiable all-reduce (`reduce`, set by the trainer
    when there are several ranks) and so gives the same numbers on CPU and GPU, on one rank and on many:
    sums, sums of squares and counts are added over ranks before they are divided.
    """

    running_mean: Tensor
    running_var: Tensor
    mup: ClassVar = {"*": "norm"}

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.eps, self.momentum = eps, momentum
        self.reduce: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        if not self.training:
            scale = self.weight * torch.rsqrt(self.running_var + self.eps)
            return torch.addcmul(self.bias - self.running_mean * scale, x, scale).to(dtype)
        flat = x.reshape(-1, x.shape[-1])
        flat = flat if flat.dtype == torch.float64 else flat.float()
        mean, var, count = self._moments(flat)
        with torch.no_grad():
            unbiased = var * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        y = (flat - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return y.to(dtype).reshape(x.shape)

    def _moments(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = torch.full((1,), float(flat.shape[0]), device=flat.device, dtype=flat.dtype)
        if self.reduce is None:
            var, mean = torch.var_mean(flat, dim=0, correction=0)
            return mean, var, count
        total = self.reduce(torch.cat((flat.sum(0), count)))
        count = total[-1:].detach()
        mean = total[:-1] / count
        var = self.reduce((flat - mean).square().sum(0)) / count  # two passes: no cancellation
        return mean, var, count


NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": BatchNorm}


class TwoLayer(nn.Sequential):
    """Linear, norm, GELU, Linear: the projector of the encoder and the head of the AdaLN predictors."""

    def __init__(self, fan_in: int, hidden: int, fan_out: int, norm: str) -> None:
        super().__init__(linear(fan_in, hidden), NORMS[norm](hidden), nn.GELU(), linear(hidden, fan_out))


def short_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q kᵀ/√d) v for a handful of tokens: (…, N, h, d), (…, M, h, d) -> (…, N, h, d). Histories are one to four
    frames long. At that length products and sums that the compiler fuses beat any attention kernel, and leading shapes
    may broadcast (one shared history under many samples)."""
    scores = (q.unsqueeze(-3) * k.unsqueeze(-4)).sum(-1) * q.shape[-1] ** -0.5  # (…, N, M, h)
    if mask is not None:
        scores = scores.masked_fill(mask.unsqueeze(-1), float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    weight = scores.softmax(dim=-2, dtype=wide).to(v.dtype)
    if dropout:
        weight = F.dropout(weight, dropout)
    return (weight.unsqueeze(-1) * v.unsqueeze(-4)).sum(-3)
