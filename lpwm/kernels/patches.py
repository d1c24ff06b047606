"""Frames cut into patches: uint8 to bfloat16, scaled and shifted, in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr as C  # an annotation that Triton reads: no string


@triton.jit
def _patches(pairs, scale, shift, out, SIDE: C, P: C, WIDE: C, ROW: C, BLOCK: C):
    """One row of patches of one frame: ROW = SIDE/P·WIDE pairs of pixels, after a patch of zeros at its beginning. A
    patch is 3·P²/2 pairs and zeros up to WIDE: matrix products want rows that begin at multiples of 16 bytes. Two
    pixels are one word and share their address arithmetic, which bounds this copy."""
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
    out += frame * (SIDE // P * 2 * ROW + 2 * WIDE)
    at = tl.program_id(2) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    if i == 0:
        tl.store(out + at, tl.zeros([2 * BLOCK], out.dtype.element_ty), mask=at < 2 * WIDE)
    to = out + 2 * WIDE + i * (2 * ROW)
    tl.store(to + at, tl.interleave(x, y).to(out.dtype.element_ty), mask=at < 2 * ROW)


def width(patch: int) -> int:
    """P: 3·p² rounded up to a multiple of 8."""
    return -(-3 * patch * patch // 8) * 8


def cut(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    """uint8 (b, 3, s, s) -> bfloat16 (b, 1 + (s/p)², P), scaled and shifted by channel; s and p are even. Row 0, where
    the class token will be, is 0, and so is what P has more than 3·p²."""
    b, _, _, side = frames.shape
    rows, wide = side // patch, width(patch)
    out = torch.empty(b, 1 + rows * rows, wide, device=frames.device, dtype=torch.bfloat16)
    row, block = rows * wide // 2, 1024
    sizes = {"SIDE": side, "P": patch, "WIDE": wide // 2, "ROW": row, "BLOCK": block}
    grid = (b, rows, triton.cdiv(row, block))
    _patches[grid](frames.view(torch.int16), scale, shift, out, **sizes, num_warps=4)
    return out
