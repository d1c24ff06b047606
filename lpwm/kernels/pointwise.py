"""Triton kernels of the encoder's training step on CUDA that treat numbers one by one: patches and GELU.

GELU. x·Φ(x) with Φ from one exponential (below), because torch's erf makes this memory-bound step arithmetic-bound;
backwards the sum over tokens, the gradient of the bias before the GELU, is taken on the way. The last rows come first,
as in `kernels_norm`.

Legend: b frames, m rows, w width. Everything is bfloat16 with float32 sums.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpwm.kernels.settings import GeluTiles

PLAIN = GeluTiles()
# The GPU's own exponential and reciprocal (1 and 2 units in the last place), a quarter fewer instructions than with
# the care that Triton takes of the smallest numbers. The interpreter knows no assembly.
NATIVE = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") != "1")


@triton.jit
def _normal(x):
    """Φ(x) and exp(−x²/2): erfc(z) ≈ (a₁t + … + a₅t⁵) exp(−z²), t = 1/(1 + 0.3275911 z), z = |x|/√2.

    Abramowitz and Stegun 7.1.26: Φ is off by at most 7.5e-8, as much as float32 rounds.
    """
    below, over = x * x * -0.7213475204444817, 1.0 + 0.23164189 * tl.abs(x)
    if NATIVE:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [below], dtype=tl.float32, is_pure=True, pack=1
        )
        t = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [over], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        e = tl.exp2(below)
        t = 1.0 / over
    poly = 0.530702714 * t - 0.7265760135
    poly = (poly * t + 0.7107068705) * t - 0.142248368
    half = (poly * t + 0.127414796) * t * e
    return tl.where(x < 0, half, 1.0 - half), e


@triton.jit
def _gelu_forward(x, out, size, BLOCK: tl.constexpr):
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    at = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < size, eviction_policy="evict_first").to(tl.float32)
    phi, _ = _normal(v)
    tl.store(out + at, (v * phi).to(out.dtype.element_ty), mask=at < size)


@triton.jit
def _gelu_backward(grad, x, out, sums, m, W: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """dx = g (Φ(x) + x φ(x)) of SPAN rows and COLS columns, and its sum over those rows."""
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    piece = tl.num_programs(1) - 1 - tl.program_id(1)
    first = piece * SPAN
    total = tl.zeros([ROWS, COLS], tl.float32)
    for i in range(0, SPAN, ROWS):
        row = first + i + tl.arange(0, ROWS)
        keep = (row[:, None] < m) & (col[None, :] < W)
        at = row.to(tl.int64)[:, None] * W + col[None, :]
        v = tl.load(x + at, mask=keep, other=0.0, eviction_policy="evict_first").to(tl.float32)
        g = tl.load(grad + at, mask=keep, other=0.0).to(tl.float32)
        phi, e = _normal(v)
        g *= phi + v * e * 0.3989422804014327
        tl.store(out + at, g.to(out.dtype.element_ty), mask=keep)
        total += g
    tl.store(sums + piece * W + col, tl.sum(total, 0), mask=col < W)


def gelu_forward(x: Tensor, out: Tensor | None = None, tiles: GeluTiles = PLAIN) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    size = x.numel()
    _gelu_forward[(triton.cdiv(size, tiles.block),)](x, out, size, BLOCK=tiles.block, num_warps=tiles.warps)
    return out


def gelu_backward(
    grad: Tensor, x: Tensor, out: Tensor | None = None, sums: Tensor | None = None, tiles: GeluTiles = PLAIN
) -> tuple[Tensor, Tensor]:
    """The gradient of x (…, w), and its sums over each `tiles.span` rows (pieces, w) float32."""
    w = x.shape[-1]
    m = x.numel() // w
    out = torch.empty_like(x) if out is None else out
    pieces = triton.cdiv(m, tiles.span)
    sums = torch.empty(pieces, w, device=x.device, dtype=torch.float32) if sums is None else sums
    _gelu_backward[(triton.cdiv(w, tiles.cols), pieces)](
        grad,
        x,
        out,
        sums,
        m,
        W=w,
        SPAN=tiles.span,
        ROWS=tiles.rows,
        COLS=tiles.cols,
        num_warps=tiles.warps_back,
        num_stages=tiles.stages,
    )
    return out, sums


@triton.jit
def _patches(
    pairs,
    scale,
    shift,
    out,
    SIDE: tl.constexpr,
    P: tl.constexpr,
    WIDE: tl.constexpr,
    ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of patches of one frame: ROW = SIDE/P·WIDE pairs of pixels, contiguous where they are written, after a
    patch of zeros at the beginning of the frame.

    A patch is 3·P²/2 pairs and zeros up to WIDE, because matrix products want rows that begin at multiples of 16 bytes.

    Two pixels are read as one word and share their address arithmetic, which is what bounds this copy.
    """
    frame, i = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = P // 2
    f = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    j, r = f // WIDE, f % WIDE
    keep = (f < ROW) & (r < 3 * P * half)
    channel, r = r // (P * half), r % (P * half)
    word = ((channel * SIDE + i * P + r // half) * SIDE) // 2 + j * half + r % half
    both = tl.load(pairs + frame * (3 * SIDE * SIDE // 2) + word, mask=keep, other=0).to(tl.int32)
    a = tl.load(scale + channel, mask=keep, other=0.0)
    b = tl.load(shift + channel, mask=keep, other=0.0)
    x = (both & 255).to(tl.float32) * a + b
    y = ((both >> 8) & 255).to(tl.float32) * a + b
    out += frame * (SIDE // P * 2 * ROW + 2 * WIDE)
    at = tl.program_id(2) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    if i == 0:
        tl.store(out + at, tl.zeros([2 * BLOCK], out.dtype.element_ty), mask=at < 2 * WIDE)
    to = out + 2 * WIDE + i * (2 * ROW)
    tl.store(to + at, tl.interleave(x, y).to(out.dtype.element_ty), mask=at < 2 * ROW)


def padded(pixels: int) -> int:
    return -(-pixels // 8) * 8


def patches(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    """uint8 (b, 3, s, s) -> bfloat16 (b, 1 + (s/p)², padded(3·p²)), scaled and shifted by channel; s and p are even.
    Row 0 is 0."""
    b, _, _, side = frames.shape
    rows, wide = side // patch, padded(3 * patch * patch)
    out = torch.empty(b, 1 + rows * rows, wide, device=frames.device, dtype=torch.bfloat16)
    row, block = rows * wide // 2, 1024
    _patches[(b, rows, triton.cdiv(row, block))](
        frames.view(torch.int16),
        scale,
        shift,
        out,
        SIDE=side,
        P=patch,
        WIDE=wide // 2,
        ROW=row,
        BLOCK=block,
        num_warps=4,
    )
    return out
