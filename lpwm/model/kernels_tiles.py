"""What one program of attention's kernels does with a tile of rows (Triton).

Legend: N tokens, H heads, D width of a head; SIZE rows, T keys (or queries) at a time and LAST at last. WHOLE: all rows
exist. e is log2 of a softmax's denominator, δ = ⟨g, o⟩.

LAST = 1: the one key (or query) left over is where sums start, by multiplication; no product is padded for it.
TAKE > 0: the rows past the tile, at most TAKE, are taken along as a second tile (names in _r), so that keys are read
once for both. TURN: as columns, with every product transposed: keys are then the 64 rows that Hopper's products want,
read from the same shared memory, and the few rows cost few registers.
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
def _outer(x, line, TURN: tl.constexpr):
    """x lineᵀ, or where rows are columns line xᵀ."""
    if TURN:
        return line[:, None] * x[None, :]
    else:
        return x[:, None] * line[None, :]


@triton.jit
def _none(SIZE: tl.constexpr, D: tl.constexpr, TURN: tl.constexpr):
    if TURN:
        return tl.zeros([D, SIZE], tl.float32)
    else:
        return tl.zeros([SIZE, D], tl.float32)


@triton.jit
def _put_rest(
    base, x, start, stride, N: tl.constexpr, SIZE: tl.constexpr, D: tl.constexpr, TURN: tl.constexpr
):
    """As `_put` with rows past the end, which are columns of x where TURN."""
    if TURN:
        r = start + tl.arange(0, SIZE)
        at = base + r[None, :] * stride + tl.arange(0, D)[:, None]
        tl.store(at, x.to(base.dtype.element_ty), mask=r[None, :] < N)
    else:
        _put(base, x, start, stride, N, SIZE, D, False)


@triton.jit
def _start(q, k, v, scale2, SIZE: tl.constexpr, D: tl.constexpr, LONE: tl.constexpr, TURN: tl.constexpr):
    """A softmax before its first key, or after one: its maximum, its denominator and its sum of values."""
    if LONE:
        one = tl.full([SIZE], 1.0, tl.float32)
        return _with(q, k) * scale2, one, _outer(one, v, TURN)
    else:
        top = tl.full([SIZE], float("-inf"), tl.float32)
        return top, tl.zeros([SIZE], tl.float32), _none(SIZE, D, TURN)


@triton.jit
def _attend(
    q, k, v, at, top, total, o, scale2, N: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr, TURN: tl.constexpr
):  # fmt: skip
    """Adds SIZE keys to a softmax under way."""
    if TURN:
        s = tl.dot(k, tl.trans(q))
        if not WHOLE:
            s = tl.where((at + tl.arange(0, SIZE))[:, None] < N, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 0) * scale2)
        p = tl.exp2(s * scale2 - higher[None, :])
        shrink = tl.exp2(top - higher)
        o = tl.dot(tl.trans(v), p.to(q.dtype), o * shrink[None, :])
        return higher, total * shrink + tl.sum(p, 0), o
    else:
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
    WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, TAKE: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """o and e of SIZE queries, and of those taken along."""
    end: tl.constexpr = N // T
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    k_end, v_end = 0.0, 0.0
    if LAST == 1:
        k_end = _line(base + H * D, end * T, 3 * H * D, D)
        v_end = _line(base + 2 * H * D, end * T, 3 * H * D, D)
    elif N % T > 0:  # read first, used last: one wait for memory less
        k_end = _rows(base + H * D, end * T, 3 * H * D, N, LAST, D, False)
        v_end = _rows(base + 2 * H * D, end * T, 3 * H * D, N, LAST, D, False)
    top, total, o = _start(q, k_end, v_end, scale2, SIZE, D, LAST == 1, False)
    if TAKE > 0:
        q_r = _rows(base, at + SIZE, 3 * H * D, N, TAKE, D, False)
        top_r, total_r, o_r = _start(q_r, k_end, v_end, scale2, TAKE, D, LAST == 1, TURN)
    for c in range(end):
        k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
        v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
        top, total, o = _attend(q, k, v, c * T, top, total, o, scale2, N, T, True, False)
        if TAKE > 0:
            top_r, total_r, o_r = _attend(q_r, k, v, c * T, top_r, total_r, o_r, scale2, N, T, True, TURN)
    if N % T > 0 and LAST > 1:
        top, total, o = _attend(q, k_end, v_end, end * T, top, total, o, scale2, N, LAST, False, False)
        if TAKE > 0:
            top_r, total_r, o_r = _attend(
                q_r, k_end, v_end, end * T, top_r, total_r, o_r, scale2, N, LAST, False, TURN
            )
    r = at + tl.arange(0, SIZE)
    _put(out, o / total[:, None], at, H * D, N, SIZE, D, WHOLE)
    tl.store(lse + r, top + tl.log2(total), mask=r < N)
    if TAKE > 0:
        r_r = at + SIZE + tl.arange(0, TAKE)
        if TURN:
            o_r /= total_r[None, :]
        else:
            o_r /= total_r[:, None]
        _put_rest(out, o_r, at + SIZE, H * D, N, TAKE, D, TURN)
        tl.store(lse + r_r, top_r + tl.log2(total_r), mask=r_r < N)


@triton.jit
def _queries(
    base, out, grad, lse, delta, again, at, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    EVEN: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """q, g, e, δ (which it writes, and e again if rows differ) and the sum of g."""
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    g = _rows(grad, at, H * D, N, SIZE, D, WHOLE)
    o = _rows(out, at, H * D, N, SIZE, D, WHOLE)
    r = at + tl.arange(0, SIZE)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + r, d, mask=r < N)
    e = tl.load(lse + r, mask=r < N, other=0.0)
    if EVEN != N:
        tl.store(again + r, e, mask=r < N)
    return q, g, e, d, tl.sum(g.to(tl.float32), 0)


@triton.jit
def _grad_query_start(
    q, g, k, v, e, d, scale2, SIZE: tl.constexpr, D: tl.constexpr, LONE: tl.constexpr, TURN: tl.constexpr
):
    if LONE:
        ds = tl.exp2(_with(q, k) * scale2 - e) * (_with(g, v) - d)
        return _outer(ds, k, TURN)
    else:
        return _none(SIZE, D, TURN)


@triton.jit
def _grad_query(q, g, k, v, e, d, dq, scale2, WHOLE: tl.constexpr, TURN: tl.constexpr):
    """dq += ds k with ds = p (g vᵀ − δ). Keys past the end are 0 and so add nothing, as long as p is finite."""
    if TURN:
        s = tl.dot(k, tl.trans(q)) * scale2 - e[None, :]
        if not WHOLE:
            s = tl.minimum(s, 0.0)
        ds = tl.exp2(s) * (tl.dot(v, tl.trans(g)) - d[None, :])
        return tl.dot(tl.trans(k), ds.to(q.dtype), dq)
    else:
        s = tl.dot(q, tl.trans(k)) * scale2 - e[:, None]
        if not WHOLE:
            s = tl.minimum(s, 0.0)
        ds = tl.exp2(s) * (tl.dot(g, tl.trans(v)) - d[:, None])
        return tl.dot(ds.to(q.dtype), k, dq)


@triton.jit
def _grad_query_rows(
    base, out, grad, lse, delta, again, to, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    EVEN: tl.constexpr, SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
    TAKE: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """dq and δ of SIZE queries, and of those taken along; returns the sums of dq and of g over them."""
    end: tl.constexpr = N // T
    q, g, e, d, sum_g = _queries(base, out, grad, lse, delta, again, at, N, H, D, EVEN, SIZE, WHOLE)
    k_end, v_end = 0.0, 0.0
    if LAST == 1:
        k_end = _line(base + H * D, end * T, 3 * H * D, D)
        v_end = _line(base + 2 * H * D, end * T, 3 * H * D, D)
    elif N % T > 0:  # read first, used last: one wait for memory less
        k_end = _rows(base + H * D, end * T, 3 * H * D, N, LAST, D, False)
        v_end = _rows(base + 2 * H * D, end * T, 3 * H * D, N, LAST, D, False)
    dq = _grad_query_start(q, g, k_end, v_end, e, d, scale2, SIZE, D, LAST == 1, False)
    if TAKE > 0:
        q_r, g_r, e_r, d_r, more_g = _queries(
            base, out, grad, lse, delta, again, at + SIZE, N, H, D, EVEN, TAKE, False
        )
        sum_g += more_g
        dq_r = _grad_query_start(q_r, g_r, k_end, v_end, e_r, d_r, scale2, TAKE, D, LAST == 1, TURN)
    for c in range(end):
        k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
        v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
        dq = _grad_query(q, g, k, v, e, d, dq, scale2, True, False)
        if TAKE > 0:
            dq_r = _grad_query(q_r, g_r, k, v, e_r, d_r, dq_r, scale2, True, TURN)
    if N % T > 0 and LAST > 1:
        dq = _grad_query(q, g, k_end, v_end, e, d, dq, scale2, False, False)
        if TAKE > 0:
            dq_r = _grad_query(q_r, g_r, k_end, v_end, e_r, d_r, dq_r, scale2, False, TURN)
    dq *= scale
    _put(to, dq, at, 3 * H * D, N, SIZE, D, WHOLE)
    sum_q = tl.sum(dq, 0)
    if TAKE > 0:
        dq_r *= scale
        _put_rest(to, dq_r, at + SIZE, 3 * H * D, N, TAKE, D, TURN)
        sum_q += tl.sum(dq_r, 1 if TURN else 0)
    return sum_q, sum_g


@triton.jit
def _grad_key_value_start(
    k, v, q, g, e, d, scale2, SIZE: tl.constexpr, D: tl.constexpr, LONE: tl.constexpr, TURN: tl.constexpr
):
    if LONE:
        p = tl.exp2(_with(k, q) * scale2 - e)
        return _outer(p * (_with(v, g) - d), q, TURN), _outer(p, g, TURN)
    else:
        return _none(SIZE, D, TURN), _none(SIZE, D, TURN)


@triton.jit
def _grad_key_value(k, v, q, g, e, d, dk, dv, scale2, TURN: tl.constexpr):
    """dv += pᵀ g and dk += dsᵀ q; the transposed scores are computed as such (but where keys are columns)."""
    if TURN:
        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale2 - e[:, None])
        dv = tl.dot(tl.trans(g), p.to(k.dtype), dv)
        ds = p * (tl.dot(g, tl.trans(v)) - d[:, None])
        return tl.dot(tl.trans(q), ds.to(k.dtype), dk), dv
    else:
        p = tl.exp2(tl.dot(k, tl.trans(q)) * scale2 - e[None, :])
        dv = tl.dot(p.to(k.dtype), g, dv)
        ds = p * (tl.dot(v, tl.trans(g)) - d[None, :])
        return tl.dot(ds.to(k.dtype), q, dk), dv


@triton.jit
def _grad_key_value_rows(
    base, grad, lse, delta, to, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, TAKE: tl.constexpr,
    TURN: tl.constexpr,
):  # fmt: skip
    """dk and dv of SIZE keys, and of those taken along."""
    end: tl.constexpr = N // T
    k = _rows(base + H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    v = _rows(base + 2 * H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    q_end, g_end, e_end, d_end = 0.0, 0.0, 0.0, 0.0
    if LAST == 1:
        q_end = _line(base, end * T, 3 * H * D, D)
        g_end = _line(grad, end * T, H * D, D)
        e_end = tl.load(lse + end * T)
        d_end = tl.load(delta + end * T)
    elif N % T > 0:
        q_end = _rows(base, end * T, 3 * H * D, N, LAST, D, False)
        g_end = _rows(grad, end * T, H * D, N, LAST, D, False)
    dk, dv = _grad_key_value_start(k, v, q_end, g_end, e_end, d_end, scale2, SIZE, D, LAST == 1, False)
    if TAKE > 0:
        k_r = _rows(base + H * D, at + SIZE, 3 * H * D, N, TAKE, D, False)
        v_r = _rows(base + 2 * H * D, at + SIZE, 3 * H * D, N, TAKE, D, False)
        dk_r, dv_r = _grad_key_value_start(
            k_r, v_r, q_end, g_end, e_end, d_end, scale2, TAKE, D, LAST == 1, TURN
        )
    for c in range(end):
        q = _rows(base, c * T, 3 * H * D, N, T, D, True)
        g = _rows(grad, c * T, H * D, N, T, D, True)
        e = tl.load(lse + c * T + tl.arange(0, T))
        d = tl.load(delta + c * T + tl.arange(0, T))
        dk, dv = _grad_key_value(k, v, q, g, e, d, dk, dv, scale2, False)
        if TAKE > 0:
            dk_r, dv_r = _grad_key_value(k_r, v_r, q, g, e, d, dk_r, dv_r, scale2, TURN)
    if N % T > 0 and LAST > 1:
        col = end * T + tl.arange(0, LAST)
        e = tl.load(lse + col, mask=col < N, other=float("inf"))  # p = 0 where there is no query
        d = tl.load(delta + col, mask=col < N, other=0.0)
        dk, dv = _grad_key_value(k, v, q_end, g_end, e, d, dk, dv, scale2, False)
        if TAKE > 0:
            dk_r, dv_r = _grad_key_value(k_r, v_r, q_end, g_end, e, d, dk_r, dv_r, scale2, TURN)
    _put(to + H * D, dk * scale, at, 3 * H * D, N, SIZE, D, WHOLE)
    _put(to + 2 * H * D, dv, at, 3 * H * D, N, SIZE, D, WHOLE)
    if TAKE > 0:
        _put_rest(to + H * D, dk_r * scale, at + SIZE, 3 * H * D, N, TAKE, D, TURN)
        _put_rest(to + 2 * H * D, dv_r, at + SIZE, 3 * H * D, N, TAKE, D, TURN)


@triton.jit
def _put_sums(dbias, sum_q, sum_g, H: tl.constexpr, D: tl.constexpr):
    """The sum of dv over keys is that of g, for a row of p sums to 1; the sum of dk is 0, for a row of ds does."""
    dbias += tl.arange(0, D)
    tl.store(dbias, sum_q)
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)
