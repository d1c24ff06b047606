"""Triton kernels of attention over one frame, for the encoder's training step on CUDA.

A frame has few tokens (257 at 224² with patches of 14). Kernels read the packed projection (b, n, 3·h·d) and write
(b, n, h·d), and backwards the packed gradient, so that nothing is permuted, copied or added up between kernels.
257 = 2·128 + 1: what a row is combined with is cut in large tiles and one small last one, rather than padded to a
multiple of 64 or 128.

Forwards, one program owns one head of one frame and keeps its keys and values in shared memory. Backwards there are
two forms of the same function: one kernel that does as the forward pass (`SPLIT` false), or two, for dq and for dk and
dv, with one program for each tile of rows, which reads what it needs in a pipeline (`SPLIT` true).

Legend: b frames, n tokens, h heads, d width of a head; e log2 of a softmax's denominator, δ = ⟨g, o⟩. Everything is
bfloat16 with float32 sums.
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
    """How attention is cut: rows at a time, and for them keys at a time, or queries where keys are the rows."""

    rows: int = 64
    keys: int = 128
    queries: int = 64
    warps: int = 4
    stages: int = 2
    registers: int = 0  # most of a thread; 0: as many as it needs
    pad: bool = False  # two kernels: rows left over get a tile of `rows`, not of as few as a product takes


FORWARD, BACKWARD = Tiles(), Tiles()
SPLIT_FORWARD = False  # forwards with a program for each tile of rows
SPLIT = False  # backwards in two kernels, with a program for each tile of rows, cut as follows
DQ, DKV = Tiles(keys=64), Tiles(queries=64)


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
def _chunks(base, stride, N: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, D: tl.constexpr):
    """A whole matrix (N, D), kept in shared memory as the right-hand sides of products."""
    parts = ()
    for c in tl.static_range(N // T):
        parts = parts + (_rows(base, c * T, stride, N, T, D, True),)  # type: ignore[assignment]  # noqa: RUF005
    if N % T > 0:
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
    WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """o and e of SIZE queries. Keys and values: ks, vs, or read here."""
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    total = tl.zeros([SIZE], tl.float32)
    o = tl.zeros([SIZE, D], tl.float32)
    top = tl.full([SIZE], float("-inf"), tl.float32)
    end: tl.constexpr = N // T
    if STREAM:
        if N % T > 0:  # read first, used last: one wait for memory less
            k_end = _rows(base + H * D, end * T, 3 * H * D, N, LAST, D, False)
            v_end = _rows(base + 2 * H * D, end * T, 3 * H * D, N, LAST, D, False)
        for c in range(end):
            k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
            v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
            top, total, o = _attend(q, k, v, c * T, top, total, o, scale2, N, T, True)
        if N % T > 0:
            top, total, o = _attend(q, k_end, v_end, end * T, top, total, o, scale2, N, LAST, False)
    else:
        for c in tl.static_range(end):
            top, total, o = _attend(q, ks[c], vs[c], c * T, top, total, o, scale2, N, T, True)
        if N % T > 0:
            top, total, o = _attend(q, ks[end], vs[end], end * T, top, total, o, scale2, N, LAST, False)
    r = at + tl.arange(0, SIZE)
    _put(out, o / total[:, None], at, H * D, N, SIZE, D, WHOLE)
    tl.store(lse + r, top + tl.log2(total), mask=r < N)


@triton.jit
def _attention_forward(
    qkv, out, lse, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """o = softmax(q kᵀ/√d) v, ROWS queries at a time, and log2 of the softmax's denominator."""
    pid = tl.program_id(0)
    frame, head = (pid // H).to(tl.int64), pid % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    lse += pid.to(tl.int64) * N
    ks = _chunks(base + H * D, 3 * H * D, N, T, LAST, D)
    vs = _chunks(base + 2 * H * D, 3 * H * D, N, T, LAST, D)
    for i in range(N // ROWS):
        _attend_rows(base, out, lse, ks, vs, i * ROWS, scale2, N, H, D, ROWS, True, T, LAST, False)
    if N % ROWS > 0:
        end: tl.constexpr = (N // ROWS) * ROWS
        _attend_rows(base, out, lse, ks, vs, end, scale2, N, H, D, ROWS, False, T, LAST, False)


@triton.jit
def _forward_queries(
    qkv, out, lse, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    REST: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The same for ROWS queries of one head (the last program of a head: REST)."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    at = tile * ROWS
    if at + ROWS <= N:
        _attend_rows(base, out, lse, None, None, at, scale2, N, H, D, ROWS, True, T, LAST, True)
    else:
        _attend_rows(base, out, lse, None, None, at, scale2, N, H, D, REST, False, T, LAST, True)


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
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """dq and δ of SIZE queries; returns the sums of dq and of g over them. Keys and values: ks, vs, or read here."""
    q = _rows(base, at, 3 * H * D, N, SIZE, D, WHOLE)
    g = _rows(grad, at, H * D, N, SIZE, D, WHOLE)
    o = _rows(out, at, H * D, N, SIZE, D, WHOLE)
    r = at + tl.arange(0, SIZE)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + r, d, mask=r < N)
    sum_g = tl.sum(g.to(tl.float32), 0)
    e = tl.load(lse + r, mask=r < N, other=0.0)
    dq = tl.zeros([SIZE, D], tl.float32)
    if STREAM:
        if N % T > 0:  # read first, used last: one wait for memory less
            k_end = _rows(base + H * D, (N // T) * T, 3 * H * D, N, LAST, D, False)
            v_end = _rows(base + 2 * H * D, (N // T) * T, 3 * H * D, N, LAST, D, False)
        for c in range(N // T):
            k = _rows(base + H * D, c * T, 3 * H * D, N, T, D, True)
            v = _rows(base + 2 * H * D, c * T, 3 * H * D, N, T, D, True)
            dq = _grad_query(q, g, k, v, e, d, dq, scale2, True)
        if N % T > 0:
            dq = _grad_query(q, g, k_end, v_end, e, d, dq, scale2, False)
    else:
        for c in tl.static_range(N // T):
            dq = _grad_query(q, g, ks[c], vs[c], e, d, dq, scale2, True)
        if N % T > 0:
            dq = _grad_query(q, g, ks[N // T], vs[N // T], e, d, dq, scale2, False)
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
    base, grad, lse, delta, to, qs, gs, at, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """dk and dv of SIZE keys. Queries and gradients: qs, gs, or read here."""
    k = _rows(base + H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    v = _rows(base + 2 * H * D, at, 3 * H * D, N, SIZE, D, WHOLE)
    dk = tl.zeros([SIZE, D], tl.float32)
    dv = tl.zeros([SIZE, D], tl.float32)
    end: tl.constexpr = N // T
    if STREAM:
        if N % T > 0:
            q_end = _rows(base, end * T, 3 * H * D, N, LAST, D, False)
            g_end = _rows(grad, end * T, H * D, N, LAST, D, False)
        for c in range(end):
            q = _rows(base, c * T, 3 * H * D, N, T, D, True)
            g = _rows(grad, c * T, H * D, N, T, D, True)
            dk, dv = _grad_key_value(k, v, q, g, lse, delta, c * T, dk, dv, scale2, N, T, True)
        if N % T > 0:
            dk, dv = _grad_key_value(k, v, q_end, g_end, lse, delta, end * T, dk, dv, scale2, N, LAST, False)
    else:
        for c in tl.static_range(end):
            dk, dv = _grad_key_value(k, v, qs[c], gs[c], lse, delta, c * T, dk, dv, scale2, N, T, True)
        if N % T > 0:
            dk, dv = _grad_key_value(
                k, v, qs[end], gs[end], lse, delta, end * T, dk, dv, scale2, N, LAST, False
            )
    _put(to + H * D, dk * scale, at, 3 * H * D, N, SIZE, D, WHOLE)
    _put(to + 2 * H * D, dv, at, 3 * H * D, N, SIZE, D, WHOLE)


@triton.jit
def _put_sums(dbias, sum_q, sum_g, H: tl.constexpr, D: tl.constexpr):
    """The sum of dv over keys is that of g, for a row of p sums to 1; the sum of dk is 0, for a row of ds does."""
    dbias += tl.arange(0, D)
    tl.store(dbias, sum_q)
    tl.store(dbias + H * D, tl.zeros([D], tl.float32))
    tl.store(dbias + 2 * H * D, sum_g)


@triton.jit
def _attention_backward(
    qkv, out, grad, lse, delta, dqkv, dbias, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, TQ: tl.constexpr, LASTQ: tl.constexpr,
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
    end: tl.constexpr = (N // ROWS) * ROWS
    ks = _chunks(base + H * D, 3 * H * D, N, T, LAST, D)
    vs = _chunks(base + 2 * H * D, 3 * H * D, N, T, LAST, D)
    sum_q = tl.zeros([D], tl.float32)
    sum_g = tl.zeros([D], tl.float32)
    for at in range(0, end, ROWS):
        dq, g = _grad_query_rows(
            base, out, grad, lse, delta, to, ks, vs, at, scale, scale2, N, H, D, ROWS, True, T, LAST, False
        )
        sum_q += dq
        sum_g += g
    if end < N:
        dq, g = _grad_query_rows(
            base, out, grad, lse, delta, to, ks, vs, end, scale, scale2, N, H, D, ROWS, False, T, LAST, False
        )
        sum_q += dq
        sum_g += g
    _put_sums(dbias + frame * (3 * H * D) + head * D, sum_q, sum_g, H, D)
    tl.debug_barrier()  # δ of all rows is written before any thread reads it
    qs = _chunks(base, 3 * H * D, N, TQ, LASTQ, D)
    gs = _chunks(grad, H * D, N, TQ, LASTQ, D)
    for at in range(0, end, ROWS):
        _grad_key_value_rows(
            base, grad, lse, delta, to, qs, gs, at, scale, scale2, N, H, D, ROWS, True, TQ, LASTQ, False
        )
    if end < N:
        _grad_key_value_rows(
            base, grad, lse, delta, to, qs, gs, end, scale, scale2, N, H, D, ROWS, False, TQ, LASTQ, False
        )


@triton.jit
def _backward_queries(
    qkv, out, grad, lse, delta, dqkv, dbias, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, REST: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """dq, δ and the sums for the bias, of ROWS queries of one head (the last program of a head: REST)."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    delta += pair.to(tl.int64) * N
    dbias += (frame * tiles + tile) * (3 * H * D) + head * D
    at = tile * ROWS
    if at + ROWS <= N:
        sum_q, sum_g = _grad_query_rows(
            base, out, grad, lse, delta, to, None, None, at, scale, scale2, N, H, D, ROWS, True, T, LAST, True
        )
        _put_sums(dbias, sum_q, sum_g, H, D)
    else:
        sum_q, sum_g = _grad_query_rows(
            base,
            out,
            grad,
            lse,
            delta,
            to,
            None,
            None,
            at,
            scale,
            scale2,
            N,
            H,
            D,
            REST,
            False,
            T,
            LAST,
            True,
        )
        _put_sums(dbias, sum_q, sum_g, H, D)


@triton.jit
def _backward_keys(
    qkv, grad, lse, delta, dqkv, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, REST: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """dk and dv of ROWS keys of one head (the last program of a head: REST).

    The last frames come first: what the kernel before read of them is still in the cache.
    """
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    delta += pair.to(tl.int64) * N
    at = tile * ROWS
    if at + ROWS <= N:
        _grad_key_value_rows(
            base, grad, lse, delta, to, None, None, at, scale, scale2, N, H, D, ROWS, True, T, LAST, True
        )
    else:
        _grad_key_value_rows(
            base, grad, lse, delta, to, None, None, at, scale, scale2, N, H, D, REST, False, T, LAST, True
        )


def _last(n: int, tile: int) -> int:
    """The size of the last tile: a power of two that holds what is left, and a product needs 16 rows."""
    return max(16, triton.next_power_of_2(n % tile))


def _rest(n: int, tiles: Tiles) -> int:
    return tiles.rows if tiles.pad else _last(n, tiles.rows)


def _sizes(n: int, tiles: Tiles, across: int) -> dict[str, int]:
    most = {"maxnreg": tiles.registers} if tiles.registers else {}
    cut = {"ROWS": tiles.rows, "T": across, "LAST": _last(n, across)}
    return {**cut, "num_warps": tiles.warps, "num_stages": tiles.stages, **most}


def attention_forward(
    qkv: Tensor, heads: int, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """qkv (b, n, 3·h·d) -> o (b, n, h·d), log2 Σ exp (b, h, n) float32."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    out = qkv.new_empty(b, n, heads * d) if out is None else out
    lse = torch.empty(b, heads, n, device=qkv.device, dtype=torch.float32) if lse is None else lse
    scale, sizes = d**-0.5 * math.log2(math.e), _sizes(n, FORWARD, FORWARD.keys)
    if SPLIT_FORWARD:
        _forward_queries[(b * heads * triton.cdiv(n, FORWARD.rows),)](
            qkv, out, lse, scale, N=n, H=heads, D=d, REST=_rest(n, FORWARD), **sizes
        )
    else:
        _attention_forward[(b * heads,)](qkv, out, lse, scale, N=n, H=heads, D=d, **sizes)
    return out, lse


def pieces(b: int, n: int) -> int:
    """How many partial sums over tokens the backward pass leaves."""
    return b * triton.cdiv(n, DQ.rows) if SPLIT else b


def attention_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    heads: int,
    dqkv: Tensor | None = None,
    dbias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradient of qkv, and its sums over tokens in pieces (pieces(b, n), 3·h·d) float32."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    dqkv = torch.empty_like(qkv) if dqkv is None else dqkv
    delta = torch.empty_like(lse)
    if dbias is None:
        dbias = torch.empty(pieces(b, n), packed, device=qkv.device, dtype=torch.float32)
    scales = (d**-0.5, d**-0.5 * math.log2(math.e))
    if SPLIT:
        _backward_queries[(b * heads * triton.cdiv(n, DQ.rows),)](
            qkv, out, grad, lse, delta, dqkv, dbias, *scales, N=n, H=heads, D=d, REST=_rest(n, DQ),
            **_sizes(n, DQ, DQ.keys),
        )  # fmt: skip
        _backward_keys[(b * heads * triton.cdiv(n, DKV.rows),)](
            qkv, grad, lse, delta, dqkv, *scales, N=n, H=heads, D=d, REST=_rest(n, DKV),
            **_sizes(n, DKV, DKV.queries),
        )  # fmt: skip
    else:
        _attention_backward[(b * heads,)](
            qkv, out, grad, lse, delta, dqkv, dbias, *scales, N=n, H=heads, D=d,
            TQ=BACKWARD.queries, LASTQ=_last(n, BACKWARD.queries), **_sizes(n, BACKWARD, BACKWARD.keys),
        )  # fmt: skip
    return dqkv, dbias
