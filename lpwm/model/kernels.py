"""Triton kernels of the encoder's training step on CUDA: patches, attention over one frame, GELU.

Attention. A frame has few tokens (257 at 224² with patches of 14), so the keys and values of one head fit in the
shared memory of a multiprocessor. One program owns one head of one frame: it reads the packed projection
(b, n, 3·h·d) and writes (b, n, h·d), and backwards the packed gradient, so that nothing is permuted, copied or
added up between kernels. 257 = 2·128 + 1: keys are cut in large tiles and one small last one, rather than padded to a
multiple of 64 or 128.

GELU. x·Φ(x) with Φ from one exponential (below), because torch's erf makes this memory-bound step arithmetic-bound;
backwards the sum over tokens, the gradient of the bias before the GELU, is taken on the way.

Legend: b frames, n tokens, h heads, d width of a head, m rows, w width. Everything is bfloat16 with float32 sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Tiles:
    """How attention is cut: rows at a time, keys at a time (queries, where keys are the rows), and keys at a time for
    rows left over, if they are few (0: they get a tile)."""

    rows: int = 64
    keys: int = 128
    queries: int = 64
    tail: int = 64
    warps: int = 4
    stages: int = 2
    odd: bool = False  # forwards: one key left over is treated without a tile
    once: bool = False  # backwards in one pass, where the tokens allow it
    registers: int = 0  # most of a thread; 0: as many as it needs


FORWARD, BACKWARD = Tiles(), Tiles()
MOST_SINGLE = 4  # rows left over that are cheaper one by one than as a tile


@triton.jit
def _rows(base, start, stride, N: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr):
    """Rows start … start+SIZE of a matrix (N, D); those past N are 0."""
    r = start + tl.arange(0, SIZE)
    at = base + r[:, None] * stride + tl.arange(0, D)[None, :]
    if WHOLE:
        return tl.load(at)
    else:
        return tl.load(at, mask=r[:, None] < N, other=0.0)


@triton.jit
def _chunks(base, stride, N: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, D: tl.constexpr):
    """A whole matrix (N, D), kept in shared memory as the right-hand sides of products."""
    parts = ()
    for c in tl.static_range(N // T):
        parts = parts + (_rows(base, c * T, stride, N, T, D, True),)  # type: ignore[assignment]  # noqa: RUF005
    if (N % T > 0) & (LAST > 0):
        rest = _rows(base, (N // T) * T, stride, N, LAST, D, False)
        parts = parts + (rest,)  # type: ignore[assignment]  # noqa: RUF005
    return parts


@triton.jit
def _attend(q, k, v, at, top, total, o, scale2, N: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr):
    """Adds SIZE keys to a softmax under way: its maximum, its denominator and its sum of values."""
    s = tl.dot(q, tl.trans(k))
    if not WHOLE:
        s = tl.where((at + tl.arange(0, SIZE))[None, :] < N, s, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1) * scale2)
    p = tl.exp2(s * scale2 - higher[:, None])
    shrink = tl.exp2(top - higher)
    return higher, total * shrink + tl.sum(p, 1), tl.dot(p.to(q.dtype), v, o * shrink[:, None])


@triton.jit
def _attend_rows(
    base, out, lse, ks, vs, at, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr,
    WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    total = tl.zeros([SIZE], tl.float32)
    o = tl.zeros([SIZE, D], tl.float32)
    top = tl.full([SIZE], float("-inf"), tl.float32)
    if LAST == 0:  # one key is left over: the softmax begins with its score, and no tile is needed
        only = (N - 1) * (3 * H * D) + tl.arange(0, D)
        key = tl.load(base + H * D + only).to(tl.float32)
        top = tl.sum(q.to(tl.float32) * key[None, :], 1) * scale2
        total += 1.0
        first = top
    for c in tl.static_range(N // T):
        top, total, o = _attend(q, ks[c], vs[c], c * T, top, total, o, scale2, N, T, True)
    if (N % T > 0) & (LAST > 0):
        end: tl.constexpr = N // T
        top, total, o = _attend(q, ks[end], vs[end], end * T, top, total, o, scale2, N, LAST, False)
    if LAST == 0:
        value = tl.load(base + 2 * H * D + only).to(tl.float32)
        o += tl.exp2(first - top)[:, None] * value[None, :]
    r = at + tl.arange(0, SIZE)
    to = out + r[:, None] * (H * D) + tl.arange(0, D)[None, :]
    o = (o / total[:, None]).to(q.dtype)
    if WHOLE:
        tl.store(to, o)
        tl.store(lse + r, top + tl.log2(total))
    else:
        tl.store(to, o, mask=r[:, None] < N)
        tl.store(lse + r, top + tl.log2(total), mask=r < N)


@triton.jit
def _attend_one(
    base, out, lse, at, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, T: tl.constexpr
):
    """The same for one query, without matrix products: they would take as long for it as for 64."""
    d = tl.arange(0, D)
    q = tl.load(base + at * (3 * H * D) + d).to(tl.float32)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    o = tl.zeros([D], tl.float32)
    for c in range(0, N, T):
        r = c + tl.arange(0, T)
        k = _rows(base + H * D, c, 3 * H * D, N, T, D, False).to(tl.float32)
        v = _rows(base + 2 * H * D, c, 3 * H * D, N, T, D, False).to(tl.float32)
        s = tl.where(r < N, tl.sum(k * q[None, :], 1) * scale2, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 0))
        p = tl.exp2(s - higher)
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 0)
        o = o * shrink + tl.sum(v * p[:, None], 0)
        top = higher
    tl.store(out + at * (H * D) + d, (o / total).to(out.dtype.element_ty))
    tl.store(lse + at + tl.arange(0, 1), top + tl.log2(total))


@triton.jit
def _attention_forward(
    qkv, out, lse, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    TAIL: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """o = softmax(q kᵀ/√d) v, ROWS queries at a time and TAIL at last, and log2 of the softmax's denominator."""
    pid = tl.program_id(0)
    frame, head = (pid // H).to(tl.int64), pid % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    lse += pid.to(tl.int64) * N
    ks = _chunks(base + H * D, 3 * H * D, N, T, LAST, D)
    vs = _chunks(base + 2 * H * D, 3 * H * D, N, T, LAST, D)
    for i in range(N // ROWS):
        _attend_rows(base, out, lse, ks, vs, i * ROWS, scale2, N, H, D, ROWS, True, T, LAST)
    end: tl.constexpr = (N // ROWS) * ROWS
    if TAIL > 0:
        for at in range(end, N):
            _attend_one(base, out, lse, at, scale2, N, H, D, TAIL)
    elif end < N:
        _attend_rows(base, out, lse, ks, vs, end, scale2, N, H, D, ROWS, False, T, LAST)


@triton.jit
def _grad_query(q, g, k, v, e, d, dq, scale2, WHOLE: tl.constexpr):
    """dq += ds k with ds = p (g vᵀ − δ). Keys past the end are 0 and so add nothing, as long as p is finite."""
    s = tl.dot(q, tl.trans(k)) * scale2 - e[:, None]
    if not WHOLE:
        s = tl.minimum(s, 0.0)
    ds = tl.exp2(s) * (tl.dot(g, tl.trans(v)) - d[:, None])
    return tl.dot(ds.to(q.dtype), k, dq)


@triton.jit
def _grad_query_rows(
    base, out, grad, lse, delta, to, ks, vs, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """dq and δ = ⟨g, o⟩ of SIZE queries; returns the sums of dq and of g over them."""
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    g = _rows(grad, at, H * D, N, SIZE, D, WHOLE)
    o = _rows(out, at, H * D, N, SIZE, D, WHOLE)
    r = at + tl.arange(0, SIZE)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + r, d, mask=r < N)
    e = tl.load(lse + r, mask=r < N, other=0.0)
    dq = tl.zeros([SIZE, D], tl.float32)
    for c in tl.static_range(N // T):
        dq = _grad_query(q, g, ks[c], vs[c], e, d, dq, scale2, True)
    if N % T > 0:
        dq = _grad_query(q, g, ks[N // T], vs[N // T], e, d, dq, scale2, False)
    dq *= scale
    place = to + r[:, None] * (3 * H * D) + tl.arange(0, D)[None, :]
    if WHOLE:
        tl.store(place, dq.to(q.dtype))
    else:
        tl.store(place, dq.to(q.dtype), mask=r[:, None] < N)
    return tl.sum(dq, 0), tl.sum(g.to(tl.float32), 0)


@triton.jit
def _grad_query_one(
    base, out, grad, lse, delta, to, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """The same for one query, without matrix products."""
    col = tl.arange(0, D)
    q = tl.load(base + at * (3 * H * D) + col).to(tl.float32)
    g = tl.load(grad + at * (H * D) + col).to(tl.float32)
    o = tl.load(out + at * (H * D) + col).to(tl.float32)
    e = tl.load(lse + at)
    d = tl.sum(g * o, 0)
    tl.store(delta + at, d)
    dq = tl.zeros([D], tl.float32)
    for c in range(0, N, T):
        k = _rows(base + H * D, c, 3 * H * D, N, T, D, False).to(tl.float32)
        v = _rows(base + 2 * H * D, c, 3 * H * D, N, T, D, False).to(tl.float32)
        s = tl.minimum(tl.sum(k * q[None, :], 1) * scale2 - e, 0.0)  # finite where there is no key
        ds = tl.exp2(s) * (tl.sum(v * g[None, :], 1) - d)
        dq += tl.sum(k * ds[:, None], 0)
    dq *= scale
    tl.store(to + at * (3 * H * D) + col, dq.to(to.dtype.element_ty))
    return dq, g


@triton.jit
def _grad_queries(
    base, out, grad, lse, delta, to, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TAIL: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    ks = _chunks(base + H * D, 3 * H * D, N, T, LAST, D)
    vs = _chunks(base + 2 * H * D, 3 * H * D, N, T, LAST, D)
    sum_q = tl.zeros([D], tl.float32)
    sum_g = tl.zeros([D], tl.float32)
    for i in range(N // ROWS):
        dq, g = _grad_query_rows(
            base, out, grad, lse, delta, to, ks, vs, i * ROWS, scale, scale2, N, H, D, ROWS, True, T
        )
        sum_q += dq
        sum_g += g
    end: tl.constexpr = (N // ROWS) * ROWS
    if TAIL > 0:
        for at in range(end, N):
            dq, g = _grad_query_one(base, out, grad, lse, delta, to, at, scale, scale2, N, H, D, TAIL)
            sum_q += dq
            sum_g += g
    elif end < N:
        dq, g = _grad_query_rows(
            base, out, grad, lse, delta, to, ks, vs, end, scale, scale2, N, H, D, ROWS, False, T
        )
        sum_q += dq
        sum_g += g
    return sum_q, sum_g


@triton.jit
def _grad_key_value(k, v, q, g, lse, delta, at, dk, dv, scale2, N: tl.constexpr, SIZE: tl.constexpr):
    """dv += pᵀ g and dk += dsᵀ q; the transposed scores are computed as such."""
    col = at + tl.arange(0, SIZE)
    e = tl.load(lse + col, mask=col < N, other=float("inf"))  # p = 0 where there is no query
    d = tl.load(delta + col, mask=col < N, other=0.0)
    p = tl.exp2(tl.dot(k, tl.trans(q)) * scale2 - e[None, :])
    dv = tl.dot(p.to(k.dtype), g, dv)
    ds = p * (tl.dot(v, tl.trans(g)) - d[None, :])
    return tl.dot(ds.to(k.dtype), q, dk), dv


@triton.jit
def _grad_key_value_rows(
    base, lse, delta, to, qs, gs, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    k = _rows(base + H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    v = _rows(base + 2 * H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    dk = tl.zeros([SIZE, D], tl.float32)
    dv = tl.zeros([SIZE, D], tl.float32)
    for c in tl.static_range(N // T):
        dk, dv = _grad_key_value(k, v, qs[c], gs[c], lse, delta, c * T, dk, dv, scale2, N, T)
    if N % T > 0:
        end: tl.constexpr = N // T
        dk, dv = _grad_key_value(k, v, qs[end], gs[end], lse, delta, end * T, dk, dv, scale2, N, LAST)
    r = at + tl.arange(0, SIZE)
    place = to + r[:, None] * (3 * H * D) + tl.arange(0, D)[None, :]
    if WHOLE:
        tl.store(place + H * D, (dk * scale).to(k.dtype))
        tl.store(place + 2 * H * D, dv.to(k.dtype))
    else:
        tl.store(place + H * D, (dk * scale).to(k.dtype), mask=r[:, None] < N)
        tl.store(place + 2 * H * D, dv.to(k.dtype), mask=r[:, None] < N)


@triton.jit
def _grad_key_value_one(
    base, grad, lse, delta, to, last, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The same for one key, without matrix products; KEEP leaves its ds in `last`."""
    col = tl.arange(0, D)
    k = tl.load(base + H * D + at * (3 * H * D) + col).to(tl.float32)
    v = tl.load(base + 2 * H * D + at * (3 * H * D) + col).to(tl.float32)
    dk = tl.zeros([D], tl.float32)
    dv = tl.zeros([D], tl.float32)
    for c in range(0, N, T):
        r = c + tl.arange(0, T)
        q = _rows(base, c, 3 * H * D, N, T, D, False).to(tl.float32)
        g = _rows(grad, c, H * D, N, T, D, False).to(tl.float32)
        e = tl.load(lse + r, mask=r < N, other=float("inf"))
        d = tl.load(delta + r, mask=r < N, other=0.0)
        p = tl.exp2(tl.sum(q * k[None, :], 1) * scale2 - e)
        ds = p * (tl.sum(g * v[None, :], 1) - d)
        dv += tl.sum(g * p[:, None], 0)
        dk += tl.sum(q * ds[:, None], 0)
        if KEEP:
            tl.store(last + r, ds, mask=r < N)
    place = to + at * (3 * H * D) + col
    tl.store(place + H * D, (dk * scale).to(to.dtype.element_ty))
    tl.store(place + 2 * H * D, dv.to(to.dtype.element_ty))


@triton.jit
def _grad_keys_values(
    base, grad, lse, delta, to, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TAIL: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    qs = _chunks(base, 3 * H * D, N, T, LAST, D)
    gs = _chunks(grad, H * D, N, T, LAST, D)
    for i in range(N // ROWS):
        _grad_key_value_rows(
            base, lse, delta, to, qs, gs, i * ROWS, scale, scale2, N, H, D, ROWS, True, T, LAST
        )
    end: tl.constexpr = (N // ROWS) * ROWS
    if TAIL > 0:
        for at in range(end, N):
            _grad_key_value_one(base, grad, lse, delta, to, delta, at, scale, scale2, N, H, D, TAIL, False)
    elif end < N:
        _grad_key_value_rows(base, lse, delta, to, qs, gs, end, scale, scale2, N, H, D, ROWS, False, T, LAST)


@triton.jit
def _attention_backward(
    qkv, out, grad, lse, delta, dqkv, dbias, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TAIL: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, TQ: tl.constexpr,
    LASTQ: tl.constexpr,
):  # fmt: skip
    """First dq with keys and values in shared memory, then dk and dv with queries and gradients there.

    That computes the scores twice (seven products instead of five), but no sum leaves its program, and nothing has to
    be put back into shared memory between two products.
    """
    pid = tl.program_id(0)
    frame, head = (pid // H).to(tl.int64), pid % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pid.to(tl.int64) * N
    delta += pid.to(tl.int64) * N
    sum_q, sum_g = _grad_queries(base, out, grad, lse, delta, to, scale, scale2, N, H, D, ROWS, TAIL, T, LAST)
    # The sum of dv over keys is that of g, for each row of p sums to 1; the sum of dk is 0, for each row of ds does.
    dbias += frame * (3 * H * D) + head * D + tl.arange(0, D)
    tl.store(dbias, sum_q)
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)
    tl.debug_barrier()  # δ of all rows is written before any thread reads it
    _grad_keys_values(base, grad, lse, delta, to, scale, scale2, N, H, D, ROWS, TAIL, TQ, LASTQ)


@triton.jit
def _grad_all(k, v, q, g, lse, delta, at, dk, dv, dq, scale2, SIZE: tl.constexpr):
    """dv += pᵀ g, dk += dsᵀ q and dq += ds k, for SIZE queries that all exist."""
    col = at + tl.arange(0, SIZE)
    e = tl.load(lse + col)
    d = tl.load(delta + col)
    p = tl.exp2(tl.dot(k, tl.trans(q)) * scale2 - e[None, :])
    dv = tl.dot(p.to(k.dtype), g, dv)
    ds = (p * (tl.dot(v, tl.trans(g)) - d[None, :])).to(k.dtype)
    return tl.dot(ds, q, dk), dv, tl.dot(tl.trans(ds), k, dq)


@triton.jit
def _attention_backward_once(
    qkv, out, grad, lse, delta, last, dqkv, dbias, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, TAIL: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The same in one pass over pairs of tiles (five products), with dq of all queries in registers.

    ROWS keys at a time, T queries at a time. N is a multiple of ROWS, or one more: that token's row and column of the
    scores are computed without products.
    """
    pid = tl.program_id(0)
    frame, head = (pid // H).to(tl.int64), pid % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pid.to(tl.int64) * N
    delta += pid.to(tl.int64) * N
    last += pid.to(tl.int64) * N
    end: tl.constexpr = (N // ROWS) * ROWS
    sum_q = tl.zeros([D], tl.float32)
    sum_g = tl.zeros([D], tl.float32)
    for c in range(0, N, T):
        g = _rows(grad, c, H * D, N, T, D, False).to(tl.float32)
        o = _rows(out, c, H * D, N, T, D, False).to(tl.float32)
        r = c + tl.arange(0, T)
        tl.store(delta + r, tl.sum(g * o, 1), mask=r < N)
        sum_g += tl.sum(g, 0)
    tl.debug_barrier()  # δ of all rows is written before any thread reads it
    if end < N:
        _grad_key_value_one(base, grad, lse, delta, to, last, end, scale, scale2, N, H, D, TAIL, True)
        tl.debug_barrier()  # the next call writes one δ again
        sum_q, _ = _grad_query_one(base, out, grad, lse, delta, to, end, scale, scale2, N, H, D, TAIL)
        tl.debug_barrier()
    qs = _chunks(base, 3 * H * D, N, T, LAST, D)
    gs = _chunks(grad, H * D, N, T, LAST, D)
    dqs = ()
    for _c in tl.static_range(N // T):
        dqs = dqs + (tl.zeros([T, D], tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    for i in tl.static_range(N // ROWS):
        k = _rows(base + H * D, i * ROWS, 3 * H * D, N, ROWS, D, True)
        v = _rows(base + 2 * H * D, i * ROWS, 3 * H * D, N, ROWS, D, True)
        dk = tl.zeros([ROWS, D], tl.float32)
        dv = tl.zeros([ROWS, D], tl.float32)
        more = ()
        for c in tl.static_range(N // T):
            dk, dv, dq = _grad_all(k, v, qs[c], gs[c], lse, delta, c * T, dk, dv, dqs[c], scale2, T)
            more = more + (dq,)  # type: ignore[assignment]  # noqa: RUF005
        dqs = more
        if end < N:
            dk, dv = _grad_key_value(k, v, qs[N // T], gs[N // T], lse, delta, end, dk, dv, scale2, N, LAST)
        place = to + (i * ROWS + tl.arange(0, ROWS))[:, None] * (3 * H * D) + tl.arange(0, D)[None, :]
        tl.store(place + H * D, (dk * scale).to(k.dtype))
        tl.store(place + 2 * H * D, dv.to(k.dtype))
    for c in tl.static_range(N // T):
        r = c * T + tl.arange(0, T)
        dq = dqs[c]
        if end < N:
            key = tl.load(base + H * D + end * (3 * H * D) + tl.arange(0, D)).to(tl.float32)
            dq += tl.load(last + r)[:, None] * key[None, :]
        dq *= scale
        tl.store(to + r[:, None] * (3 * H * D) + tl.arange(0, D)[None, :], dq.to(to.dtype.element_ty))
        sum_q += tl.sum(dq, 0)
    dbias += frame * (3 * H * D) + head * D + tl.arange(0, D)
    tl.store(dbias, sum_q)
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)


def _last(n: int, tile: int) -> int:
    """The size of the last tile: a power of two that holds what is left, and a product needs 16 rows."""
    return max(16, triton.next_power_of_2(n % tile))


def _sizes(n: int, tiles: Tiles) -> dict[str, int]:
    return {
        "ROWS": tiles.rows,
        "TAIL": tiles.tail if 0 < n % tiles.rows <= MOST_SINGLE else 0,
        "T": tiles.keys,
        "LAST": 0 if tiles.odd and n % tiles.keys == 1 else _last(n, tiles.keys),
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        **({"maxnreg": tiles.registers} if tiles.registers else {}),
    }


def attention_forward(
    qkv: Tensor, heads: int, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """qkv (b, n, 3·h·d) -> o (b, n, h·d), log2 Σ exp (b, h, n) float32."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    out = qkv.new_empty(b, n, heads * d) if out is None else out
    lse = torch.empty(b, heads, n, device=qkv.device, dtype=torch.float32) if lse is None else lse
    _attention_forward[(b * heads,)](
        qkv, out, lse, d**-0.5 * math.log2(math.e), N=n, H=heads, D=d, **_sizes(n, FORWARD)
    )
    return out, lse


def attention_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    heads: int,
    dqkv: Tensor | None = None,
    dbias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradient of qkv, and its sum over the tokens of each frame (b, 3·h·d) float32."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    dqkv = torch.empty_like(qkv) if dqkv is None else dqkv
    delta = torch.empty_like(lse)
    if dbias is None:
        dbias = torch.empty(b, packed, device=qkv.device, dtype=torch.float32)
    scales = (d**-0.5, d**-0.5 * math.log2(math.e))
    if BACKWARD.once and BACKWARD.tail and n % BACKWARD.rows <= 1 < BACKWARD.rows <= n:
        sizes = _sizes(n, BACKWARD) | {"T": BACKWARD.queries, "LAST": _last(n, BACKWARD.queries)}
        last = torch.empty_like(lse)
        _attention_backward_once[(b * heads,)](
            qkv, out, grad, lse, delta, last, dqkv, dbias, *scales, N=n, H=heads, D=d, **sizes
        )
        return dqkv, dbias
    _attention_backward[(b * heads,)](
        qkv, out, grad, lse, delta, dqkv, dbias, *scales, N=n, H=heads, D=d,
        TQ=BACKWARD.queries, LASTQ=_last(n, BACKWARD.queries), **_sizes(n, BACKWARD),
    )  # fmt: skip
    return dqkv, dbias


@triton.jit
def _normal(x):
    """Φ(x) and exp(−x²/2): erfc(z) ≈ (a₁t + … + a₅t⁵) exp(−z²), t = 1/(1 + 0.3275911 z), z = |x|/√2.

    Abramowitz and Stegun 7.1.26: Φ is off by at most 7.5e-8, as much as float32 rounds.
    """
    e = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    poly = 0.530702714 * t - 0.7265760135
    poly = (poly * t + 0.7107068705) * t - 0.142248368
    half = (poly * t + 0.127414796) * t * e
    return tl.where(x < 0, half, 1.0 - half), e


@triton.jit
def _gelu_forward(x, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < size).to(tl.float32)
    phi, _ = _normal(v)
    tl.store(out + at, (v * phi).to(out.dtype.element_ty), mask=at < size)


@triton.jit
def _gelu_backward(
    grad, x, out, sums, m, W: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """dx = g (Φ(x) + x φ(x)) of SPAN rows and COLS columns, and its sum over those rows."""
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    first = tl.program_id(1) * SPAN
    total = tl.zeros([ROWS, COLS], tl.float32)
    for i in range(0, SPAN, ROWS):
        row = first + i + tl.arange(0, ROWS)
        keep = (row[:, None] < m) & (col[None, :] < W)
        at = row.to(tl.int64)[:, None] * W + col[None, :]
        v = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.load(grad + at, mask=keep, other=0.0).to(tl.float32)
        phi, e = _normal(v)
        g *= phi + v * e * 0.3989422804014327
        tl.store(out + at, g.to(out.dtype.element_ty), mask=keep)
        total += g
    tl.store(sums + tl.program_id(1) * W + col, tl.sum(total, 0), mask=col < W)


def gelu_forward(x: Tensor, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    size, block = x.numel(), 1024
    _gelu_forward[(triton.cdiv(size, block),)](x, out, size, BLOCK=block, num_warps=4)
    return out


def gelu_backward(
    grad: Tensor, x: Tensor, span: int, out: Tensor | None = None, sums: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient of x (…, w), and its sums over each `span` rows (pieces, w) float32."""
    w = x.shape[-1]
    m = x.numel() // w
    out = torch.empty_like(x) if out is None else out
    pieces = triton.cdiv(m, span)
    sums = torch.empty(pieces, w, device=x.device, dtype=torch.float32) if sums is None else sums
    _gelu_backward[(triton.cdiv(w, 128), pieces)](
        grad, x, out, sums, m, W=w, SPAN=span, ROWS=16, COLS=128, num_warps=4, num_stages=3
    )
    return out, sums


@triton.jit
def _patches(
    pairs, scale, shift, out, SIDE: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr, ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of patches of one frame: ROW = SIDE/P·WIDE pairs of pixels, contiguous where they are written.

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
    to = out + frame * (SIDE // P * 2 * ROW) + i * (2 * ROW)
    at = tl.program_id(2) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    tl.store(to + at, tl.interleave(x, y).to(out.dtype.element_ty), mask=at < 2 * ROW)


def padded(pixels: int) -> int:
    return -(-pixels // 8) * 8


def patches(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    """uint8 (b, 3, s, s) -> bfloat16 (b, (s/p)², padded(3·p²)), scaled and shifted by channel; s and p are even."""
    b, _, _, side = frames.shape
    rows, wide = side // patch, padded(3 * patch * patch)
    out = torch.empty(b, rows * rows, wide, device=frames.device, dtype=torch.bfloat16)
    row, block = rows * wide // 2, 1024
    _patches[(b, rows, triton.cdiv(row, block))](
        frames.view(torch.int16), scale, shift, out, SIDE=side, P=patch, WIDE=wide // 2, ROW=row, BLOCK=block,
        num_warps=4,
    )  # fmt: skip
    return out
