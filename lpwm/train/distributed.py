"""Several processes as one: what every rank must see of the others.

The contract: the global batch is cut into contiguous slices, one per rank (uneven where it does not divide); each rank
computes a scalar whose *mean over ranks* is the loss of the global batch; gradients are averaged over ranks. Then loss
and gradients of N ranks equal those of one process, regularizer and BatchNorm included, because both see every code:

  reduce   the sum over ranks; its backward is the sum over ranks
  gather   all codes, in rank order: the sum of each rank's codes among zeros

This is the only file that talks to other processes. Gradients are averaged in one flat buffer after the backward pass.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.losses.base import Group
from lpwm.model.layers import BatchNorm


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _Reduce.forward(ctx, grads[0])


def join(device: str, local: int) -> None:
    """Meet the processes torchrun started: through NCCL on GPUs, each with its own, and gloo on CPUs."""
    if device != "cuda":
        dist.init_process_group("gloo")
        return
    count = torch.cuda.device_count()
    if local >= count:
        raise UserError(
            f"process {local + 1} of this machine needs a GPU of its own and there are {count}: start at most {count} "
            f"(torchrun --nproc-per-node {count}), or run with --device cpu."
        )
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))


@dataclass(frozen=True)
class Ranks:
    """This process among its peers. One process alone is `Ranks()`."""

    rank: int = 0
    ranks: int = 1
    local: int = 0  # which device of this machine

    @classmethod
    def from_environment(cls, device: str) -> "Ranks":
        """What torchrun set up; a lone process where it set up nothing."""
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if ranks == 1:
            return cls()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if not dist.is_initialized():
            join(device, local)
        return cls(dist.get_rank(), ranks, local)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to talk to."""
        return self.ranks == 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sizes(self, batch: int) -> tuple[int, ...]:
        """How many clips of a global batch each rank has."""
        edges = [r * batch // self.ranks for r in range(self.ranks + 1)]
        sizes = tuple(b - a for a, b in zip(edges, edges[1:], strict=False))
        if min(sizes) < 1:
            raise UserError(f"a batch of {batch} clips cannot feed {self.ranks} processes: use {self.ranks} or more.")
        return sizes

    def share(self, batch: int) -> float:
        """What this rank's mean counts: b·N/B, so that the mean over ranks is the mean over clips."""
        return self.sizes(batch)[self.rank] * self.ranks / batch

    def group(self, batch: int) -> Group:
        """This process as the losses of a global batch see it."""
        sizes, rank = self.sizes(batch), self.rank
        if self.alone:
            return Group()
        around = [sum(sizes[:rank]), sum(sizes[rank + 1 :])]  # clips of other ranks before and after this one's
        total = torch.compiler.disable(self.reduce)

        def gather(x: Tensor) -> Tensor:
            return total(F.pad(x, [0, 0] * (x.ndim - 1) + around))

        return Group(rank, self.ranks, gather)

    def reduce(self, x: Tensor) -> Tensor:
        return x if self.alone else _Reduce.apply(x)

    def join_norms(self, model: nn.Module) -> None:
        """Give every BatchNorm the statistics of the global batch."""
        if not self.alone:
            for module in model.modules():
                if isinstance(module, BatchNorm):
                    module.reduce = torch.compiler.disable(self.reduce)

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        if self.alone:
            return
        grads = []
        for p in parameters:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # unused on this rank: it takes part
                grads.append(p.grad)
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= self.ranks
        for g, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            g.copy_(mean.view_as(g))

    @torch.no_grad()
    def mean(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Scalars averaged over ranks, in one call."""
        if self.alone or not values:
            return values
        flat = self.reduce(torch.stack([v.detach().float() for v in values.values()])) / self.ranks
        return dict(zip(values, flat.unbind(), strict=True))

    def agree(self, value: bool, device: torch.device) -> bool:
        """Whether any rank says yes: interrupts and deaths must stop all of them at the same step."""
        if self.alone:
            return value
        return bool(self.reduce(torch.tensor(float(value), device=device)).item())

    def wait(self) -> None:
        if not self.alone:
            dist.barrier()

    def leave(self) -> None:
        if not self.alone and dist.is_initialized():
            dist.destroy_process_group()
