"""LayerNorm without scale and shift, which are folded into the layer after it.

x̂ = (x − mean)/σ with x = r + c: r (m, w) is the residual stream, c (w) the biases that were added to it so far.
Backwards x̂ and 1/σ of each row are all that is needed: the stream itself may be overwritten.

A row is cut in PARTS parts of PART columns (w = 384 is 3·128): no lane is idle and a row stays in one warp. The last
rows come first: the matrix product before has just written them. Sums of partial sums are here too.

Legend: m rows (tokens of all frames), w = W width. Streams are bfloat16, sums float32.
"""

# Tuples grow by + in Triton.
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr as C  # an annotation that Triton reads: no string

from lpwm.kernels.settings import Tiles


@triton.jit
def centered(xs, total, eps, W: C, PART: C, PARTS: C):
    """Rows in parts, given with their sum by parts, minus their mean, 0 past W; and 1/σ."""
    col = tl.arange(0, PART)[None, :]
    mean = (tl.sum(total, 1) / W)[:, None]
    moved = ()
    total = tl.zeros_like(total)
    for p in tl.static_range(PARTS):
        x = tl.where(p * PART + col < W, xs[p] - mean, 0.0)
        moved = moved + (x,)
        total += x * x
    return moved, tl.rsqrt(tl.sum(total, 1) / W + eps)


@triton.jit
def _norm_forward(r, c, out, scale, first, m, eps, W: C, N: C, ROWS: C, PART: C, PARTS: C):
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    row = pid * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, PART)
    start = row.to(tl.int64)[:, None] * W + col[None, :]
    xs = ()
    total = tl.zeros([ROWS, PART], tl.float32)
    for p in tl.static_range(PARTS):
        keep = (row[:, None] < m) & (p * PART + col[None, :] < W)
        x = tl.load(r + start + p * PART, mask=keep, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if N > 0:  # token 0 of each frame is kept in float32 elsewhere
            apart = (row % N == 0)[:, None]
            at = first + (row // N).to(tl.int64)[:, None] * W + p * PART + col[None, :]
            x = tl.where(apart, tl.load(at, mask=keep & apart, other=0.0), x)
        x += tl.load(c + p * PART + col, mask=p * PART + col < W, other=0.0)[None, :]
        xs = xs + (x,)
        total += x
    xs, one = centered(xs, total, eps, W, PART, PARTS)
    for p in tl.static_range(PARTS):
        keep = (row[:, None] < m) & (p * PART + col[None, :] < W)
        tl.store(out + start + p * PART, (xs[p] * one[:, None]).to(out.dtype.element_ty), mask=keep)
    tl.store(scale + row, one, mask=row < m)


@triton.jit
def _norm_backward(grad, xhat, scale, stream, out, sums, m, W: C, SPAN: C, ROWS: C, PART: C, PARTS: C, STAGES: C):
    """dx = (g − mean(g) − x̂ mean(g x̂))/σ, by which the stream's gradient grows; and the sum of dx over SPAN rows."""
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    first = pid * SPAN
    col = tl.arange(0, PART)
    totals = ()
    for _ in tl.static_range(PARTS):
        totals = totals + (tl.zeros([ROWS, PART], tl.float32),)
    for i in tl.range(0, SPAN, ROWS, num_stages=STAGES):
        row = first + i + tl.arange(0, ROWS)
        start = row.to(tl.int64)[:, None] * W + col[None, :]
        gs = ()
        xs = ()
        ss = ()
        mean = tl.zeros([ROWS, PART], tl.float32)
        along = tl.zeros([ROWS, PART], tl.float32)
        for p in tl.static_range(PARTS):
            keep = (row[:, None] < m) & (p * PART + col[None, :] < W)
            g = tl.load(grad + start + p * PART, mask=keep, other=0.0, eviction_policy="evict_first").to(tl.float32)
            x = tl.load(xhat + start + p * PART, mask=keep, other=0.0, eviction_policy="evict_first").to(tl.float32)
            s = tl.load(stream + start + p * PART, mask=keep, other=0.0).to(tl.float32)
            gs = gs + (g,)
            xs = xs + (x,)
            ss = ss + (s,)
            mean += g
            along += g * x
        one = tl.load(scale + row, mask=row < m, other=0.0)
        a, b = (tl.sum(mean, 1) / W)[:, None], (tl.sum(along, 1) / W)[:, None]
        grown = ()
        for p in tl.static_range(PARTS):
            keep = (row[:, None] < m) & (p * PART + col[None, :] < W)
            g = (gs[p] - a - xs[p] * b) * one[:, None]
            to = (ss[p] + g).to(out.dtype.element_ty)
            tl.store(out + start + p * PART, to, mask=keep)
            grown = grown + (totals[p] + g,)
        totals = grown
    for p in tl.static_range(PARTS):
        at = p * PART + col
        tl.store(sums + pid * W + at, tl.sum(totals[p], 0), mask=at < W)


@triton.jit
def _totals(parts, out, rows, W: C, ROWS: C, COLS: C):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    which = tl.program_id(1).to(tl.int64)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for i in range(0, rows, ROWS):
        row = i + tl.arange(0, ROWS)
        at = which * rows * W + row.to(tl.int64)[:, None] * W + col[None, :]
        total += tl.load(parts + at, mask=(row[:, None] < rows) & (col[None, :] < W), other=0.0).to(tl.float32)
    tl.store(out + which * W + col, tl.sum(total, 0).to(out.dtype.element_ty), mask=col < W)


def cut(w: int, tiles: Tiles, least: int = 1) -> dict[str, int]:
    """One part, or as many as make the width without a rest."""
    part = tiles.part if tiles.part and w % tiles.part == 0 else max(least, triton.next_power_of_2(w))
    return {"W": w, "ROWS": tiles.rows, "PART": part, "PARTS": triton.cdiv(w, part), "num_warps": tiles.warps}


def forward(
    r: Tensor, c: Tensor, eps: float, out: Tensor, scale: Tensor, tiles: Tiles, first: Tensor | None = None
) -> None:
    """x̂ of r + c into `out` (m, w), 1/σ into `scale` (m) float32. `first` (b, w) float32, if there is one, stands in
    the place of every first of m/b rows of r."""
    m, w = r.shape
    n, apart = (0, r) if first is None else (m // len(first), first)
    _norm_forward[(triton.cdiv(m, tiles.rows),)](r, c, out, scale, apart, m, eps, N=n, **cut(w, tiles))


def pieces(m: int, tiles: Tiles) -> int:
    return -(-m // tiles.span)


def backward(
    grad: Tensor, xhat: Tensor, scale: Tensor, stream: Tensor, out: Tensor, sums: Tensor, tiles: Tiles
) -> None:
    """`out` = `stream` + the gradient of r, given that of x̂ (it may be `stream`); `sums` (pieces(m), w): its sums."""
    m, w = grad.shape
    sizes = {"SPAN": tiles.span, "STAGES": tiles.stages, **cut(w, tiles)}
    _norm_backward[(pieces(m, tiles),)](grad, xhat, scale, stream, out, sums, m, **sizes)


def totals(parts: Tensor, out: Tensor) -> None:
    """out (g, w) = the sums of parts (g, rows, w) over rows, in float32 until they are written."""
    g, rows, w = parts.shape
    cols = 32 if w < 4096 else 128
    _totals[(triton.cdiv(w, cols), g)](parts, out, rows, W=w, ROWS=4096 // cols, COLS=cols, num_warps=8)
