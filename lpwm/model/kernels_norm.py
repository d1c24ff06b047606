"""Triton kernels of LayerNorm without scale and shift, which are folded into the layer that reads it.

x̂ = (x − mean)/σ with x = r + c: r (m, w) is the residual stream, c (w) the biases that were added to it so far.
Backwards x̂ is all that is needed, with 1/σ of each row: the stream itself may be overwritten.

Legend: m rows (tokens of all frames), w width. Streams are bfloat16, sums float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

SPAN = 64  # rows that one program of the backward pass adds up
ROWS = 8  # at a time


@triton.jit
def _norm_forward(r, c, out, scale, m, eps, W: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    keep = (row[:, None] < m) & (col[None, :] < W)
    at = row.to(tl.int64)[:, None] * W + col[None, :]
    x = tl.load(r + at, mask=keep, other=0.0).to(tl.float32)
    x += tl.load(c + col, mask=col < W, other=0.0)[None, :]
    x -= (tl.sum(x, 1) / W)[:, None]
    x = tl.where(col[None, :] < W, x, 0.0)
    one = tl.rsqrt(tl.sum(x * x, 1) / W + eps)
    tl.store(out + at, (x * one[:, None]).to(out.dtype.element_ty), mask=keep)
    tl.store(scale + row, one, mask=row < m)


@triton.jit
def _norm_backward(
    grad, xhat, scale, stream, out, sums, m, W: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """dx = (g − mean(g) − x̂ mean(g x̂))/σ; the stream's gradient grows by it. And the sum of dx over SPAN rows, dc."""
    first = tl.program_id(0) * SPAN
    col = tl.arange(0, COLS)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for i in range(0, SPAN, ROWS):
        row = first + i + tl.arange(0, ROWS)
        keep = (row[:, None] < m) & (col[None, :] < W)
        at = row.to(tl.int64)[:, None] * W + col[None, :]
        g = tl.load(grad + at, mask=keep, other=0.0).to(tl.float32)
        x = tl.load(xhat + at, mask=keep, other=0.0).to(tl.float32)
        s = tl.load(stream + at, mask=keep, other=0.0).to(tl.float32)
        one = tl.load(scale + row, mask=row < m, other=0.0)
        mean, along = tl.sum(g, 1) / W, tl.sum(g * x, 1) / W
        g = (g - mean[:, None] - x * along[:, None]) * one[:, None]
        tl.store(out + at, (s + g).to(out.dtype.element_ty), mask=keep)
        total += g
    tl.store(sums + tl.program_id(0) * W + col, tl.sum(total, 0), mask=col < W)


def norm_forward(r: Tensor, c: Tensor, eps: float, out: Tensor, scale: Tensor) -> None:
    """x̂ of r + c into `out` (m, w), 1/σ into `scale` (m) float32."""
    m, w = r.shape
    _norm_forward[(triton.cdiv(m, ROWS),)](
        r, c, out, scale, m, eps, W=w, ROWS=ROWS, COLS=triton.next_power_of_2(w), num_warps=4
    )


def pieces(m: int) -> int:
    return -(-m // SPAN)


def norm_backward(
    grad: Tensor, xhat: Tensor, scale: Tensor, stream: Tensor, out: Tensor, sums: Tensor
) -> None:
    """`out` = `stream` + the gradient of r, given that of x̂ (it may be `stream`); `sums` (pieces(m), w): its sums."""
    m, w = grad.shape
    _norm_backward[(pieces(m),)](
        grad, xhat, scale, stream, out, sums, m, W=w, SPAN=SPAN, ROWS=ROWS,
        COLS=triton.next_power_of_2(w), num_warps=4,
    )  # fmt: skip
