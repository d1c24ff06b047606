"""Triton kernels for Adam and AdamW on CUDA: every number of every tensor of every group in one launch.

torch's fused kernel gives each program 65,536 numbers of a tensor, so that a small model occupies a few of a large
GPU's multiprocessors. Here a program has BLOCK of them. What differs from tensor to tensor stands in a table of one
row of eight-byte fields each, in the order of ROW: addresses, sizes, and float64s as their bits.

    prepare   one program per tensor: counts the step, computes its scalars in float64, marks which blocks are its
    update    one program per block: m, v and p, in float32

Two launches, not one: every block of a tensor must see the same count.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW = (
    "parameter",
    "gradient",
    "m",
    "v",
    "step",
    "lr",
    "size",
    "first",
    "decay",
    "beta1",
    "beta2",
    "log_beta1",
    "log_beta2",
    "eps",
)
BLOCK = 1024
DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"  # where addresses can be followed
_WIDTH = tl.constexpr(len(ROW))
_SCALARS = tl.constexpr(8)


def bits(x: float) -> int:
    """A float64 as the integer of the same bits, to stand in the table."""
    return int(struct.unpack("<q", struct.pack("<d", x))[0])


@triton.jit
def _double(table, row, column: tl.constexpr):
    return tl.load(table + row * _WIDTH + column).to(tl.float64, bitcast=True)


@triton.jit
def _prepare(table, scalars, owner, BLOCK: tl.constexpr, MARK: tl.constexpr):
    """Of one tensor: t ← t + 1, then lr·decay, β1, 1−β1, β2, 1−β2, lr/(1−β1ᵗ), 1/√(1−β2ᵗ), ε as float32."""
    i = tl.program_id(0)
    step_at = tl.load(table + i * _WIDTH + 4).to(tl.pointer_type(tl.float32))
    lr_at = tl.load(table + i * _WIDTH + 5).to(tl.pointer_type(tl.float32))
    step = tl.load(step_at) + 1.0
    tl.store(step_at, step)
    t, lr = step.to(tl.float64), tl.load(lr_at).to(tl.float64)
    beta1, beta2 = _double(table, i, 9), _double(table, i, 10)
    # In float32, 1 − 0.999ᵗ would keep four digits of the first steps.
    gone1 = 1.0 - tl.exp(t * _double(table, i, 11))
    gone2 = 1.0 - tl.exp(t * _double(table, i, 12))
    out = scalars + i * _SCALARS
    tl.store(out + 0, (lr * _double(table, i, 8)).to(tl.float32))
    tl.store(out + 1, beta1.to(tl.float32))
    tl.store(out + 2, (1.0 - beta1).to(tl.float32))
    tl.store(out + 3, beta2.to(tl.float32))
    tl.store(out + 4, (1.0 - beta2).to(tl.float32))
    tl.store(out + 5, (lr / gone1).to(tl.float32))
    tl.store(out + 6, (1.0 / tl.sqrt(gone2)).to(tl.float32))
    tl.store(out + 7, _double(table, i, 13).to(tl.float32))
    first = tl.load(table + i * _WIDTH + 7)
    blocks = (tl.load(table + i * _WIDTH + 6) + BLOCK - 1) // BLOCK
    j = tl.arange(0, MARK).to(tl.int64)
    while blocks > 0:  # the interpreter has no range() to a number that was loaded
        tl.store(owner + first + j, tl.zeros([MARK], tl.int32) + i, mask=j < blocks)
        first, blocks = first + MARK, blocks - MARK


@triton.jit
def _numbers(p_at, g_at, m_at, v_at, s, mask):
    """p ← p − lr·decay·p − lr/(1−β1ᵗ) · m/(√v/√(1−β2ᵗ) + ε) with the new m and v."""
    p, g = tl.load(p_at, mask=mask), tl.load(g_at, mask=mask)
    m, v = tl.load(m_at, mask=mask), tl.load(v_at, mask=mask)
    m = tl.load(s + 1) * m + tl.load(s + 2) * g
    v = tl.load(s + 3) * v + tl.load(s + 4) * g * g
    p -= tl.load(s + 0) * p  # not p·(1 − lr·decay): that factor has a digit or two of the decay in float32
    p -= tl.load(s + 5) * m / (tl.sqrt_rn(v) * tl.load(s + 6) + tl.load(s + 7))
    tl.store(m_at, m, mask=mask)
    tl.store(v_at, v, mask=mask)
    tl.store(p_at, p, mask=mask)


@triton.jit
def _place(table, row, column: tl.constexpr, ALIGNED: tl.constexpr):
    address = tl.load(table + row * _WIDTH + column)
    if ALIGNED:  # a promise the compiler needs to move four numbers at a time
        address = tl.multiple_of(address, 16)
    where = address.to(tl.pointer_type(tl.float32))
    if ALIGNED:
        where = tl.multiple_of(where, 16)
    return where


@triton.jit
def _update(table, scalars, owner, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    block = tl.program_id(0)
    i = tl.load(owner + block)
    start = (block - tl.load(table + i * _WIDTH + 7)) * BLOCK
    left = tl.load(table + i * _WIDTH + 6) - start
    n = tl.arange(0, BLOCK)
    p_at = _place(table, i, 0, ALIGNED) + start + n
    g_at = _place(table, i, 1, ALIGNED) + start + n
    m_at = _place(table, i, 2, ALIGNED) + start + n
    v_at = _place(table, i, 3, ALIGNED) + start + n
    s = scalars + i * _SCALARS
    if left >= BLOCK:  # a mask would part the four numbers again
        _numbers(p_at, g_at, m_at, v_at, s, None)
    else:
        _numbers(p_at, g_at, m_at, v_at, s, n < left)


def blocks_of(size: int) -> int:
    return -(-size // BLOCK)


def step(table: Tensor, blocks: int, aligned: bool) -> None:
    """One step of all tensors of the table, an int64 (tensors, len(ROW)) on the device, with so many blocks in all.

    `aligned`: all addresses of p, g, m and v are multiples of 16 bytes.
    """
    scalars = torch.empty(len(table), _SCALARS.value, device=table.device)
    owner = torch.empty(blocks, dtype=torch.int32, device=table.device)
    _prepare[(len(table),)](table, scalars, owner, BLOCK=BLOCK, MARK=256, num_warps=1)
    if blocks:
        _update[(blocks,)](table, scalars, owner, BLOCK=BLOCK, ALIGNED=aligned, num_warps=4)
