"""PushT's picture, drawn in batches on any device: what the pygame environment draws, from the state alone.

The original draws on a 512² canvas without antialiasing, vertices rounded to whole pixels, in this order: the goal's
T, the two bars of the block (a light quadrilateral, its four sides as fat lines over it), the pusher (a dark disc, a
light one over it), the walls, a red mark at every contact; then it resizes bilinearly *without* a filter, so that a
pixel mixes 2×2 pixels of the canvas. Here only those are colored, and only in two windows, around the block and around
the pusher; the rest is a picture made beforehand. Everything drawn is convex, so it meets a row of the canvas in one
span (see `spans`), and a bar's row is [outer [hole] outer]: dark, with light between its inner ends.

Left out: marks where the block touches a wall. Marks of the pusher are whole pixels (the original blends their edges).

N frames, Q = 2 bars, E = 4 sides, R rows of the canvas that a window reads, W = side of a window.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import require
from lpwm.worlds.base import Renderer, on_host
from lpwm.worlds.pusht.render_device import GOAL, WALL, WORDS, Window, compose, join, lanes_of, pack, pick, taps
from lpwm.worlds.pusht.spans import DISCS, FAR, Span, disc_span, fat_span, fill_span, half_widths, line_span, only

CANVAS = 512
GOAL_POSE = (256.0, 256.0, math.pi / 4)
BARS = (((-60, 0), (60, 0), (60, 30), (-60, 30)), ((-15, 30), (15, 30), (15, 120), (-15, 120)))
MIDDLE, REACH = 60.0, 88.0  # a disc about (0, MIDDLE) of the block holds all of it, outline included
RADIUS, MARK = 15.0, 2.0  # of the pusher; half a contact mark sticks out of either body
PUSHER_REACH = RADIUS + MARK + 2.0
WALL_LOW, WALL_HIGH = 5.0, 506.0

# white; LightGreen; LightGray; LightSlateGray × 1.2, LightSlateGray; RoyalBlue, × 1.2; pymunk's red
PALETTE = (
    *((255, 255, 255), (144, 238, 144), (211, 211, 211), (143, 163, 184)),
    *((119, 136, 153), (65, 105, 225), (78, 126, 255), (231, 76, 60)),
)
PHASES = 8  # a table of all mixtures is kept where a picture has at most this many different weights per axis
ROWS = 64  # frames in flight on a CPU


@functools.cache
def _ground() -> Tensor:
    """What never moves, as palette numbers: (512, 512) uint8, the goal under the walls."""
    rows = torch.arange(CANVAS, dtype=torch.float32)
    out = torch.zeros(CANVAS, CANVAS, dtype=torch.uint8)

    def paint(span: Span, what: int) -> None:
        first, last = (s[:, None] for s in span)
        out[(rows >= first) & (rows <= last)] = what

    x, y, angle = GOAL_POSE
    for corners in torch.tensor(BARS, dtype=torch.float64):
        turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        at = (corners @ turn.double() + torch.tensor([x, y], dtype=torch.float64)).round().float()
        paint(fill_span(tuple(at[:, None].unbind(0)), rows), GOAL)
    a, b, c, d = ((x, y) for x in (WALL_LOW, WALL_HIGH) for y in (WALL_LOW, WALL_HIGH))
    for ends in ((b, a), (a, c), (c, d), (b, d)):
        p, q = (torch.tensor([end]) for end in ends)
        paint(fat_span(p, q, rows), WALL)
        paint(disc_span(p, rows, half_widths(2)), WALL)
        paint(disc_span(q, rows, half_widths(2)), WALL)
    return out


def _axis(size: int) -> tuple[NDArray, NDArray]:
    """How the resize reads one axis: pixel i mixes canvas pixels near and near + 1 (size, 2), `share` of the second."""
    at = (np.arange(size) + 0.5) * (CANVAS / size) - 0.5
    near = np.floor(at)
    share = np.where((near < 0) | (near >= CANVAS - 1), 0.0, at - near)
    near = near.clip(0, CANVAS - 1)
    return np.stack([near, np.minimum(near + 1, CANVAS - 1)], 1), share


def _mix(color: Tensor | Sequence[Tensor], share_y: Tensor, share_x: Tensor) -> Tensor:
    """Four taps (00, 01, 10, 11 as row, column) of (…) and shares that broadcast -> rounded values (…)."""
    top = color[0] + (color[1] - color[0]) * share_x
    low = color[2] + (color[3] - color[2]) * share_x
    return (top + (low - top) * share_y + 0.5).floor()


def _table(shares: NDArray) -> Tensor:
    """All mixtures of four palette numbers, per pair of P shares, packed in an int32: (P·P·4096,)."""
    palette = torch.tensor(PALETTE, dtype=torch.float64)
    codes = torch.arange(4096)
    color = torch.stack([palette[(codes >> (3 * tap)) & 7] for tap in range(4)])  # (4, 4096, 3)
    share = torch.tensor(shares)
    value = _mix(color[:, None, None], share[:, None, None, None], share[None, :, None, None])
    return pack(list(value.unbind(-1))).flatten()


class PushTFrames:
    """(N, 7) states -> uint8 (N, 3, size, size)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.ratio = size, CANVAS / size
        f32 = functools.partial(torch.tensor, dtype=torch.float32, device=device)
        read, share = _axis(size)
        shares, phase = np.unique(np.round(share, 9), return_inverse=True)
        self.taps, self.share = f32(read), f32(share)  # (size, 2), (size,)
        self.steps = torch.arange(size, device=device)
        self.palette, self.bars = f32(PALETTE), f32(BARS)
        self.discs = {radius: half_widths(radius, device) for radius in DISCS}
        self.table = _table(shares).to(device) if len(shares) <= PHASES else None
        near = self.taps.T.to(torch.int64)
        ground = _ground().to(device)
        # (4 taps, size, size): what stands at each canvas pixel that a pixel reads
        taken = torch.stack([ground[near[i]][:, near[j]] for i in (0, 1) for j in (0, 1)])
        empty = _mix(self.palette[taken.to(torch.int64)], self.share[:, None, None], self.share[:, None])
        self.empty = empty.permute(2, 0, 1).to(torch.uint8).contiguous()
        self.blank = self.empty.view(WORDS[lanes_of(size)])
        self.sides = [min(size, math.ceil((2 * r + 2) / self.ratio) + 2) for r in (REACH, PUSHER_REACH)]
        # (size²,) int32: the four taps of what never moves at three bits each, above them the phases
        phases = torch.tensor(phase, dtype=torch.int32, device=device)
        cell = phases[:, None] * len(shares) + phases
        self.codes = ((cell << 12) + join(list(taken.to(torch.int32)))).flatten()

    def __call__(self, state: Tensor) -> Tensor:
        state = state.to(torch.float32)
        if not on_host(state):
            drawn = [(window, window.words(value)) for window, value in self._draw(state, lanes_of(self.size))]
            return compose(self.blank, drawn)
        out = self.empty.repeat(len(state), 1, 1, 1)
        for frames, some in zip(out.split(ROWS), state.split(ROWS), strict=True):
            for window, value in self._draw(some, lanes=1):
                planes = value.contiguous().view(torch.uint8).unflatten(2, (-1, 4))[..., :3].permute(0, 3, 1, 2).numpy()
                for frame, plane, (left, top) in zip(frames.numpy(), planes, window.corner.tolist(), strict=True):
                    frame[:, top : top + window.high, left : left + window.wide] = plane
        return out

    def _draw(self, state: Tensor, lanes: int) -> Iterator[tuple[Window, Tensor]]:
        """The two windows and their packed pixels (N, H, W), the pusher's over the block's."""
        for side, (corner, spans) in zip(self.sides, self._spans(state), strict=True):
            window = Window.around(corner, side, self.size, lanes)
            x, y = window.columns(), window.rows()
            codes = pick(self.codes, y * self.size + x)
            numbers = taps(codes, spans, pick(self.taps[:, 0], x), pick(self.taps[:, 1], x))
            if self.table is not None:
                yield window, pick(self.table, (codes & -4096) + join(numbers))
            else:
                shares = pick(self.share, y), pick(self.share, x)
                colors = [[pick(channel, k) for k in numbers] for channel in self.palette.unbind(1)]
                yield window, pack([_mix(color, *shares) for color in colors])

    def _spans(self, state: Tensor) -> list[tuple[Tensor, Span]]:
        """The corners of the two windows (N, 2) and what is drawn in each row that they read: spans (N, 4 or 8, 2W)."""
        pusher, place, angle = state[:, :2], state[:, 2:4], state[:, 4]
        cos, sin = torch.cos(angle), torch.sin(angle)
        turn = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)  # (N, 2, 2)
        exact = torch.einsum("nij,qej->nqei", turn, self.bars) + place[:, None, None]
        center = place + MIDDLE * torch.stack((-sin, cos), -1)
        marks = self._marks(pusher, exact)
        corners, middle = exact.round(), pusher.round()
        looks = [
            self._look(at, side, reach)
            for at, side, reach in zip((center, pusher), self.sides, (REACH, PUSHER_REACH), strict=True)
        ]
        (corner_b, rows_b), (corner_p, rows_p) = looks
        bars = self._bars(corners, torch.cat((rows_b, rows_p), 1))
        block, under = zip(*(torch.split(bar, [rows_b.shape[1], rows_p.shape[1]], -1) for bar in bars), strict=True)
        over = self._pusher(middle, marks, rows_p)
        both = torch.cat((under[0], over[0]), 1), torch.cat((under[1], over[1]), 1)
        return [(corner_b, block), (corner_p, both)]

    def _look(self, at: Tensor, side: int, reach: float) -> tuple[Tensor, Tensor]:
        """The corner (N, 2) of a window, and the rows of the canvas that it reads, tap by tap (N, 2W)."""
        corner = torch.floor((at - reach - 0.5) / self.ratio - 0.5).clamp(0, self.size - side).to(torch.int64)
        return corner, self.taps[corner[:, 1:] + self.steps[:side]].transpose(1, 2).flatten(1)

    def _marks(self, pusher: Tensor, corners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where the pusher touches each bar: both ends of the mark, from 13 px out to 2 px behind, and whether."""
        origin = corners[:, :, 0]
        along, across = corners[:, :, 1] - origin, corners[:, :, 3] - origin  # (N, Q, 2)
        off = pusher[:, None] - origin
        length = torch.stack((along, across), -2).square().sum(-1).sqrt()  # (N, Q, 2)
        axes = torch.stack((along, across), -2) / length[..., None]
        local = (axes * off[..., None, :]).sum(-1)
        near = torch.minimum(local.clamp(min=0.0), length)
        gap = torch.sqrt((near - local).square().sum(-1))
        # Inside the bar the nearest point is on the nearest side.
        to_low = local <= length - local
        depth = torch.minimum(local, length - local)
        nearest = torch.where(depth == depth.amin(-1, keepdim=True), torch.where(to_low, 0.0, length), local)
        inside = (gap == 0)[..., None]
        near = torch.where(inside, nearest, near)
        far = torch.where(inside[..., 0], -depth.amin(-1), gap)
        normal = (near - local) / torch.where(far == 0, 1.0, far)[..., None]
        q = origin + (near[..., None] * axes).sum(-2)
        n = (normal[..., None] * axes).sum(-2)
        return ((pusher[:, None] + (RADIUS - MARK) * n).round(), (q + MARK * n).round(), far <= RADIUS)

    def _bars(self, corners: Tensor, rows: Tensor) -> Span:
        """Outline, hole, outline, hole of the two bars in each row: rows (N, R), spans (N, 4, R)."""
        p, q = corners[:, :, :, None], corners.roll(-1, 2)[:, :, :, None]  # (N, Q, E, 1, 2)
        y = rows[:, None, None, :]
        first, last = fat_span(p, q, y)  # (N, Q, E, R)
        tip = disc_span(p, y, self.discs[2])
        rise = (q - p)[..., 1]
        after = torch.where(rise <= 0, last, -FAR).amax(2) + 1.0  # the sides left of the hole end here
        until = torch.where(rise >= 0, first, FAR).amin(2) - 1.0
        hole = only(after, until, (after > 1.0 - FAR) & (until < FAR - 1.0))  # (N, Q, R)
        outer = torch.minimum(first, tip[0]).amin(2), torch.maximum(last, tip[1]).amax(2)
        return torch.stack((outer[0], hole[0]), 2).flatten(1, 2), torch.stack((outer[1], hole[1]), 2).flatten(1, 2)

    def _pusher(self, middle: Tensor, marks: tuple[Tensor, Tensor, Tensor], rows: Tensor) -> Span:
        """Both discs, and the mark on either bar: (N, 4, R)."""
        discs = [disc_span(middle[:, None], rows, self.discs[r]) for r in (15, 11)]
        a, b, touch = (m[:, :, None] for m in marks)
        mark = only(*line_span(a, b, rows[:, None], 0.0, 0.0), touch)
        first, last = (torch.stack([d[i] for d in discs], 1) for i in (0, 1))
        return torch.cat((first, mark[0]), 1), torch.cat((last, mark[1]), 1)


def make_renderer(size: int, device: torch.device | str = "cpu") -> Renderer:
    """States (N, 7) in canvas pixels -> uint8 (N, 3, size, size); constants are built once per size and device."""
    return _frames(require("a frame's side", size, 1), torch.device(device))


_frames = functools.cache(PushTFrames)
