"""What one program of attention's kernels does with a tile of rows (Triton).

Legend: N tokens, H heads, D width of a head; SIZE rows, T keys (or queries) at a time and LAST at last. WHOLE: all rows
exist. e is log2 of a softmax's denominator, δ = ⟨g, o⟩.

LAST = 0: none are left over. LAST = 1: the one key (or query) left over is where sums start, by multiplication; no
product is padded for it. Else they are a tile of their own, masked.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def _put(base, x, start, stride, N: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr):
    """Writes rows start … start+SIZE of a matrix (N, D), as far as they exist."""
    r = start + tl.arange(0, SIZE)
    at = base + r[:, None] * stride + tl.arange(0, D)[None, :]
    if WHOLE:
        tl.store(at, x.to(base.dtype.element_ty))
    else:
        tl.store(at, x.to(base.dtype.element_ty), mask=r[:, None] < N)


@triton.jit
def _line(base, start, stride, D: tl.constexpr):
    """One row of a matrix, in float32."""
    return tl.load(base + start * stride + tl.arange(0, D)).to(tl.float32)


@triton.jit
def _with(x, line):
    """⟨x_i, line⟩ of each row."""
    return tl.sum(x.to(tl.float32) * line[None, :], 1)


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
    base,
    out,
    lse,
    at,
    scale2,
    N: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    T: tl.constexpr,
    LAST: tl.constexpr,
):
    """o and e of SIZE queries."""
    end: tl.constexpr = N // T
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    if LAST == 1:
        k_end = _line(base + H * D, end * T, 3 * H * D, D)
        v_end = _line(base + 2 * H * D, end * T, 3 * H * D, D)
        top = _with(q, k_end) * scale2
        total = tl.full([SIZE], 1.0, tl.float32)
        o = total[:, None] * v_end[None, :]
    else:
        top = tl.full([SIZE], float("-inf"), tl.float32)
        total = tl.zeros([SIZE], tl.float32)
        o = tl.zeros([SIZE, D], tl.float32)
    if LAST > 1:  # read first, used last: one wait for memory less
        k_end = _rows(base + H * D, end * T, 3 * H * D, N, LAST, D, False)
        v_end = _rows(base + 2 * H * D, end * T, 3 * H * D, N, LAST, D, False)
    for c in range(end):
        k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
        v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
        top, total, o = _attend(q, k, v, c * T, top, total, o, scale2, N, T, True)
    if LAST > 1:
        top, total, o = _attend(q, k_end, v_end, end * T, top, total, o, scale2, N, LAST, False)
    r = at + tl.arange(0, SIZE)
    _put(out, o / total[:, None], at, H * D, N, SIZE, D, WHOLE)
    tl.store(lse + r, top + tl.log2(total), mask=r < N)


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
    base,
    out,
    grad,
    lse,
    delta,
    again,
    to,
    dbias,
    at,
    scale,
    scale2,
    N: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    EVEN: tl.constexpr,
    SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    T: tl.constexpr,
    LAST: tl.constexpr,
):
    """dq and δ of SIZE queries (and e again where rows of δ have more than N numbers); their sums for the bias."""
    end: tl.constexpr = N // T
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    g = _rows(grad, at, H * D, N, SIZE, D, WHOLE)
    o = _rows(out, at, H * D, N, SIZE, D, WHOLE)
    r = at + tl.arange(0, SIZE)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + r, d, mask=r < N)
    e = tl.load(lse + r, mask=r < N, other=0.0)
    if EVEN != N:
        tl.store(again + r, e, mask=r < N)
    sum_g = tl.sum(g.to(tl.float32), 0)
    if LAST == 1:
        k_end = _line(base + H * D, end * T, 3 * H * D, D)
        v_end = _line(base + 2 * H * D, end * T, 3 * H * D, D)
        ds = tl.exp2(_with(q, k_end) * scale2 - e) * (_with(g, v_end) - d)
        dq = ds[:, None] * k_end[None, :]
    else:
        dq = tl.zeros([SIZE, D], tl.float32)
    if LAST > 1:  # read first, used last: one wait for memory less
        k_end = _rows(base + H * D, end * T, 3 * H * D, N, LAST, D, False)
        v_end = _rows(base + 2 * H * D, end * T, 3 * H * D, N, LAST, D, False)
    for c in range(end):
        k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
        v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
        dq = _grad_query(q, g, k, v, e, d, dq, scale2, True)
    if LAST > 1:
        dq = _grad_query(q, g, k_end, v_end, e, d, dq, scale2, False)
    dq *= scale
    _put(to, dq, at, 3 * H * D, N, SIZE, D, WHOLE)
    _put_sums(dbias, tl.sum(dq, 0), sum_g, H, D)


@triton.jit
def _put_sums(dbias, sum_q, sum_g, H: tl.constexpr, D: tl.constexpr):
    """The sum of dv over keys is that of g, for a row of p sums to 1; the sum of dk is 0, for a row of ds does."""
    dbias += tl.arange(0, D)
    tl.store(dbias, sum_q)
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)


@triton.jit
def _grad_key_value(k, v, q, g, e, d, dk, dv, scale2):
    """dv += pᵀ g and dk += dsᵀ q; the transposed scores are computed as such."""
    p = tl.exp2(tl.dot(k, tl.trans(q)) * scale2 - e[None, :])
    dv = tl.dot(p.to(k.dtype), g, dv)
    ds = p * (tl.dot(v, tl.trans(g)) - d[None, :])
    return tl.dot(ds.to(k.dtype), q, dk), dv


@triton.jit
def _grad_key_value_rows(
    base,
    grad,
    lse,
    delta,
    to,
    at,
    scale,
    scale2,
    N: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    T: tl.constexpr,
    LAST: tl.constexpr,
):
    """dk and dv of SIZE keys."""
    end: tl.constexpr = N // T
    k = _rows(base + H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    v = _rows(base + 2 * H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    if LAST == 1:
        q_end = _line(base, end * T, 3 * H * D, D)
        g_end = _line(grad, end * T, H * D, D)
        e_end = tl.load(lse + end * T)
        d_end = tl.load(delta + end * T)
        p = tl.exp2(_with(k, q_end) * scale2 - e_end)
        ds = p * (_with(v, g_end) - d_end)
        dk = ds[:, None] * q_end[None, :]
        dv = p[:, None] * g_end[None, :]
    else:
        dk = tl.zeros([SIZE, D], tl.float32)
        dv = tl.zeros([SIZE, D], tl.float32)
    if LAST > 1:
        q_end = _rows(base, end * T, 3 * H * D, N, LAST, D, False)
        g_end = _rows(grad, end * T, H * D, N, LAST, D, False)
    for c in range(end):
        q = _rows(base, c * T, 3 * H * D, N, T, D, True)
        g = _rows(grad, c * T, H * D, N, T, D, True)
        e = tl.load(lse + c * T + tl.arange(0, T))
        d = tl.load(delta + c * T + tl.arange(0, T))
        dk, dv = _grad_key_value(k, v, q, g, e, d, dk, dv, scale2)
    if LAST > 1:
        col = end * T + tl.arange(0, LAST)
        e = tl.load(lse + col, mask=col < N, other=float("inf"))  # p = 0 where there is no query
        d = tl.load(delta + col, mask=col < N, other=0.0)
        dk, dv = _grad_key_value(k, v, q_end, g_end, e, d, dk, dv, scale2)
    _put(to + H * D, dk * scale, at, 3 * H * D, N, SIZE, D, WHOLE)
    _put(to + 2 * H * D, dv, at, 3 * H * D, N, SIZE, D, WHOLE)
