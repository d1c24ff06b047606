"""PushT's picture, drawn in batches on any device: what the pygame environment draws, from the state alone.

The original draws on a 512² canvas without antialiasing, vertices rounded to whole pixels, in this order: the goal's
T, the two bars of the block (a light quadrilateral, its four sides as fat lines over it), the pusher (a dark disc, a
light one over it), the walls, a red mark at every contact; then it resizes bilinearly *without* a filter, so that a
pixel of the smaller picture is a mixture of 2×2 pixels of the canvas. Here only those pixels are colored, and only in
two windows, around the block and around the pusher; the rest is a picture made beforehand.

Everything drawn is convex, so it meets a row of the canvas in one span (see `spans`). A bar's row is therefore
[outer [hole] outer]: dark between its outermost spans, light between the inner ends of the sides left and right of it.

What is left out: marks where the block touches a wall. The marks where the pusher touches the block are drawn in whole
pixels (the original blends their edges).

N frames, Q = 2 bars, E = 4 sides, R rows and C columns of the canvas that a window reads, W = side of a window.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.worlds.base import Renderer, on_host
from lpwm.worlds.pusht.render_device import (
    CONTACT,
    DARK,
    GOAL,
    PUSHER,
    WALL,
    Window,
    as_words,
    compose,
    join,
    pack,
    pick,
    taps,
)
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
    (255, 255, 255),
    (144, 238, 144),
    (211, 211, 211),
    (143, 163, 184),
    (119, 136, 153),
    (65, 105, 225),
    (78, 126, 255),
    (231, 76, 60),
)
PHASES = 8  # a table of all mixtures is kept where a picture has at most this many different weights per axis
ROWS, PIXELS = 64, 16  # frames in flight on a CPU, in rows and in pixels: what its cache holds


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
    low, high = WALL_LOW, WALL_HIGH
    for ends in (
        ((low, high), (low, low)),
        ((low, low), (high, low)),
        ((high, low), (high, high)),
        ((low, high), (high, high)),
    ):
        p, q = (torch.tensor([end]) for end in ends)
        paint(fat_span(p, q, rows), WALL)
        paint(disc_span(p, rows, half_widths(2)), WALL)
        paint(disc_span(q, rows, half_widths(2)), WALL)
    return out


class _Axis:
    """How the resize reads one axis: pixel i mixes canvas pixels near and near + 1, `share` of the second."""

    def __init__(self, size: int) -> None:
        at = (np.arange(size) + 0.5) * (CANVAS / size) - 0.5
        near = np.floor(at)
        share = np.where((near < 0) | (near >= CANVAS - 1), 0.0, at - near)
        near = near.clip(0, CANVAS - 1)
        self.near, self.next = near, np.minimum(near + 1, CANVAS - 1)
        self.share = share
        shares = np.round(share, 9)
        self.shares, self.phase = np.unique(shares, return_inverse=True)


def _mix(color: Tensor | Sequence[Tensor], share_y: Tensor, share_x: Tensor) -> Tensor:
    """Four taps (00, 01, 10, 11 as row, column) of (…) and shares that broadcast -> rounded values (…)."""
    top = color[0] + (color[1] - color[0]) * share_x
    low = color[2] + (color[3] - color[2]) * share_x
    return (top + (low - top) * share_y + 0.5).floor()


@functools.cache
def _table(size: int) -> Tensor | None:
    """All mixtures of four palette numbers, per pair of phases, packed in an int32: (P·P·4096,)."""
    axis = _Axis(size)
    count = len(axis.shares)
    if count > PHASES:
        return None
    palette = torch.tensor(PALETTE, dtype=torch.float64)
    codes = torch.arange(4096)
    color = torch.stack([palette[(codes >> (3 * tap)) & 7] for tap in range(4)])  # (4, 4096, 3)
    share = torch.tensor(axis.shares)
    value = _mix(color[:, None, None], share[:, None, None, None], share[None, :, None, None])
    packed = torch.zeros(count, count, 4096, 4, dtype=torch.uint8)
    packed[..., :3] = value.to(torch.uint8)
    return packed.view(torch.int32).flatten()


class _Look(NamedTuple):
    """A window per frame: its corner (N, 2), its pixels (N, 2, W), and the canvas pixels they read."""

    corner: Tensor
    span: Tensor
    columns: Tensor  # (N, W, 2 taps)
    rows: Tensor  # (N, 2W), tap by tap


class PushTFrames:
    """(N, 7) states -> uint8 (N, 3, size, size)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.ratio = size, CANVAS / size
        axis = _Axis(size)
        f32 = functools.partial(torch.tensor, dtype=torch.float32, device=device)
        self.taps = f32(np.stack([axis.near, axis.next], 1))  # (size, 2)
        self.steps = torch.arange(size, device=device)
        self.share = f32(axis.share)
        self.palette = f32(PALETTE)
        self.bars = f32(BARS)
        self.discs = {radius: half_widths(radius, device) for radius in DISCS}
        self.phase = torch.tensor(axis.phase, dtype=torch.int32, device=device)
        self.phases = len(axis.shares)
        table = _table(size)
        self.table = None if table is None else table.to(device)
        near = self.taps.T.to(torch.int64)
        ground = _ground().to(device)
        # (4 taps, size, size): what stands at each canvas pixel that a pixel reads
        self.ground = torch.stack([ground[near[i]][:, near[j]] for i in (0, 1) for j in (0, 1)])
        self.wall = (self.ground == WALL).to(torch.uint8) * 255
        color = self.palette[self.ground.to(torch.int64)]
        empty = _mix(color, self.share[:, None, None], self.share[:, None])
        self.empty = empty.permute(2, 0, 1).to(torch.uint8).contiguous()
        self.blank = as_words(self.empty)
        self.windows = [self._window(reach) for reach in (REACH, PUSHER_REACH)]
        # (size²,) int32: the four taps of what never moves at three bits each, above them the phases
        cell = self.phase[:, None] * self.phases + self.phase
        self.codes = ((cell << 12) + join(list(self.ground.to(torch.int32)))).flatten()
        if device.type == "cpu":
            self.views = [
                [_windows(layer.numpy(), side) for layer in (self.ground, self.wall)] for side in self.windows
            ]

    def _window(self, reach: float) -> int:
        return min(self.size, math.ceil((2 * reach + 2) / self.ratio) + 2)

    def __call__(self, state: Tensor) -> Tensor:
        state = state.to(torch.float32)
        if not on_host(state):
            return self._whole(state)
        out = self.empty.repeat(len(state), 1, 1, 1)
        for rows in _parts(len(state), ROWS):
            for i, (look, spans) in enumerate(self._spans(state[rows])):
                for part in _parts(len(look.corner), PIXELS):
                    seen = _Look(*(t[part] for t in look))
                    index = self._index(i, (spans[0][part], spans[1][part]), seen)  # (N, 4, W, W)
                    self._paste(out[rows][part], self._colors(index, seen.span), seen)
        return out

    def _whole(self, state: Tensor) -> Tensor:
        """All frames at once, as a pure function, for an accelerator: see `render_device`."""
        drawn = []
        for side, (look, spans) in zip(self.windows, self._spans(state), strict=True):
            window = Window.around(look.corner, side, self.size)
            x, y = window.columns(), window.rows()
            codes = pick(self.codes, y * self.size + x)
            numbers = taps(codes, spans, pick(self.taps[:, 0], x), pick(self.taps[:, 1], x))
            if self.table is not None:
                value = pick(self.table, (codes & -4096) + join(numbers))
            else:
                shares = pick(self.share, y), pick(self.share, x)
                colors = [[pick(channel, k) for k in numbers] for channel in self.palette.unbind(1)]
                value = pack([_mix(color, *shares) for color in colors])
            drawn.append((window, window.words(value)))
        return compose(self.blank, drawn)

    def _spans(self, state: Tensor) -> list[tuple[_Look, Span]]:
        """The two windows and what is drawn in each row that they read: spans (N, K, 2W).

        K = 4 of the bars around the block; around the pusher, whose window lies over the other, 4 more of its own.
        """
        pusher, place, angle = state[:, :2], state[:, 2:4], state[:, 4]
        cos, sin = torch.cos(angle), torch.sin(angle)
        turn = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)  # (N, 2, 2)
        exact = torch.einsum("nij,qej->nqei", turn, self.bars) + place[:, None, None]
        center = place + MIDDLE * torch.stack((-sin, cos), -1)
        marks = self._marks(pusher, exact)
        corners, middle = exact.round(), pusher.round()
        looks = [
            self._look(at, side, reach)
            for at, side, reach in zip((center, pusher), self.windows, (REACH, PUSHER_REACH), strict=True)
        ]
        bars = self._bars(corners, torch.cat([look.rows for look in looks], 1))
        firsts, lasts = (torch.split(bar, [look.rows.shape[1] for look in looks], -1) for bar in bars)
        more = self._pusher(middle, marks, looks[1].rows)
        both = torch.cat((firsts[1], more[0]), 1), torch.cat((lasts[1], more[1]), 1)
        return [(looks[0], (firsts[0], lasts[0])), (looks[1], both)]

    def _look(self, at: Tensor, side: int, reach: float) -> _Look:
        corner = torch.floor((at - reach - 0.5) / self.ratio - 0.5).clamp(0, self.size - side).to(torch.int64)
        span = corner.unsqueeze(2) + self.steps[:side]  # (N, 2, W): columns, rows
        read = self.taps[span]  # (N, 2, W, 2)
        return _Look(corner, span, read[:, 0], read[:, 1].transpose(1, 2).flatten(1))

    def _marks(self, pusher: Tensor, corners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where the pusher touches each bar: both ends of the mark, in whole pixels, and whether there is one.

        With q the nearest point of the bar and n the direction to it, from 13 px out to 2 px behind q.
        """
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

    def _index(self, i: int, spans: Span, look: _Look) -> Tensor:
        """The palette number at every canvas pixel read: spans (N, K, 2W) -> (N, 4 taps, W, W) uint8.

        In bytes, where off ≤ width is a whole test: a column before its span wraps to a large number.
        """
        n, side = len(look.corner), self.windows[i]
        base = look.columns[:, :1, :1]  # (N, 1, 1): the first column read
        small = side * self.ratio + 2 < 250
        dtype, end = (torch.uint8, 255.0) if small else (torch.int16, 3 * FAR)
        first, last = spans[0] - base, spans[1] - base
        low, last = first.clamp(min=0.0), last.clamp(max=end - 5)
        width = (last - low).clamp(min=0.0)
        low = torch.where(last < low, end, low)
        low, width = (t.to(dtype).view(n, -1, 2, 1, side, 1) for t in (low, width))
        x = (look.columns - base).to(dtype).transpose(1, 2)[:, None, :, None, :]  # (N, 1, 2, 1, W)
        x = x.expand(n, 2, 2, side, side).contiguous()

        def inside(k: int) -> Tensor:
            off = x - low[:, k]
            # numpy's comparison of broadcast bytes is many times torch's
            within = torch.from_numpy(off.numpy() <= width[:, k].numpy())
            if not small:
                within &= off >= 0
            return within.view(n, 4, side, side).view(torch.uint8)

        out, wall = self._under(i, look)  # (N, 4, W, W)
        for k in (0, 2):
            out = _over(out, DARK - inside(k + 1), inside(k))  # LIGHT is DARK − 1
        count = low.shape[1]
        if count > 4:
            out = _over(out, PUSHER + inside(5), inside(4))  # PUSHER_LIGHT is PUSHER + 1
        out = out ^ ((out ^ WALL) & wall)
        for k in range(6, count):
            out = _over(out, torch.full_like(out, CONTACT), inside(k))
        return out

    def _under(self, i: int, look: _Look) -> tuple[Tensor, Tensor]:
        """What never moves there, and whether it is wall (255 or 0)."""
        x, y = look.corner.T.numpy()
        ground, wall = self.views[i]
        return torch.from_numpy(ground[y, x]), torch.from_numpy(wall[y, x])

    def _colors(self, index: Tensor, span: Tensor) -> Tensor:
        """(N, 4, W, W) palette numbers -> uint8 (N, W, W, 3 or 4)."""
        if self.table is not None:
            code = index[:, 0].to(torch.int32)
            for tap in (1, 2, 3):
                code = code | (index[:, tap].to(torch.int32) << (3 * tap))
            phase = self.phase[span] << 12  # (N, 2, W)
            code += phase[:, 1, :, None] * self.phases + phase[:, 0, None, :]
            return torch.from_numpy(self.table.numpy().take(code.numpy())).view(torch.uint8).view(*code.shape, 4)
        color = self.palette[index.transpose(0, 1).to(torch.int64)]  # (4, N, W, W, 3)
        share = self.share[span]
        return _mix(color, share[:, 1, :, None, None], share[:, 0, None, :, None]).to(torch.uint8)

    def _paste(self, out: Tensor, value: Tensor, look: _Look) -> None:
        frame, side = out.numpy(), value.shape[1]
        planes = value.numpy()[..., :3].transpose(0, 3, 1, 2)
        for i, (left, top) in enumerate(look.corner.tolist()):
            frame[i, :, top : top + side, left : left + side] = planes[i]


def _parts(n: int, count: int) -> Iterator[slice]:
    """`count` frames at a time: what is in flight stays in the cache."""
    return (slice(i, i + count) for i in range(0, n, count))


def _windows(layer: np.ndarray, side: int) -> np.ndarray:
    """Every window of (4, size, size) as a view, (row, column, 4, side, side)."""
    return np.lib.stride_tricks.sliding_window_view(layer, (side, side), (1, 2)).transpose(1, 2, 0, 3, 4)


def _over(under: Tensor, over: Tensor, where: Tensor) -> Tensor:
    """`over` where `where` is 1, in byte operations (a CPU has no fast select of bytes)."""
    return under ^ ((under ^ over) & (0 - where))


def make_renderer(size: int, device: torch.device | str = "cpu") -> Renderer:
    """States (N, 7) in canvas pixels -> uint8 (N, 3, size, size); constants are built once per size and device."""
    if size < 1:
        raise UserError(f"a frame needs a positive side, not {size}.")
    return _frames(size, torch.device(device))


_frames = functools.cache(PushTFrames)
