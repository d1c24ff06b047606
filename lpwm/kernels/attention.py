"""Triton kernels of attention over one frame, for the encoder's training step on CUDA.

A frame has few tokens (257 at 224² with patches of 14). Kernels read the packed projection (b, n, 3·h·d) and write
(b, n, h·d), and backwards the packed gradient, so that nothing is permuted, copied or added up between kernels.
257 = 4·64 + 1: what a row is combined with is cut in large tiles, and what is left over is a small last one, or where
it is one key (or query) the start of the sums, rather than padded to a multiple of 64 or 128.

A program owns a tile of rows of one head of one frame and reads what they are combined with in a pipeline. Backwards
there are two kernels, for dq and for dk and dv: scores are computed twice (seven products instead of five), but no sum
leaves its program. The last frames come first, as in `kernels_norm`.

Legend: b frames, n tokens, h heads, d width of a head, δ = ⟨g, o⟩. Everything is bfloat16 with float32 sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpwm.kernels.tiles import _attend_rows, _grad_key_value_rows, _grad_query_rows


@dataclass(frozen=True)
class Tiles:
    """How attention is cut: rows at a time, and for them keys at a time, or queries where keys are the rows."""

    rows: int = 64
    keys: int = 128
    queries: int = 64
    warps: int = 4
    stages: int = 2
    registers: int = 0  # most of a thread; 0: as many as it needs
    lone: bool = False  # one key (or query) left over is where sums start, without a product
    even: bool = False  # of dk and dv: e and δ are read from rows of a multiple of 4, two numbers at once


# What was fastest on an H200 (257 tokens, 3 heads of 64), in µs, and in brackets with a masked last tile. 256 frames:
# forwards 61.5 (66.7), dq 86.9 (93.2), dk and dv 90.8 (98.8); 512 frames: dq 161 (179), dk and dv 173 (188).
FORWARD = Tiles(keys=64, stages=3, registers=128, lone=True)
DQ = Tiles(keys=64, registers=128, lone=True)
DKV = Tiles(queries=32, stages=3, registers=128, lone=True, even=True)


@triton.jit
def _forward_queries(
    qkv,
    out,
    lse,
    scale2,
    N: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    T: tl.constexpr,
    LAST: tl.constexpr,
):
    """o = softmax(q kᵀ/√d) v and log2 of the denominators, of ROWS queries of one head (its last program: REST)."""
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    at = tile * ROWS
    if at + ROWS <= N:
        _attend_rows(base, out, lse, at, scale2, N, H, D, ROWS, True, T, LAST)
    else:
        _attend_rows(base, out, lse, at, scale2, N, H, D, REST, False, T, LAST)


@triton.jit
def _backward_queries(
    qkv,
    out,
    grad,
    lse,
    delta,
    again,
    dqkv,
    dbias,
    scale,
    scale2,
    N: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    T: tl.constexpr,
    LAST: tl.constexpr,
):
    """dq, δ and the sums for the bias, of ROWS queries of one head (its last program: REST).

    A row of δ has EVEN numbers; where these are more than N, e is written `again` in such rows.
    """
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    delta += pair.to(tl.int64) * EVEN
    again += pair.to(tl.int64) * EVEN
    dbias += (frame * tiles + tile) * (3 * H * D) + head * D
    at = tile * ROWS
    if at + ROWS <= N:
        _grad_query_rows(
            base, out, grad, lse, delta, again, to, dbias, at, scale, scale2, N, H, D, EVEN, ROWS, True, T, LAST
        )
    else:
        _grad_query_rows(
            base, out, grad, lse, delta, again, to, dbias, at, scale, scale2, N, H, D, EVEN, REST, False, T, LAST
        )


@triton.jit
def _backward_keys(
    qkv,
    grad,
    lse,
    delta,
    dqkv,
    scale,
    scale2,
    N: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    REST: tl.constexpr,
    T: tl.constexpr,
    LAST: tl.constexpr,
):
    """dk and dv of ROWS keys of one head (its last program: REST).

    The first frames come first, after `_backward_queries` has ended with them: they are still in the cache.
    """
    tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * EVEN
    delta += pair.to(tl.int64) * EVEN
    at = tile * ROWS
    if at + ROWS <= N:
        _grad_key_value_rows(base, grad, lse, delta, to, at, scale, scale2, N, H, D, ROWS, True, T, LAST)
    else:
        _grad_key_value_rows(base, grad, lse, delta, to, at, scale, scale2, N, H, D, REST, False, T, LAST)


def _small(left: int) -> int:
    """The size of a tile for what is left over: a power of two that holds it, and a product needs 16."""
    return max(16, triton.next_power_of_2(left))


def _programs(n: int, tiles: Tiles) -> int:
    """Of one head."""
    return triton.cdiv(n, tiles.rows)


def _sizes(n: int, tiles: Tiles, across: int) -> dict[str, int]:
    left = n % across
    last = left if left == 0 or (left == 1 and tiles.lone) else _small(left)
    cut = {"ROWS": tiles.rows, "REST": _small(n % tiles.rows), "T": across, "LAST": last}
    most = {"maxnreg": tiles.registers} if tiles.registers else {}
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
    _forward_queries[(b * heads * _programs(n, FORWARD),)](qkv, out, lse, scale, N=n, H=heads, D=d, **sizes)
    return out, lse


def pieces(b: int, n: int) -> int:
    """How many partial sums over tokens the backward pass leaves."""
    return b * _programs(n, DQ)


def grad_queries(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, dqkv: Tensor, dbias: Tensor
) -> tuple[Tensor, Tensor]:
    """Writes dq and the sums; returns e and δ for `grad_keys`, (b, h, n or a little more) float32."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    even = 4 * triton.cdiv(n, 4) if DKV.even else n
    delta = torch.empty(b, heads, even, device=qkv.device, dtype=torch.float32)
    again = torch.empty_like(delta) if even != n else lse
    _backward_queries[(b * heads * _programs(n, DQ),)](
        qkv,
        out,
        grad,
        lse,
        delta,
        again,
        dqkv,
        dbias,
        d**-0.5,
        d**-0.5 * math.log2(math.e),
        N=n,
        H=heads,
        D=d,
        EVEN=even,
        **_sizes(n, DQ, DQ.keys),
    )
    return again, delta


def grad_keys(grad: Tensor, qkv: Tensor, lse: Tensor, delta: Tensor, heads: int, dqkv: Tensor) -> None:
    """Writes dk and dv, from what `grad_queries` returned."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    _backward_keys[(b * heads * _programs(n, DKV),)](
        qkv,
        grad,
        lse,
        delta,
        dqkv,
        d**-0.5,
        d**-0.5 * math.log2(math.e),
        N=n,
        H=heads,
        D=d,
        EVEN=delta.shape[-1],
        **_sizes(n, DKV, DKV.queries),
    )


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
    dqkv = torch.empty_like(qkv) if dqkv is None else dqkv
    if dbias is None:
        dbias = torch.empty(pieces(b, n), packed, device=qkv.device, dtype=torch.float32)
    e, delta = grad_queries(grad, qkv, out, lse, heads, dqkv, dbias)
    grad_keys(grad, qkv, e, delta, heads, dqkv)
    return dqkv, dbias
