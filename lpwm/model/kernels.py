"""Triton kernels of attention over one frame, for the encoder's training step on CUDA.

A frame has few tokens (257 at 224² with patches of 14). Kernels read the packed projection (b, n, 3·h·d) and write
(b, n, h·d), and backwards the packed gradient, so that nothing is permuted, copied or added up between kernels.
257 = 2·128 + 1: what a row is combined with is cut in large tiles and one small last one, rather than padded to a
multiple of 64 or 128.

A program owns a tile of rows of one head of one frame and reads what they are combined with in a pipeline. Backwards
there are two kernels, for dq and for dk and dv: scores are computed twice (seven products instead of five), but no sum
leaves its program.

Legend: b frames, n tokens, h heads, d width of a head, δ = ⟨g, o⟩. Everything is bfloat16 with float32 sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpwm.model.kernels_tiles import _attend_rows, _grad_key_value_rows, _grad_query_rows, _put_sums


@dataclass(frozen=True)
class Tiles:
    """How attention is cut: rows at a time, and for them keys at a time, or queries where keys are the rows."""

    rows: int = 64
    keys: int = 128
    queries: int = 64
    warps: int = 4
    stages: int = 2
    registers: int = 0  # most of a thread; 0: as many as it needs
    pad: bool = False  # rows left over get a tile of `rows`, not of as few as a product takes
    take: bool = False  # rows left over are taken along by the last program of whole rows
    turn: bool = False  # and as columns: the products with them are transposed
    lone: bool = False  # one key (or query) left over is where sums start, without a product
    even: bool = False  # of dk and dv: e and δ are read from rows of a multiple of 4, two numbers at once


# What was fastest on an H200 (257 tokens, 3 heads of 64, 256 and 512 frames): 67 and 185 µs, where one program for
# each head, which keeps keys and values in shared memory and spills registers, took 72 and 209.
FORWARD = Tiles(keys=64, stages=3)
DQ, DKV = Tiles(keys=64, registers=168, stages=3), Tiles(queries=32, registers=128, stages=3)


@triton.jit
def _forward_queries(
    qkv, out, lse, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    REST: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr, TAKE: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """o = softmax(q kᵀ/√d) v and log2 of the denominators, of ROWS queries of one head.

    Its last program has REST queries instead, or where TAKE besides.
    """
    tiles: tl.constexpr = N // ROWS if TAKE else (N + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    out += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * N
    at = tile * ROWS
    if TAKE:
        if tile == tiles - 1:
            _attend_rows(base, out, lse, at, scale2, N, H, D, ROWS, True, T, LAST, REST, TURN)
        else:
            _attend_rows(base, out, lse, at, scale2, N, H, D, ROWS, True, T, LAST, 0, TURN)
    elif at + ROWS <= N:
        _attend_rows(base, out, lse, at, scale2, N, H, D, ROWS, True, T, LAST, 0, TURN)
    else:
        _attend_rows(base, out, lse, at, scale2, N, H, D, REST, False, T, LAST, 0, TURN)


@triton.jit
def _backward_queries(
    qkv, out, grad, lse, delta, again, dqkv, dbias, scale, scale2, N: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, REST: tl.constexpr, T: tl.constexpr,
    LAST: tl.constexpr, TAKE: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """dq, δ and the sums for the bias, of ROWS queries of one head (its last program: REST, or where TAKE also REST).

    A row of δ has EVEN numbers; where these are more than N, e is written `again` in such rows.
    """
    tiles: tl.constexpr = N // ROWS if TAKE else (N + ROWS - 1) // ROWS
    pid = tl.program_id(0)
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
    if TAKE:
        if tile == tiles - 1:
            sum_q, sum_g = _grad_query_rows(
                base, out, grad, lse, delta, again, to, at, scale, scale2, N, H, D, EVEN, ROWS, True, T, LAST, REST,
                TURN,
            )  # fmt: skip
            _put_sums(dbias, sum_q, sum_g, H, D)
        else:
            sum_q, sum_g = _grad_query_rows(
                base, out, grad, lse, delta, again, to, at, scale, scale2, N, H, D, EVEN, ROWS, True, T, LAST, 0, TURN,
            )  # fmt: skip
            _put_sums(dbias, sum_q, sum_g, H, D)
    elif at + ROWS <= N:
        sum_q, sum_g = _grad_query_rows(
            base, out, grad, lse, delta, again, to, at, scale, scale2, N, H, D, EVEN, ROWS, True, T, LAST, 0, TURN,
        )  # fmt: skip
        _put_sums(dbias, sum_q, sum_g, H, D)
    else:
        sum_q, sum_g = _grad_query_rows(
            base, out, grad, lse, delta, again, to, at, scale, scale2, N, H, D, EVEN, REST, False, T, LAST, 0, TURN,
        )  # fmt: skip
        _put_sums(dbias, sum_q, sum_g, H, D)


@triton.jit
def _backward_keys(
    qkv, grad, lse, delta, dqkv, scale, scale2, N: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, REST: tl.constexpr, T: tl.constexpr, LAST: tl.constexpr,
    TAKE: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """dk and dv of ROWS keys of one head (the last program of a head: REST, or where TAKE also REST).

    The last frames come first: what the kernel before read of them is still in the cache.
    """
    tiles: tl.constexpr = N // ROWS if TAKE else (N + ROWS - 1) // ROWS
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, pair = pid % tiles, pid // tiles
    frame, head = (pair // H).to(tl.int64), pair % H
    base = qkv + frame * (N * 3 * H * D) + head * D
    to = dqkv + frame * (N * 3 * H * D) + head * D
    grad += frame * (N * H * D) + head * D
    lse += pair.to(tl.int64) * EVEN
    delta += pair.to(tl.int64) * EVEN
    at = tile * ROWS
    if TAKE:
        if tile == tiles - 1:
            _grad_key_value_rows(
                base, grad, lse, delta, to, at, scale, scale2, N, H, D, ROWS, True, T, LAST, REST, TURN
            )
        else:
            _grad_key_value_rows(
                base, grad, lse, delta, to, at, scale, scale2, N, H, D, ROWS, True, T, LAST, 0, TURN
            )
    elif at + ROWS <= N:
        _grad_key_value_rows(
            base, grad, lse, delta, to, at, scale, scale2, N, H, D, ROWS, True, T, LAST, 0, TURN
        )
    else:
        _grad_key_value_rows(
            base, grad, lse, delta, to, at, scale, scale2, N, H, D, REST, False, T, LAST, 0, TURN
        )


def _last(n: int, tile: int, least: int = 16) -> int:
    """The size of the last tile: a power of two that holds what is left, and a product needs 16 rows or 8 columns."""
    return max(least, triton.next_power_of_2(n % tile))


def _takes(n: int, tiles: Tiles) -> bool:
    return tiles.take and n > tiles.rows and n % tiles.rows > 0


def _programs(n: int, tiles: Tiles) -> int:
    """Of one head."""
    return n // tiles.rows if _takes(n, tiles) else triton.cdiv(n, tiles.rows)


def _sizes(n: int, tiles: Tiles, across: int) -> dict[str, int]:
    take = _takes(n, tiles)
    turn = take and tiles.turn
    rest = tiles.rows if tiles.pad and not take else _last(n, tiles.rows, 8 if turn and across < 64 else 16)
    last = 1 if tiles.lone and n % across == 1 else _last(n, across)
    cut = {"ROWS": tiles.rows, "REST": rest, "T": across, "LAST": last, "TAKE": take, "TURN": turn}
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
        qkv, out, grad, lse, delta, again, dqkv, dbias, d**-0.5, d**-0.5 * math.log2(math.e), N=n, H=heads, D=d,
        EVEN=even, **_sizes(n, DQ, DQ.keys),
    )  # fmt: skip
    return again, delta


def grad_keys(grad: Tensor, qkv: Tensor, lse: Tensor, delta: Tensor, heads: int, dqkv: Tensor) -> None:
    """Writes dk and dv, from what `grad_queries` returned."""
    b, n, packed = qkv.shape
    d = packed // (3 * heads)
    _backward_keys[(b * heads * _programs(n, DKV),)](
        qkv, grad, lse, delta, dqkv, d**-0.5, d**-0.5 * math.log2(math.e), N=n, H=heads, D=d,
        EVEN=delta.shape[-1], **_sizes(n, DKV, DKV.queries),
    )  # fmt: skip


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
