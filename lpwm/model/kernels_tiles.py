"""What one program of attention's kernels does with a tile of rows (Triton).

Legend: N tokens, H heads, D width of a head; SIZE rows, T keys (or queries) at a time and LAST at last. WHOLE: all rows
exist. STREAM: what the rows are combined with is read here in a pipeline, else it is given, in shared memory.
e is log2 of a softmax's denominator, δ = ⟨g, o⟩.
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
    base, out, lse, at, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr,
    WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """o and e of SIZE queries."""
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    total = tl.zeros([SIZE], tl.float32)
    o = tl.zeros([SIZE, D], tl.float32)
    top = tl.full([SIZE], float("-inf"), tl.float32)
    end: tl.constexpr = N // T
    if N % T > 0:  # read first, used last: one wait for memory less
        k_end = _rows(base + H * D, end * T, 3 * H * D, N, LAST, D, False)
        v_end = _rows(base + 2 * H * D, end * T, 3 * H * D, N, LAST, D, False)
    for c in range(end):
        k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
        v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
        top, total, o = _attend(q, k, v, c * T, top, total, o, scale2, N, T, True)
    if N % T > 0:
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
    base, out, grad, lse, delta, to, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """dq and δ of SIZE queries; returns the sums of dq and of g over them."""
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    g = _rows(grad, at, H * D, N, SIZE, D, WHOLE)
    o = _rows(out, at, H * D, N, SIZE, D, WHOLE)
    r = at + tl.arange(0, SIZE)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + r, d, mask=r < N)
    sum_g = tl.sum(g.to(tl.float32), 0)
    e = tl.load(lse + r, mask=r < N, other=0.0)
    dq = tl.zeros([SIZE, D], tl.float32)
    if N % T > 0:  # read first, used last: one wait for memory less
        k_end = _rows(base + H * D, (N // T) * T, 3 * H * D, N, LAST, D, False)
        v_end = _rows(base + 2 * H * D, (N // T) * T, 3 * H * D, N, LAST, D, False)
    for c in range(N // T):
        k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
        v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
        dq = _grad_query(q, g, k, v, e, d, dq, scale2, True)
    if N % T > 0:
        dq = _grad_query(q, g, k_end, v_end, e, d, dq, scale2, False)
    dq *= scale
    _put(to, dq, at, 3 * H * D, N, SIZE, D, WHOLE)
    return tl.sum(dq, 0), sum_g


@triton.jit
def _grad_key_value(
    k, v, q, g, lse, delta, at, dk, dv, scale2, N: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr
):
    """dv += pᵀ g and dk += dsᵀ q; the transposed scores are computed as such."""
    col = at + tl.arange(0, SIZE)
    if WHOLE:
        e = tl.load(lse + col)
        d = tl.load(delta + col)
    else:
        e = tl.load(lse + col, mask=col < N, other=float("inf"))  # p = 0 where there is no query
        d = tl.load(delta + col, mask=col < N, other=0.0)
    p = tl.exp2(tl.dot(k, tl.trans(q)) * scale2 - e[None, :])
    dv = tl.dot(p.to(k.dtype), g, dv)
    ds = p * (tl.dot(v, tl.trans(g)) - d[None, :])
    return tl.dot(ds.to(k.dtype), q, dk), dv


@triton.jit
def _grad_key_value_rows(
    base, grad, lse, delta, to, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """dk and dv of SIZE keys."""
    k = _rows(base + H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    v = _rows(base + 2 * H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    dk = tl.zeros([SIZE, D], tl.float32)
    dv = tl.zeros([SIZE, D], tl.float32)
    end: tl.constexpr = N // T
    if N % T > 0:
        q_end = _rows(base, end * T, 3 * H * D, N, LAST, D, False)
        g_end = _rows(grad, end * T, H * D, N, LAST, D, False)
    for c in range(end):
        q = _rows(base, c * T, 3 * H * D, N, T, D, True)
        g = _rows(grad, c * T, H * D, N, T, D, True)
        dk, dv = _grad_key_value(k, v, q, g, lse, delta, c * T, dk, dv, scale2, N, T, True)
    if N % T > 0:
        dk, dv = _grad_key_value(k, v, q_end, g_end, lse, delta, end * T, dk, dv, scale2, N, LAST, False)
    _put(to + H * D, dk * scale, at, 3 * H * D, N, SIZE, D, WHOLE)
    _put(to + 2 * H * D, dv, at, 3 * H * D, N, SIZE, D, WHOLE)


@triton.jit
def _put_sums(dbias, sum_q, sum_g, H: tl.constexpr, D: tl.constexpr):
    """The sum of dv over keys is that of g, for a row of p sums to 1; the sum of dk is 0, for a row of ds does."""
    dbias += tl.arange(0, D)
    tl.store(dbias, sum_q)
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)
