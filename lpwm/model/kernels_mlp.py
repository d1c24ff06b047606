"""Triton kernels of the MLP's two products that have a GELU beside them, with the GELU in their epilogue.

Forwards u = x Wᵀ + b, and gelu(u) beside it; backwards du = (g V) ⊙ gelu'(u) and its sums over rows, the gradient of b.
So the widest tensors of a block are read and written once less each way. In place of u, gelu'(u) may be kept (SLOPE):
backwards there is then nothing to compute but a product.

Legend: m rows, K = w width of the stream, N = f width of the MLP. bfloat16 with float32 sums; Φ is `_normal`.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpwm.model.kernels_pointwise import _normal
from lpwm.model.kernels_settings import Product

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # before Triton 3.4
    TensorDescriptor = None


@triton.jit
def _start(tile, STEP: tl.constexpr):
    """tile·STEP, beyond 2³¹ too."""
    return tile * tl.full([], STEP, tl.int64)


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
def _put_active(
    acc, bias, hidden, active, m, tile, col, N: tl.constexpr, BM: tl.constexpr, SLOPE: tl.constexpr
):
    row = tl.arange(0, BM)
    first, second = _activate(acc, tl.load(bias + col), hidden, SLOPE)
    start = _start(tile, BM * N)
    at = row[:, None] * N + col[None, :]
    keep = row[:, None] < m - tile * BM
    tl.store(hidden + start + at, first, mask=keep)
    tl.store(active + start + at, second, mask=keep)


@triton.jit
def _up_tile(
    x, w, bias, hidden, active, m, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) // (N // BN)
    col = tl.program_id(0) % (N // BN) * BN + tl.arange(0, BN)
    row, k = tl.arange(0, BM), tl.arange(0, BK)
    x += _start(tile, BM * K)
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        a = tl.load(x + row[:, None] * K + (i + k)[None, :], mask=row[:, None] < m - tile * BM, other=0.0)
        b = tl.load(w + col[None, :] * K + (i + k)[:, None])
        acc = tl.dot(a, b, acc)
    _put_active(acc, bias, hidden, active, m, tile, col, N, BM, SLOPE)


@triton.jit
def _up_keep(
    x, w, bias, hidden, active, m, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SLOPE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every programs/(N/BN)-th tile of rows, for one tile of columns, whose weights stay."""
    col = tl.program_id(0) % (N // BN) * BN + tl.arange(0, BN)
    row, k = tl.arange(0, BM), tl.arange(0, BK)
    ws = ()
    for p in tl.static_range(K // BK):
        ws = ws + (tl.load(w + col[None, :] * K + (p * BK + k)[:, None]),)  # type: ignore[assignment]  # noqa: RUF005
    step = tl.num_programs(0) // (N // BN)
    for tile in tl.range(tl.program_id(0) // (N // BN), tl.cdiv(m, BM), step, num_stages=STAGES):
        at = x + _start(tile, BM * K) + row[:, None] * K + k[None, :]
        acc = tl.zeros([BM, BN], tl.float32)
        for p in tl.static_range(K // BK):
            a = tl.load(at + p * BK, mask=row[:, None] < m - tile * BM, other=0.0)
            acc = tl.dot(a, ws[p], acc)
        _put_active(acc, bias, hidden, active, m, tile, col, N, BM, SLOPE)


@triton.jit
def _up_tma(
    x, w, bias, hidden, active, m, kind, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """As `_up_tile`; x, w, hidden and active are descriptors (`kind`: of what type the last two are)."""
    at = tl.program_id(0) // (N // BN) * BM
    left = tl.program_id(0) % (N // BN) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(x.load([at, i]), w.load([left, i]).T, acc)
    first, second = _activate(acc, tl.load(bias + left + tl.arange(0, BN)), kind, SLOPE)
    hidden.store([at, left], first)
    active.store([at, left], second)


@triton.jit
def _down_tile(
    g, w, hidden, out, sums, m, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SLOPE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) // (N // BN)
    col = tl.program_id(0) % (N // BN) * BN + tl.arange(0, BN)
    row, k = tl.arange(0, BM), tl.arange(0, BK)
    keep = row[:, None] < m - tile * BM
    start = _start(tile, BM)
    at = start * N + row[:, None] * N + col[None, :]
    if EARLY:
        u = tl.load(hidden + at, mask=keep, other=0.0)
    g += start * K
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        a = tl.load(g + row[:, None] * K + (i + k)[None, :], mask=keep, other=0.0)
        acc = tl.dot(a, tl.load(w + (i + k)[:, None] * N + col[None, :]), acc)
    if not EARLY:
        u = tl.load(hidden + at, mask=keep, other=0.0)
    acc = _slope(acc, u, SLOPE)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=keep)
    tl.store(sums + tile * N + col, tl.sum(acc, 0))


@triton.jit
def _down_keep(
    g, w, hidden, out, sums, m, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SLOPE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    col = tl.program_id(0) % (N // BN) * BN + tl.arange(0, BN)
    row, k = tl.arange(0, BM), tl.arange(0, BK)
    first, step = tl.program_id(0) // (N // BN), tl.num_programs(0) // (N // BN)
    ws = ()
    for p in tl.static_range(K // BK):
        ws = ws + (tl.load(w + (p * BK + k)[:, None] * N + col[None, :]),)  # type: ignore[assignment]  # noqa: RUF005
    total = tl.zeros([BN], tl.float32)
    for tile in tl.range(first, tl.cdiv(m, BM), step, num_stages=STAGES):
        keep = row[:, None] < m - tile * BM
        start = _start(tile, BM)
        acc = tl.zeros([BM, BN], tl.float32)
        for p in tl.static_range(K // BK):
            a = tl.load(g + start * K + row[:, None] * K + (p * BK + k)[None, :], mask=keep, other=0.0)
            acc = tl.dot(a, ws[p], acc)
        at = start * N + row[:, None] * N + col[None, :]
        acc = _slope(acc, tl.load(hidden + at, mask=keep, other=0.0), SLOPE)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=keep)
        total += tl.sum(acc, 0)
    tl.store(sums + first * N + col, total)


@triton.jit
def _down_tma(
    g, w, hidden, out, sums, m, kind, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SLOPE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `_down_tile`; g, w, hidden and out are descriptors. Rows past m are read as 0 and not written."""
    tile, left = tl.program_id(0) // (N // BN), tl.program_id(0) % (N // BN) * BN
    if EARLY:
        u = hidden.load([tile * BM, left])
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(g.load([tile * BM, i]), w.load([i, left]), acc)
    if not EARLY:
        u = hidden.load([tile * BM, left])
    acc = _slope(acc, u, SLOPE)
    out.store([tile * BM, left], acc.to(kind.dtype.element_ty))
    tl.store(sums + tile * N + left + tl.arange(0, BN), tl.sum(acc, 0))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def serves(product: Product | None, w: int, f: int) -> bool:
    """Whether the tiles make the matrix without a rest: rows may leave one, columns may not."""
    if product is None or (product.keep and product.tma):
        return False
    return f % product.cols == 0 and w % product.depth == 0


def pieces(m: int, f: int, product: Product, device: torch.device) -> int:
    """How many partial sums over rows the backward pass leaves."""
    tiles = triton.cdiv(m, product.rows)
    if not product.keep:
        return tiles
    return max(1, min(tiles, product.programs * _multiprocessors(device) // (f // product.cols)))


def _sizes(w: int, f: int, product: Product, slope: bool) -> dict[str, int | bool]:
    sizes: dict[str, int | bool] = {
        "N": f,
        "K": w,
        "BM": product.rows,
        "BN": product.cols,
        "BK": product.depth,
    }
    sizes |= {"SLOPE": slope, "num_warps": product.warps}
    if product.registers:
        sizes["maxnreg"] = product.registers
    return sizes | {"STAGES" if product.keep else "num_stages": product.stages}


def _blocks(product: Product, *tensors: tuple[Tensor, int, int]) -> list[object]:
    if TensorDescriptor is None:
        raise RuntimeError("this Triton has no tensor descriptors")
    return [TensorDescriptor.from_tensor(t, [rows, cols]) for t, rows, cols in tensors]


def up(
    x: Tensor, w: Tensor, bias: Tensor, hidden: Tensor, active: Tensor, product: Product, slope: bool
) -> None:
    """x (m, w), weights (f, w), bias (f) -> `hidden` u (or gelu'(u)) and `active` gelu(u), both (m, f)."""
    (m, k), f, p = x.shape, w.shape[0], product
    grid = (pieces(m, f, p, x.device) * (f // p.cols),)
    sizes = _sizes(k, f, p, slope)
    if p.tma:
        wide = (hidden, p.rows, p.cols), (active, p.rows, p.cols)
        a, b, first, second = _blocks(p, (x, p.rows, p.depth), (w, p.cols, p.depth), *wide)
        _up_tma[grid](a, b, bias, first, second, m, hidden, **sizes)
    else:
        (_up_keep if p.keep else _up_tile)[grid](x, w, bias, hidden, active, m, **sizes)


def down_backward(
    grad: Tensor, w: Tensor, hidden: Tensor, out: Tensor, sums: Tensor, product: Product, slope: bool
) -> None:
    """grad (m, w), weights (w, f), `hidden` of `up` -> the gradient of u (m, f) and its sums (pieces, f) float32."""
    (m, k), f, p = grad.shape, w.shape[1], product
    grid = (pieces(m, f, p, grad.device) * (f // p.cols),)
    sizes = _sizes(k, f, p, slope)
    if p.tma:
        wide = (hidden, p.rows, p.cols), (out, p.rows, p.cols)
        a, b, first, second = _blocks(p, (grad, p.rows, p.depth), (w, p.depth, p.cols), *wide)
        _down_tma[grid](a, b, first, second, sums, m, out, EARLY=p.early, **sizes)
    elif p.keep:
        _down_keep[grid](grad, w, hidden, out, sums, m, **sizes)
    else:
        _down_tile[grid](grad, w, hidden, out, sums, m, EARLY=p.early, **sizes)
