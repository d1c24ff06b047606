"""The last block's attention, whose only query is token 0: without keys and values.

⟨q, K x̂⟩ = ⟨Kᵀq, x̂⟩ and Σ a V x̂ = V Σ a x̂: with one query per head it suffices to know its direction Kᵀq, here `query`,
and to average x̂ itself. So the stream is loaded once forwards and once backwards, LayerNorm included, and nothing as
wide as the stream is written but its gradient.

    x̂_n = (r_n + c − mean)/σ,   a_n = softmax of s_n = scale·⟨query, x̂_n⟩,   average = Σ a_n x̂_n
    dx̂_n = scale·ds_n·query + a_n·g   with g the gradient of the average, ds_n = a_n (⟨g, x̂_n⟩ − ⟨g, average⟩)

A program has one frame, ROWS tokens at a time; heads are padded to 16, for products of 16 rows. A row is cut in PARTS
parts of PART columns. Legend: b frames, n tokens, h = H heads, w = W width. Streams are bfloat16, sums float32.
"""

# Tuples grow by + in Triton.
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr as C  # an annotation that Triton reads: no string

from lpwm.kernels.norm import centered, cut
from lpwm.kernels.settings import Tiles

HEADS = 16  # rows of a product, at least; half of them are one more than there are heads


@triton.jit
def _of_heads(base, stride, H: C, HEADS: C, W: C, PART: C, PARTS: C):
    """A vector of each head, in parts (HEADS, PART); those past H are 0."""
    head, col = tl.arange(0, HEADS), tl.arange(0, PART)
    parts = ()
    for p in tl.static_range(PARTS):
        at = p * PART + col[None, :]
        x = tl.load(base + head[:, None] * stride + at, mask=(head[:, None] < H) & (at < W), other=0.0)
        parts = parts + (x,)
    return parts


@triton.jit
def _normalized(r, c, row, n, eps, W: C, ROWS: C, PART: C, PARTS: C):
    """x̂ of rows in parts, as wide as the stream, and 1/σ."""
    col = tl.arange(0, PART)
    xs = ()
    total = tl.zeros([ROWS, PART], tl.float32)
    for p in tl.static_range(PARTS):
        at = p * PART + col[None, :]
        x = tl.load(r + row[:, None] * W + at, mask=(row[:, None] < n) & (at < W), other=0.0).to(tl.float32)
        x += tl.load(c + at, mask=at < W, other=0.0)
        xs = xs + (x,)
        total += x
    xs, one = centered(xs, total, eps, W, PART, PARTS)
    xhat = ()
    for p in tl.static_range(PARTS):
        xhat = xhat + ((xs[p] * one[:, None]).to(r.dtype.element_ty),)
    return xhat, one


@triton.jit
def _scores(vectors, xhat, HEADS: C, ROWS: C, PARTS: C):
    """⟨vector, x̂⟩ of each head and row, (HEADS, ROWS)."""
    s = tl.zeros([HEADS, ROWS], tl.float32)
    for p in tl.static_range(PARTS):
        s = tl.dot(vectors[p], tl.trans(xhat[p]), s)
    return s


@triton.jit
def _last_forward(
    r, c, query, average, lse, n, b, scale2, eps, H: C, HEADS: C, W: C, ROWS: C, PART: C, PARTS: C, STAGES: C
):
    frame = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    r += frame * n * W
    queries = _of_heads(query + frame * W, b * W, H, HEADS, W, PART, PARTS)
    top = tl.full([HEADS], -1e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = ()
    for _ in tl.static_range(PARTS):
        sums = sums + (tl.zeros([HEADS, PART], tl.float32),)
    for i in tl.range(0, n, ROWS, num_stages=STAGES):
        row = i + tl.arange(0, ROWS)
        xhat, _one = _normalized(r, c, row, n, eps, W, ROWS, PART, PARTS)
        s = _scores(queries, xhat, HEADS, ROWS, PARTS)
        s = tl.where(row[None, :] < n, s * scale2, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        a = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(a, 1)
        top = higher
        grown = ()
        for p in tl.static_range(PARTS):
            x = tl.dot(a.to(r.dtype.element_ty), xhat[p], sums[p] * shrink[:, None])
            grown = grown + (x,)
        sums = grown
    head, col = tl.arange(0, HEADS), tl.arange(0, PART)
    for p in tl.static_range(PARTS):
        at = p * PART + col[None, :]
        to = average + (head[:, None] * b + frame) * W + at
        x = (sums[p] / total[:, None]).to(average.dtype.element_ty)
        tl.store(to, x, mask=(head[:, None] < H) & (at < W))
    tl.store(lse + head * b + frame, top + tl.log2(total), mask=head < H)


@triton.jit
def _last_backward(
    r,
    c,
    query,
    grad,
    average,
    lse,
    out,
    d_query,
    sums,
    n,
    b,
    scale,
    scale2,
    eps,
    H: C,
    HEADS: C,
    W: C,
    ROWS: C,
    PART: C,
    PARTS: C,
    STAGES: C,
):
    """The gradient of r, its sum over the frame, which is dc, and that of `query`.

    Queries and g are the halves of one matrix, as are ds and a, so that each product is one for both. What
    LayerNorm's gradient needs of dx̂, its sum and ⟨dx̂, x̂⟩, follows from numbers that are there already; and dc from
    sums over tokens, one of which, Σ ⟨dx̂, x̂⟩ x̂/σ, is taken along in the row of a head that does not exist.
    """
    HALF: tl.constexpr = HEADS // 2
    frame = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    kind: tl.constexpr = r.dtype.element_ty
    r += frame * n * W
    out += frame * n * W
    head, both, col = tl.arange(0, HALF), tl.arange(0, HEADS), tl.arange(0, PART)
    queries = _of_heads(query + frame * W, b * W, H, HALF, W, PART, PARTS)
    gs = _of_heads(grad + frame * W, b * W, H, HALF, W, PART, PARTS)
    hs = _of_heads(average + frame * W, b * W, H, HALF, W, PART, PARTS)
    delta = tl.zeros([HALF], tl.float32)
    sum_query = tl.zeros([HALF], tl.float32)
    sum_g = tl.zeros([HALF], tl.float32)
    with_query = tl.zeros([HALF], tl.float32)
    with_g = tl.zeros([HALF], tl.float32)
    constant = 0.0
    pairs = ()
    grown = ()
    for p in tl.static_range(PARTS):
        delta += tl.sum(gs[p].to(tl.float32) * hs[p].to(tl.float32), 1)
        sum_query += tl.sum(queries[p].to(tl.float32), 1)
        sum_g += tl.sum(gs[p].to(tl.float32), 1)
        at = p * PART + col[None, :]
        first = (both[:, None] < H) & (at < W)
        second = (both[:, None] >= HALF) & (both[:, None] < HALF + H) & (at < W)
        x = tl.load(query + frame * W + both[:, None] * b * W + at, mask=first, other=0.0)
        x += tl.load(grad + frame * W + (both[:, None] - HALF) * b * W + at, mask=second, other=0.0)
        pairs = pairs + (x,)
        grown = grown + (tl.zeros([HEADS, PART], tl.float32),)
    e = tl.load(lse + head * b + frame, mask=head < H, other=float("inf"))  # a = 0 where there is no head
    for i in tl.range(0, n, ROWS, num_stages=STAGES):
        row = i + tl.arange(0, ROWS)
        xhat, one = _normalized(r, c, row, n, eps, W, ROWS, PART, PARTS)
        scores = tl.reshape(_scores(pairs, xhat, HEADS, ROWS, PARTS), [2, HALF, ROWS])
        s, t = tl.split(tl.permute(scores, (1, 2, 0)))
        a = tl.where(row[None, :] < n, tl.exp2(s * scale2 - e[:, None]), 0.0)
        d = a * (t - delta[:, None]) * scale
        mean = tl.sum(d * sum_query[:, None] + a * sum_g[:, None], 0) / W
        along = tl.sum(d * s + a * t, 0) / W
        with_query += tl.sum(d * one[None, :], 1)
        with_g += tl.sum(a * one[None, :], 1)
        constant += tl.sum(tl.where(row < n, mean * one, 0.0), 0)
        d = tl.where(head[:, None] == HALF - 1, (along * one)[None, :], d)
        weights = tl.reshape(tl.permute(tl.join(d, a), (2, 0, 1)), [HEADS, ROWS]).to(kind)
        more = ()
        for p in tl.static_range(PARTS):
            more = more + (tl.dot(weights, xhat[p], grown[p]),)
            dx = tl.dot(tl.trans(weights), pairs[p])
            dx = (dx - mean[:, None] - xhat[p].to(tl.float32) * along[:, None]) * one[:, None]
            at = p * PART + col[None, :]
            tl.store(out + row[:, None] * W + at, dx.to(kind), mask=(row[:, None] < n) & (at < W))
        grown = more
    # Loaded again rather than kept: registers are scarce.
    queries = _of_heads(query + frame * W, b * W, H, HALF, W, PART, PARTS)
    gs = _of_heads(grad + frame * W, b * W, H, HALF, W, PART, PARTS)
    for p in tl.static_range(PARTS):
        at = p * PART + col
        x = queries[p].to(tl.float32) * with_query[:, None] + gs[p].to(tl.float32) * with_g[:, None]
        total = tl.sum(x, 0) - tl.sum(tl.where(both[:, None] == HALF - 1, grown[p], 0.0), 0) - constant
        tl.store(sums + frame * W + at, total, mask=at < W)
        to = d_query + (both[:, None] * b + frame) * W + at[None, :]
        tl.store(to, grown[p].to(d_query.dtype.element_ty), mask=(both[:, None] < H) & (at[None, :] < W))


def _cut(h: int, w: int, tiles: Tiles) -> dict[str, int]:
    most = {"maxnreg": tiles.registers} if tiles.registers else {}
    heads = {"H": h, "HEADS": max(HEADS, 2 * triton.next_power_of_2(h + 1))}
    return {**heads, **cut(w, tiles, 16), "STAGES": tiles.stages, **most}


def forward(
    r: Tensor, c: Tensor, query: Tensor, scale: float, eps: float, average: Tensor, lse: Tensor, tiles: Tiles
) -> None:
    """r (b, n, w), c (w) float32, query (h, b, w) -> `average` Σ a x̂ (h, b, w), `lse` log2 Σ exp (h, b) float32."""
    (b, n, w), h = r.shape, len(query)
    _last_forward[(b,)](r, c, query, average, lse, n, b, scale * math.log2(math.e), eps, **_cut(h, w, tiles))


def backward(
    grad: Tensor, known: tuple[Tensor, ...], scale: float, eps: float, sums: Tensor, tiles: Tiles
) -> tuple[Tensor, Tensor]:
    """grad (h, b, w) of the average -> the gradients of r (b, n, w) and of query (h, b, w); that of c by frames into
    `sums` (b, w). `known`: r, c, query, average and lse of `forward`."""
    r, c, query, average, lse = known
    (b, n, w), h = r.shape, len(query)
    out, d_query, scale2 = torch.empty_like(r), torch.empty_like(query), scale * math.log2(math.e)
    tensors = (r, c, query, grad, average, lse, out, d_query, sums)
    _last_backward[(b,)](*tensors, n, b, scale, scale2, eps, **_cut(h, w, tiles))
    return out, d_query
