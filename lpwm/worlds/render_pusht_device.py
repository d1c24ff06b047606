"""PushT's pixels on an accelerator: whole frames at once, as pure pointwise functions that a compiler fuses.

A window's pixels are (N, H, W) int32, the three bytes of a pixel in one number; every step up to it has this shape, so
that spans, palette numbers and colours are one kernel. The picture is another: each place in it asks whether it lies
in the pusher's window, else in the block's, else it shows the empty table. That kernel is bound by its address
arithmetic, so a place is four neighbouring pixels of a channel, one word, where the frame's side is a multiple of
four: windows then begin and end at whole words. What is drawn too much on the way is what the empty table shows.

Whole numbers throughout (spans and columns are whole float32), so that fused multiply-adds change nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WALL, LIGHT, DARK, PUSHER, PUSHER_LIGHT, CONTACT = range(2, 8)  # palette numbers of `render_pusht`


def _lanes(size: int) -> int:
    """Pixels in a word."""
    return 1 if size % 4 else 4


class Window(NamedTuple):
    """A rectangle in each frame: where it begins, left and top (N,) int32, whole words; H rows, W columns."""

    left: Tensor
    top: Tensor
    high: int
    wide: int
    lanes: int

    @classmethod
    def around(cls, corner: Tensor, side: int, size: int) -> Window:
        """The least one that holds the square of `side` at corner (N, 2), in frames of `size`."""
        lanes = _lanes(size)
        wide = min(size, -(-(side + lanes - 1) // lanes) * lanes)
        left, top = corner.to(torch.int32).unbind(1)
        return cls(_held((left & -lanes).clamp(max=size - wide)), _held(top), side, wide, lanes)

    def columns(self) -> Tensor:
        """(N, 1, W)"""
        steps = torch.arange(self.wide, dtype=torch.int32, device=self.left.device)
        return self.left[:, None, None] + steps

    def rows(self) -> Tensor:
        """(N, H, 1)"""
        steps = torch.arange(self.high, dtype=torch.int32, device=self.top.device)
        return self.top[:, None, None] + steps[:, None]

    def words(self, value: Tensor) -> Tensor:
        """Packed pixels (N, H, W) -> channels (N, 3, H, W/lanes): uint8, or int32 of four bytes."""
        shift = (8 * torch.arange(3, dtype=torch.int32, device=value.device))[:, None, None]
        planes = (value[:, None] >> shift) & 255
        if self.lanes == 1:
            return planes.to(torch.uint8)
        a, b, c, d = planes.unflatten(3, (-1, 4)).unbind(4)
        return _held(a | (b << 8) | (c << 16) | (d << 24))


def _held(x: Tensor) -> Tensor:
    """x, which a compiler then keeps in memory; else it may compute it again wherever it is read."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def pick(table: Tensor, at: Tensor) -> Tensor:
    """table (K,) at indices that lie in it; that they do is said by the clamp, and spares a compiled check."""
    return table[at.clamp(0, len(table) - 1)]


def join(numbers: list[Tensor]) -> Tensor:
    """Palette numbers of the four taps, int32 (…) each -> one of twelve bits."""
    return numbers[0] + (numbers[1] << 3) + (numbers[2] << 6) + (numbers[3] << 9)


def pack(value: Tensor) -> Tensor:
    """Colours (…, 3) of whole numbers below 256 -> int32 (…), red in the lowest byte."""
    red, green, blue = value.to(torch.int32).unbind(-1)
    return red + (green << 8) + (blue << 16)


def taps(codes: Tensor, spans: tuple[Tensor, Tensor], near: Tensor, after: Tensor) -> list[Tensor]:
    """The palette number at each of the four canvas pixels that a pixel reads: four of (N, H, W) int32.

    codes (N, H, W): what never moves, joined; spans (N, K, 2H): outline and hole of either bar, and with K = 8 the
    pusher's two discs and a mark for either bar; near, after (N, 1, W): the two columns read. Drawn in the original's
    order.
    """
    count = spans[0].shape[1]
    first, last = (s.unflatten(2, (2, codes.shape[1])).unsqueeze(-1) for s in spans)  # (N, K, 2, H, 1)
    out = []
    for tap, (row, x) in enumerate(((0, near), (0, after), (1, near), (1, after))):
        inside = [(first[:, k, row] <= x) & (x <= last[:, k, row]) for k in range(count)]
        under = (codes >> (3 * tap)) & 7
        number = under
        for k in (0, 2):
            number = torch.where(inside[k], torch.where(inside[k + 1], LIGHT, DARK).to(torch.int32), number)
        if count > 4:
            number = torch.where(
                inside[4], torch.where(inside[5], PUSHER_LIGHT, PUSHER).to(torch.int32), number
            )
        number = torch.where(under == WALL, WALL, number)
        for mark in inside[6:]:
            number = torch.where(mark, CONTACT, number)
        out.append(number)
    return out


def compose(empty: Tensor, drawn: list[tuple[Window, Tensor]]) -> Tensor:
    """The empty picture (3, S, S) uint8 under windows and their words, the last on top: uint8 (N, 3, S, S).

    Every place reads every window at the nearest place in it, and keeps what it read if that place is its own.
    """
    size, device = empty.shape[-1], empty.device
    lanes = _lanes(size)
    y = torch.arange(size, dtype=torch.int32, device=device)[:, None]
    x = torch.arange(size // lanes, dtype=torch.int32, device=device)
    channel = torch.arange(3, dtype=torch.int32, device=device)[:, None, None]
    out = (empty if lanes == 1 else empty.view(torch.int32))[None]
    for window, words in drawn:
        n, _, high, wide = words.shape
        frame = torch.arange(n, dtype=torch.int32, device=device)[:, None, None, None]
        down = y - window.top[:, None, None, None]  # (N, 1, S, 1)
        along = x - (window.left // lanes)[:, None, None, None]
        own = (down >= 0) & (down < high) & (along >= 0) & (along < wide)
        out = torch.where(own, words[frame, channel, down.clamp(0, high - 1), along.clamp(0, wide - 1)], out)
    return out if lanes == 1 else out.view(torch.uint8)
