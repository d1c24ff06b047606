"""Random slices: the unit vectors on which codes are projected. The only place that makes them and projects.

A slice set is a pure function of its generator's key (seed, step, …), hence equal on all ranks; rank r works
on slices r, r+ranks, r+2·ranks, …, so that coordinate and uniform slices are dealt evenly.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lpwm import kernels
from lpwm.core.errors import UserError
from lpwm.losses.base import Group


def draw_slices(slices: int, dim: int, axis_fraction: float, generator: torch.Generator) -> Tensor:
    """(P, D) float32 unit vectors: round(axis_fraction·P) coordinate vectors, the rest uniform on the sphere.
    Coordinates are dealt in random order without repetition until all have had their turn."""
    device = generator.device
    n_axis = round(axis_fraction * slices)
    # A Gaussian vector has a uniform direction.
    parts = [normalize(torch.randn(slices - n_axis, dim, generator=generator, device=device), dim=1)]
    if n_axis:
        rounds = -(-n_axis // dim)
        order = torch.rand(rounds, dim, generator=generator, device=device).argsort(dim=1).flatten()[:n_axis]
        parts.insert(0, torch.zeros(n_axis, dim, device=device).scatter_(1, order[:, None], 1.0))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def share(x: Tensor, slices: int, group: Group, dim: int = 0) -> Tensor:
    """This rank's part of `x`, whose dimension `dim` runs over all slices or over this rank's share already."""
    rank, ranks = group.rank, group.ranks
    if x.shape[dim] == slices and ranks > 1:
        x = x[(slice(None),) * dim + (slice(rank, None, ranks),)]
    expected = len(range(rank, slices, ranks))
    if x.shape[dim] != expected:
        raise UserError(f"the draw has {x.shape[dim]} slices, rank {rank} of {ranks} needs {expected}: draw anew.")
    return x


def project(slices_PD: Tensor, z_BTD: Tensor) -> Tensor:
    """⟨w, z_t⟩, (T, P, B): the batch along memory, where it is sorted. Slices have no gradient."""
    in_pieces = z_BTD.is_cuda and z_BTD.requires_grad
    return _InPieces.apply(slices_PD, z_BTD) if in_pieces else _product(slices_PD, z_BTD)


def _product(slices_PD: Tensor, z_BTD: Tensor) -> Tensor:
    return torch.matmul(slices_PD, z_BTD.permute(1, 2, 0))


class _InPieces(torch.autograd.Function):
    """The product, and its gradient with the long sum over slices in pieces that are summed side by side. The result of
    the gradient's product is small and its inner dimension long: in float32 cuBLAS gives few programs all of it, and
    8,192 slices of 256 codes of width 384 take 0.27 ms on an H200."""

    @staticmethod
    def forward(ctx: Any, slices_PD: Tensor, z_BTD: Tensor) -> Tensor:
        ctx.save_for_backward(slices_PD)
        return _product(slices_PD, z_BTD)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[None, Tensor]:
        (slices_PD,), (g_TPB,) = ctx.saved_tensors, gradient
        (P, D), (T, _, B) = slices_PD.shape, g_TPB.shape
        S = pieces(P)
        g_SpN = g_TPB.transpose(0, 1).reshape(S, P // S, T * B)
        with torch.autocast(g_TPB.device.type, enabled=False):
            dz_DN = torch.bmm(slices_PD.reshape(S, P // S, D).transpose(1, 2), g_SpN).sum(0)
        return None, dz_DN.view(D, T, B).permute(2, 1, 0)


def pieces(slices: int) -> int:
    """Into how many equal pieces the sum over slices is cut: a power of 2, of at least 256 slices each."""
    S = 1
    while slices % (2 * S) == 0 and slices // (2 * S) >= 256:
        S *= 2
    return S


@torch.library.custom_op("lpwm::match_rows", mutates_args=(), device_types="cpu")
def match_rows(x: Tensor, target: Tensor) -> Tensor:
    """`target`, sorted along its last dimension, in the order of x: the smallest of a row stands where x's does. It has
    no gradient: the pairing is locally constant."""
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
