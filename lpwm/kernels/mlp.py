"""Triton kernels of the MLP's two products that have a GELU beside them, with the GELU in their epilogue.

Forwards u = x Wᵀ + b, and gelu(u) beside it; backwards du = (g V) ⊙ gelu'(u) and its sums over rows, the gradient of b.
So the widest tensors of a block are read and written once less each way. In place of u, gelu'(u) may be kept (SLOPE):
backwards there is then nothing to compute but a product. One program makes one tile, read and written through
descriptors; where there are none, `serves` is False, and torch's product and the GELU's own kernel run.

Legend: m rows, K = w width of the stream, N = f width of the MLP. bfloat16 with float32 sums; Φ is `_normal`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpwm.kernels.pointwise import _normal
from lpwm.kernels.settings import Product

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # before Triton 3.4
    TensorDescriptor = None


@triton.jit
def _activate(acc, bias, hidden, SLOPE: tl.constexpr):
    """u (or gelu'(u)) and gelu(u), as they are stored; gelu is that of the rounded u, of which backwards is made."""
    acc += bias.to(tl.float32)[None, :]
    if SLOPE:
        phi, e = _normal(acc)
        first = (phi + acc * e * 0.3989422804014327).to(hidden.dtype.element_ty)
        second = (acc * phi).to(hidden.dtype.element_ty)
    else:
        first = acc.to(hidden.dtype.element_ty)
        v = first.to(tl.float32)
        phi, e = _normal(v)
        second = (v * phi).to(hidden.dtype.element_ty)
    return first, second


@triton.jit
def _slope(acc, v, SLOPE: tl.constexpr):
    v = v.to(tl.float32)
    if SLOPE:
        out = acc * v
    else:
        phi, e = _normal(v)
        out = acc * (phi + v * e * 0.3989422804014327)
    return out


@triton.jit
def _up_gelu(
    x,
    w,
    bias,
    hidden,
    active,
    kind,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """One tile; x, w, hidden and active are descriptors (`kind`: of what type the last two are)."""
    at = tl.program_id(0) // (N // BN) * BM
    left = tl.program_id(0) % (N // BN) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(x.load([at, i]), w.load([left, i]).T, acc)
    first, second = _activate(acc, tl.load(bias + left + tl.arange(0, BN)), kind, SLOPE)
    hidden.store([at, left], first)
    active.store([at, left], second)


@triton.jit
def _down_gelu(
    g,
    w,
    hidden,
    out,
    sums,
    kind,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """One tile; g, w, hidden and out are descriptors. Rows past the end are read as 0 and not written."""
    tile, left = tl.program_id(0) // (N // BN), tl.program_id(0) % (N // BN) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(g.load([tile * BM, i]), w.load([i, left]), acc)
    acc = _slope(acc, hidden.load([tile * BM, left]), SLOPE)
    out.store([tile * BM, left], acc.to(kind.dtype.element_ty))
    tl.store(sums + tile * N + left + tl.arange(0, BN), tl.sum(acc, 0))


@functools.cache
def _described(device: torch.device) -> bool:
    """Whether tiles can be moved by descriptors: Triton has them, and the GPU (a Hopper, or later) the unit for it."""
    if TensorDescriptor is None:
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)  # else the interpreter


def serves(product: Product | None, w: int, f: int, device: torch.device) -> bool:
    """Whether the kernels are for this device and their tiles make the matrix without a rest: rows may leave one,
    columns may not."""
    if product is None or not _described(device):
        return False
    return f % product.cols == 0 and w % product.depth == 0


def pieces(m: int, product: Product) -> int:
    """How many partial sums over rows the backward pass leaves."""
    return triton.cdiv(m, product.rows)


def _launch(
    x: Tensor, w: Tensor, block: list[int], hidden: Tensor, out: Tensor, p: Product, slope: bool
) -> tuple[tuple[int], list[Any], dict[str, int | bool]]:
    """The grid; descriptors of x, of w in tiles of `block`, of hidden and of out; the sizes."""
    (m, k), f, narrow, wide = x.shape, hidden.shape[1], [p.rows, p.depth], [p.rows, p.cols]
    tiles = ((x, narrow), (w, block), (hidden, wide), (out, wide))
    described = [TensorDescriptor.from_tensor(t, shape) for t, shape in tiles]
    sizes = {"N": f, "K": k, "BM": p.rows, "BN": p.cols, "BK": p.depth, "SLOPE": slope}
    return (pieces(m, p) * (f // p.cols),), described, sizes | {"num_warps": p.warps, "num_stages": p.stages}


def up(x: Tensor, w: Tensor, bias: Tensor, hidden: Tensor, active: Tensor, product: Product, slope: bool) -> None:
    """x (m, w), weights (f, w), bias (f) -> `hidden` u (or gelu'(u)) and `active` gelu(u), both (m, f)."""
    block = [product.cols, product.depth]
    grid, (a, b, first, second), sizes = _launch(x, w, block, hidden, active, product, slope)
    _up_gelu[grid](a, b, bias, first, second, hidden, **sizes)


def down_backward(
    grad: Tensor, w: Tensor, hidden: Tensor, out: Tensor, sums: Tensor, product: Product, slope: bool
) -> None:
    """grad (m, w), weights (w, f), `hidden` of `up` -> the gradient of u (m, f) and its sums (pieces, f) float32."""
    block = [product.depth, product.cols]
    grid, (a, b, first, second), sizes = _launch(grad, w, block, hidden, out, product, slope)
    _down_gelu[grid](a, b, first, second, sums, out, **sizes)
