"""PushT's pixels on an accelerator: whole frames at once, as pure pointwise functions that a compiler fuses.

A window is (N, W, W) int32, a pixel's three bytes in one number; every step up to it has this shape, so that spans,
palette numbers and colours are one kernel. The picture is another: each of its pixels asks whether it lies in the
pusher's window, else in the block's, else it shows the empty table.

Whole numbers throughout (spans and columns are whole float32), so that fused multiply-adds change nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

WALL, LIGHT, DARK, PUSHER, PUSHER_LIGHT, CONTACT = range(2, 8)  # palette numbers of `render_pusht`


def join(numbers: list[Tensor]) -> Tensor:
    """Palette numbers of the four taps, int32 (…) each -> one of twelve bits."""
    return numbers[0] + (numbers[1] << 3) + (numbers[2] << 6) + (numbers[3] << 9)


def pack(value: Tensor) -> Tensor:
    """Colours (…, 3) of whole numbers below 256 -> int32 (…), red in the lowest byte."""
    red, green, blue = value.to(torch.int32).unbind(-1)
    return red + (green << 8) + (blue << 16)


def taps(codes: Tensor, spans: tuple[Tensor, Tensor], columns: Tensor) -> list[Tensor]:
    """The palette number at each of the four canvas pixels that a pixel reads: four of (N, W, W) int32.

    codes (N, W, W): what never moves, joined; spans (N, K, 2W): outline and hole of either bar, and with K = 8 the
    pusher's two discs and a mark for either bar; columns (N, W, 2 taps). Drawn in the original's order.
    """
    count = spans[0].shape[1]
    first, last = (s.unflatten(2, (2, columns.shape[1])).unsqueeze(-1) for s in spans)  # (N, K, 2, W, 1)
    out = []
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x = columns[:, None, :, column]
        inside = [(first[:, k, row] <= x) & (x <= last[:, k, row]) for k in range(count)]
        under = (codes >> (3 * (2 * row + column))) & 7
        number = under
        for k in (0, 2):
            number = torch.where(inside[k], torch.where(inside[k + 1], LIGHT, DARK), number)
        if count > 4:
            number = torch.where(inside[4], torch.where(inside[5], PUSHER_LIGHT, PUSHER), number)
        number = torch.where(under == WALL, WALL, number)
        for mark in inside[6:]:
            number = torch.where(mark, CONTACT, number)
        out.append(number.to(torch.int32))
    return out


def compose(empty: Tensor, windows: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The empty picture (3, S, S) uint8 under windows (packed (N, W, W), corners (N, 2) as x, y), the last on top.

    Every pixel reads every window at the nearest place in it, and keeps what it read if that place is its own.
    """
    size, device = empty.shape[-1], empty.device
    at = torch.arange(size, device=device)
    shift = (8 * torch.arange(3, dtype=torch.int32, device=device))[:, None, None]
    out = empty[None]
    for value, corner in windows:
        n, side, _ = value.shape
        off = at - corner[:, :, None]  # (N, 2, S)
        own = (off >= 0) & (off < side)
        x, y = off.clamp(0, side - 1).unbind(1)
        frame = torch.arange(n, device=device)[:, None, None]
        read = value[frame, y[:, :, None], x[:, None]][:, None] >> shift  # (N, 3, S, S)
        here = own[:, 1, None, :, None] & own[:, 0, None, None, :]
        out = torch.where(here, read.to(torch.uint8), out)
    return out
