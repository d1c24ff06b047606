"""A Triton kernel that ranks short rows on CUDA.

torch sorts rows by radix, in passes over memory made for long ones. A row of a batch is short enough to compare every
number with every other in registers: the rank of a number is how many come before it, and nothing is moved but once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 256  # numbers in a row: work grows with their square


@dataclass(frozen=True)
class Cut:
    """What a program does: this many numbers in whole rows, each compared with `others` at a time."""

    numbers: int = 256
    others: int = 16
    warps: int = 4


CUT = Cut()


@triton.jit
def _by_rank(
    x, target, out, count, N: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    MATCH: tl.constexpr,
):  # fmt: skip
    """Of each row: out[i] = target[rank of x[i]] (MATCH), or out[rank of x[i]] = x[i]. Of equals the first is less."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = row.to(tl.int64)[:, None] * N
    i = tl.arange(0, SIZE)[None, :]
    keep = (row[:, None] < count) & (i < N)
    mine = tl.load(x + start + i, mask=keep, other=0.0)
    rank = tl.zeros([ROWS, SIZE], tl.int32)
    for first in range(0, N, STEP):
        j = first + tl.arange(0, STEP)[None, :]
        other = tl.load(x + start + j, mask=(row[:, None] < count) & (j < N), other=float("inf"))
        before = (other[:, None, :] == mine[:, :, None]) & (j[:, None, :] < i[:, :, None])
        rank += tl.sum(((other[:, None, :] < mine[:, :, None]) | before).to(tl.int32), 2)
    if MATCH:
        tl.store(out + start + i, tl.load(target + start + rank, mask=keep), mask=keep)
    else:
        tl.store(out + start + rank, mine, mask=keep)


def _run(x: Tensor, target: Tensor, match: bool, cut: Cut = CUT) -> Tensor:
    out, n = torch.empty_like(x), x.shape[-1]
    if not x.numel():
        return out
    count, size = x.numel() // n, max(16, triton.next_power_of_2(n))
    rows = max(1, cut.numbers // size)
    _by_rank[(triton.cdiv(count, rows),)](
        x, target, out, count, N=n, SIZE=size, ROWS=rows, STEP=min(size, cut.others), MATCH=match,
        num_warps=cut.warps,
    )  # fmt: skip
    return out


def match_rows(x: Tensor, target: Tensor) -> Tensor:
    """`target`, sorted along its last dimension, in the order of x; both contiguous."""
    return _run(x, target, True)


def sort_rows(x: Tensor) -> Tensor:
    return _run(x, x, False)
