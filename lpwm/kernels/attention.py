"""Attention over the tokens of one frame.

Kernels take the packed projection (b, n, 3·h·d) and write (b, n, h·d), and backwards the packed gradient. A program
owns ROWS rows of one head of one frame. 257 tokens = 4·64 + 1: what is left over of the other side is a small last
tile, or, if it is one key (or query), the start of the sums. Backwards there are two kernels, for dq and for dk and dv:
scores are computed twice, but no sum leaves its program. The frames come first that the cache still holds.

Legend: b frames, n = N tokens, h = H heads, d = D width of a head; e is log2 of a softmax's denominator, δ = ⟨g, o⟩.
SIZE rows are treated at once, WHOLE: all of them exist. LAST: the size of the last tile; 0: none is left over; 1: one.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr as C  # an annotation that Triton reads: no string

HEAD_DIM = 64
D = tl.constexpr(HEAD_DIM)
# The fastest on an H200 at 257 tokens and 3 heads (bench/results/attention_h200.json).
ROWS = tl.constexpr(64)
KEYS = tl.constexpr(64)  # at a time, for rows of queries
QUERIES = tl.constexpr(32)  # at a time, for rows of keys
SCALE = tl.constexpr(HEAD_DIM**-0.5)
SCALE2 = tl.constexpr(HEAD_DIM**-0.5 * math.log2(math.e))  # for powers of 2


@triton.jit
def _rows(base, start, stride, N: C, SIZE: C, WHOLE: C):
    """Rows start … start+SIZE of a matrix (N, D); those past N are 0."""
    r = tl.arange(0, SIZE) + start
    at = base + r[:, None] * stride + tl.arange(0, D)[None, :]
    if WHOLE:
        return tl.load(at)
    else:
        return tl.load(at, mask=r[:, None] < N, other=0.0)


@triton.jit
def _put(base, x, start, stride, N: C, SIZE: C, WHOLE: C):
    """Writes rows start … start+SIZE of a matrix (N, D), as far as they exist."""
    r = tl.arange(0, SIZE) + start
    at = base + r[:, None] * stride + tl.arange(0, D)[None, :]
    if WHOLE:
        tl.store(at, x.to(base.dtype.element_ty))
    else:
        tl.store(at, x.to(base.dtype.element_ty), mask=r[:, None] < N)


@triton.jit
def _line(base, start, stride):
    """One row of a matrix, in float32."""
    return tl.load(base + start * stride + tl.arange(0, D)).to(tl.float32)


@triton.jit
def _with(x, line):
    """⟨x_i, line⟩ of each row."""
    return tl.sum(x.to(tl.float32) * line[None, :], 1)


@triton.jit
def _attend(q, k, v, at, top, total, o, N: C, SIZE: C, WHOLE: C):
    """Adds SIZE keys to a softmax under way: its maximum, its denominator and its sum of values."""
    s = tl.dot(q, tl.trans(k))
    if not WHOLE:
        s = tl.where((tl.arange(0, SIZE) + at)[None, :] < N, s, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1) * SCALE2)
    p = tl.exp2(s * SCALE2 - higher[:, None])
    shrink = tl.exp2(top - higher)
    return higher, total * shrink + tl.sum(p, 1), tl.dot(p.to(q.dtype), v, o * shrink[:, None])


@triton.jit
def _attend_rows(base, out, lse, at, N: C, H: C, SIZE: C, WHOLE: C, LAST: C):
    """o and e of SIZE queries."""
    end: tl.constexpr = N // KEYS
    q = _rows(base, at, 3 * H * D, N, SIZE, WHOLE)
    if LAST == 1:
        k_end = _line(base + H * D, end * KEYS, 3 * H * D)
        v_end = _line(base + 2 * H * D, end * KEYS, 3 * H * D)
        top = _with(q, k_end) * SCALE2
        total = tl.full([SIZE], 1.0, tl.float32)
        o = total[:, None] * v_end[None, :]
    else:
        top = tl.full([SIZE], float("-inf"), tl.float32)
        total = tl.zeros([SIZE], tl.float32)
        o = tl.zeros([SIZE, D], tl.float32)
    if LAST > 1:  # loaded first, used last: one wait for memory less
        k_end = _rows(base + H * D, end * KEYS, 3 * H * D, N, LAST, False)
        v_end = _rows(base + 2 * H * D, end * KEYS, 3 * H * D, N, LAST, False)
    for c in range(end):
        k = _rows(base + H * D, c * KEYS, 3 * H * D, N, KEYS, True)
        v = _rows(base + 2 * H * D, c * KEYS, 3 * H * D, N, KEYS, True)
        top, total, o = _attend(q, k, v, c * KEYS, top, total, o, N, KEYS, True)
    if LAST > 1:
        top, total, o = _attend(q, k_end, v_end, end * KEYS, top, total, o, N, LAST, False)
    r = tl.arange(0, SIZE) + at
    _put(out, o / total[:, None], at, H * D, N, SIZE, WHOLE)
    tl.store(lse + r, top + tl.log2(total), mask=r < N)


@triton.jit
def _attention_forward(qkv, out, lse, N: C, H: C, REST: C, LAST: C):
    """o = softmax(q kᵀ/√d) v and e, of ROWS queries of one head (its last program: REST)."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    at = tile * ROWS
    if at + ROWS <= N:
        _attend_rows(base, out, lse, at, N, H, ROWS, True, LAST)
    else:
        _attend_rows(base, out, lse, at, N, H, REST, False, LAST)


@triton.jit
def _grad_query(q, g, k, v, e, d, dq, WHOLE: C):
    """dq += ds k with ds = p (g vᵀ − δ). Keys past the end are 0 and so add nothing, as long as p is finite."""
    s = tl.dot(q, tl.trans(k)) * SCALE2 - e[:, None]
    if not WHOLE:
        s = tl.minimum(s, 0.0)
    ds = tl.exp2(s) * (tl.dot(g, tl.trans(v)) - d[:, None])
    return tl.dot(ds.to(q.dtype), k, dq)


@triton.jit
def _grad_query_rows(base, out, grad, lse, delta, again, to, dbias, at, N: C, H: C, SIZE: C, WHOLE: C, LAST: C):
    """dq and δ of SIZE queries, e again next to δ, and their sums for the bias."""
    end: tl.constexpr = N // KEYS
    q = _rows(base, at, 3 * H * D, N, SIZE, WHOLE)
    g = _rows(grad, at, H * D, N, SIZE, WHOLE)
    o = _rows(out, at, H * D, N, SIZE, WHOLE)
    r = tl.arange(0, SIZE) + at
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + r, d, mask=r < N)
    e = tl.load(lse + r, mask=r < N, other=0.0)
    tl.store(again + r, e, mask=r < N)
    sum_g = tl.sum(g.to(tl.float32), 0)
    if LAST == 1:
        k_end = _line(base + H * D, end * KEYS, 3 * H * D)
        v_end = _line(base + 2 * H * D, end * KEYS, 3 * H * D)
        ds = tl.exp2(_with(q, k_end) * SCALE2 - e) * (_with(g, v_end) - d)
        dq = ds[:, None] * k_end[None, :]
    else:
        dq = tl.zeros([SIZE, D], tl.float32)
    if LAST > 1:
        k_end = _rows(base + H * D, end * KEYS, 3 * H * D, N, LAST, False)
        v_end = _rows(base + 2 * H * D, end * KEYS, 3 * H * D, N, LAST, False)
    for c in range(end):
        k = _rows(base + H * D, c * KEYS, 3 * H * D, N, KEYS, True)
        v = _rows(base + 2 * H * D, c * KEYS, 3 * H * D, N, KEYS, True)
        dq = _grad_query(q, g, k, v, e, d, dq, True)
    if LAST > 1:
        dq = _grad_query(q, g, k_end, v_end, e, d, dq, False)
    dq *= SCALE
    _put(to, dq, at, 3 * H * D, N, SIZE, WHOLE)
    # The sum of dv over keys is that of g, for a row of p sums to 1; the sum of dk is 0, for a row of ds does.
    dbias += tl.arange(0, D)
    tl.store(dbias, tl.sum(dq, 0))
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)


@triton.jit
def _attention_queries(qkv, out, grad, lse, delta, again, dqkv, dbias, N: C, H: C, REST: C, LAST: C):
    """Of ROWS queries of one head (its last program: REST). A row of δ, and of e written `again`, has EVEN numbers."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    even: tl.constexpr = (N + 3) // 4 * 4
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    delta += pair.to(tl.int64) * even
    again += pair.to(tl.int64) * even
    dbias += (frame * tiles + tile) * (3 * H * D) + head * D
    at = tile * ROWS
    if at + ROWS <= N:
        _grad_query_rows(base, out, grad, lse, delta, again, to, dbias, at, N, H, ROWS, True, LAST)
    else:
        _grad_query_rows(base, out, grad, lse, delta, again, to, dbias, at, N, H, REST, False, LAST)


@triton.jit
def _grad_key_value(k, v, q, g, e, d, dk, dv):
    """dv += pᵀ g and dk += dsᵀ q; the transposed scores are computed as such."""
    p = tl.exp2(tl.dot(k, tl.trans(q)) * SCALE2 - e[None, :])
    dv = tl.dot(p.to(k.dtype), g, dv)
    ds = p * (tl.dot(v, tl.trans(g)) - d[None, :])
    return tl.dot(ds.to(k.dtype), q, dk), dv


@triton.jit
def _grad_key_value_rows(base, grad, lse, delta, to, at, N: C, H: C, SIZE: C, WHOLE: C, LAST: C):
    """dk and dv of SIZE keys."""
    end: tl.constexpr = N // QUERIES
    k = _rows(base + H * D, at, 3 * H * D, N, SIZE, WHOLE)
    v = _rows(base + 2 * H * D, at, 3 * H * D, N, SIZE, WHOLE)
    if LAST == 1:
        q_end = _line(base, end * QUERIES, 3 * H * D)
        g_end = _line(grad, end * QUERIES, H * D)
        e_end = tl.load(lse + end * QUERIES)
        d_end = tl.load(delta + end * QUERIES)
        p = tl.exp2(_with(k, q_end) * SCALE2 - e_end)
        ds = p * (_with(v, g_end) - d_end)
        dk = ds[:, None] * q_end[None, :]
        dv = p[:, None] * g_end[None, :]
    else:
        dk = tl.zeros([SIZE, D], tl.float32)
        dv = tl.zeros([SIZE, D], tl.float32)
    if LAST > 1:
        q_end = _rows(base, end * QUERIES, 3 * H * D, N, LAST, False)
        g_end = _rows(grad, end * QUERIES, H * D, N, LAST, False)
    for c in range(end):
        q = _rows(base, c * QUERIES, 3 * H * D, N, QUERIES, True)
        g = _rows(grad, c * QUERIES, H * D, N, QUERIES, True)
        e = tl.load(lse + c * QUERIES + tl.arange(0, QUERIES))
        d = tl.load(delta + c * QUERIES + tl.arange(0, QUERIES))
        dk, dv = _grad_key_value(k, v, q, g, e, d, dk, dv)
    if LAST > 1:
        col = tl.arange(0, LAST) + end * QUERIES
        e = tl.load(lse + col, mask=col < N, other=float("inf"))  # p = 0 where there is no query
        d = tl.load(delta + col, mask=col < N, other=0.0)
        dk, dv = _grad_key_value(k, v, q_end, g_end, e, d, dk, dv)
    _put(to + H * D, dk * SCALE, at, 3 * H * D, N, SIZE, WHOLE)
    _put(to + 2 * H * D, dv, at, 3 * H * D, N, SIZE, WHOLE)


@triton.jit
def _attention_keys(qkv, grad, lse, delta, dqkv, N: C, H: C, REST: C, LAST: C):
    """Of ROWS keys of one head (its last program: REST). The first frames come first, after `_attention_queries` has
    ended with them: they are still in the cache."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    even: tl.constexpr = (N + 3) // 4 * 4
    pid = tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * even
    delta += pair.to(tl.int64) * even
    at = tile * ROWS
    if at + ROWS <= N:
        _grad_key_value_rows(base, grad, lse, delta, to, at, N, H, ROWS, True, LAST)
    else:
        _grad_key_value_rows(base, grad, lse, delta, to, at, N, H, REST, False, LAST)


def _small(left: int) -> int:
    """The size of a tile for what is left over: a power of two that holds it, and a product needs 16."""
    return max(16, triton.next_power_of_2(left))


def _cut(n: int, across: int, stages: int) -> dict[str, int]:
    left = n % across
    sizes = {"REST": _small(n % ROWS.value), "LAST": left if left < 2 else _small(left)}
    return {**sizes, "num_warps": 4, "num_stages": stages, "maxnreg": 128}


def pieces(b: int, n: int) -> int:
    """How many partial sums over tokens the backward pass leaves."""
    return b * triton.cdiv(n, ROWS.value)


def forward(qkv: Tensor, heads: int, out: Tensor, lse: Tensor) -> None:
    """qkv (b, n, 3·h·d) -> o (b, n, h·d), e (b, h, n) float32."""
    b, n, _ = qkv.shape
    cut = _cut(n, KEYS.value, stages=3)
    _attention_forward[(heads * pieces(b, n),)](qkv, out, lse, N=n, H=heads, **cut)


def backward(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, dqkv: Tensor, dbias: Tensor) -> None:
    """The gradient of qkv, and its sums over tokens in pieces (pieces(b, n), 3·h·d) float32."""
    b, n, _ = qkv.shape
    grid = (heads * pieces(b, n),)
    # Rows of a multiple of 4 numbers are read two numbers at once.
    e, delta = torch.empty(2, b, heads, 4 * triton.cdiv(n, 4), device=qkv.device, dtype=torch.float32)
    cut = _cut(n, KEYS.value, stages=2)
    _attention_queries[grid](qkv, out, grad, lse, delta, e, dqkv, dbias, N=n, H=heads, **cut)
    cut = _cut(n, QUERIES.value, stages=3)
    _attention_keys[grid](qkv, grad, e, delta, dqkv, N=n, H=heads, **cut)
