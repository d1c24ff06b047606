"""Windows of PushT's pixels as pure pointwise functions, which a compiler fuses, and whole frames made of them.

A window's pixels are (N, H, W) int32, the three bytes of a pixel in one number. On an accelerator each place of a frame
shows the pusher's window, else the block's, else the empty table. That kernel is bound by its address arithmetic, so a
place is a word of eight or four neighboring pixels of a channel where the frame's side is a multiple of that: windows
then begin and end at whole words. What they show too much is what the empty table shows.

Whole numbers throughout, so that fused multiply-adds change nothing; only where colors are mixed by arithmetic, for
want of a table, may one round a half differently.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

# Palette numbers. LIGHT is DARK − 1 and PUSHER_LIGHT is PUSHER + 1: a hole is drawn by counting.
GROUND, GOAL, WALL, LIGHT, DARK, PUSHER, PUSHER_LIGHT, CONTACT = range(8)
WORDS = {8: torch.int64, 4: torch.int32, 1: torch.uint8}


def lanes_of(size: int) -> int:
    """Pixels in a word, of which a row has a whole number."""
    return next(lanes for lanes in WORDS if size % lanes == 0)


class Window(NamedTuple):
    """A rectangle in each frame: its corner (N, 2) int32 as column, row; H rows, W columns; whole words."""

    corner: Tensor
    high: int
    wide: int
    lanes: int

    @classmethod
    def around(cls, corner: Tensor, side: int, size: int, lanes: int) -> "Window":
        """The least one of whole words that holds the square of `side` at corner (N, 2), in frames of `size`."""
        wide = min(size, -(-(side + lanes - 1) // lanes) * lanes)
        corner, column = corner.to(torch.int32), torch.arange(2, device=corner.device) == 0
        corner = torch.where(column, (corner & -lanes).clamp(max=size - wide), corner)
        return cls(_held(corner), side, wide, lanes)

    def columns(self) -> Tensor:
        """(N, 1, W)"""
        steps = torch.arange(self.wide, dtype=torch.int32, device=self.corner.device)
        return self.corner[:, :1, None] + steps

    def rows(self) -> Tensor:
        """(N, H, 1)"""
        steps = torch.arange(self.high, dtype=torch.int32, device=self.corner.device)
        return self.corner[:, 1:, None] + steps[:, None]

    def words(self, value: Tensor) -> Tensor:
        """Packed pixels (N, H, W) -> channels (N, 3, H, W/lanes), the leftmost pixel in the lowest byte."""
        value = _held(value)
        shift = (8 * torch.arange(3, dtype=torch.int32, device=value.device))[:, None, None]
        planes = ((value[:, None] >> shift) & 255).to(WORDS[self.lanes]).unflatten(3, (-1, self.lanes))
        word, *others = planes.unbind(4)
        for lane, plane in enumerate(others, 1):
            word = word | (plane << (8 * lane))
        return _held(word)


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


def pack(channels: list[Tensor]) -> Tensor:
    """Three of whole numbers below 256, (…) each -> int32 (…), red in the lowest byte."""
    red, green, blue = (c.to(torch.int32) for c in channels)
    return red + (green << 8) + (blue << 16)


def taps(codes: Tensor, spans: tuple[Tensor, Tensor], near: Tensor, after: Tensor) -> list[Tensor]:
    """The palette number at each of the four canvas pixels that a pixel reads: four of (N, H, W) int32. codes (N, H,
    W): what never moves, joined; spans (N, K, 2H): outline and hole of either bar, and with K = 8 the pusher's two
    discs and a mark for either bar; near, after (N, 1, W): the two columns read. Drawn in the original's order."""
    count = spans[0].shape[1]
    first, last = (s.unflatten(2, (2, codes.shape[1])).unsqueeze(-1) for s in spans)  # (N, K, 2, H, 1)
    out = []
    for tap, (row, x) in enumerate(((0, near), (0, after), (1, near), (1, after))):
        inside = [(first[:, k, row] <= x) & (x <= last[:, k, row]) for k in range(count)]
        under = (codes >> (3 * tap)) & 7
        number = under
        for k in (0, 2):
            number = torch.where(inside[k], DARK - inside[k + 1].to(torch.int32), number)
        if count > 4:
            number = torch.where(inside[4], PUSHER + inside[5].to(torch.int32), number)
        number = torch.where(under == WALL, WALL, number)
        for mark in inside[6:]:
            number = torch.where(mark, CONTACT, number)
        out.append(number)
    return out


def compose(empty: Tensor, drawn: list[tuple[Window, Tensor]]) -> Tensor:
    """The empty picture as words (3, S, S/lanes) under windows and theirs, the last on top: uint8 (N, 3, S, S). Every
    place reads every window at the nearest place in it, and keeps what it read if that place is its own."""
    _, rows, columns = empty.shape
    order = functools.partial(torch.arange, dtype=torch.int32, device=empty.device)
    out = empty[None]
    for window, words in drawn:
        n, _, high, wide = words.shape
        left, top = (window.corner[:, i, None, None, None] for i in (0, 1))
        down = order(rows)[:, None] - top  # (N, 1, S, 1)
        along = order(columns) - (left >> (window.lanes.bit_length() - 1))
        own = (down >= 0) & (down < high) & (along >= 0) & (along < wide)
        frame, channel = order(n)[:, None, None, None], order(3)[:, None, None]
        out = torch.where(own, words[frame, channel, down.clamp(0, high - 1), along.clamp(0, wide - 1)], out)
    return out.view(torch.uint8)
