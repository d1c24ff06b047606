"""PushT's picture, drawn in batches on any device: what the pygame environment draws, from the state alone.

The original draws on a 512² canvas without antialiasing, vertices rounded to whole pixels, in this order: the goal's
T, the two bars of the block (a light quadrilateral, its four sides as fat lines over it), the pusher (a dark disc, a
light one over it), the walls, a red mark at every contact; then it resizes bilinearly *without* a filter, so that a
pixel of the smaller picture is a mixture of 2×2 pixels of the canvas. Here only those pixels are coloured, and only in
two windows, around the block and around the pusher; the rest is a picture made beforehand.

Everything drawn is convex, so it meets a row of the canvas in one span [first, last], which has a closed form:
  fat line    pygame's Bresenham walk, k_n = ⌈(n·dx − ⌊dy/2⌋)/dy⌉ across after n pixels along, 4 pixels wide; over it
              the parallelogram with corners ±o off both ends, o = round(2·(|dy|, |dx|)/length); the absolute values
              are the original's, which makes the corners of some sides poke out;
  disc        a table of half widths per radius.
A bar's row is therefore [outer [hole] outer]: dark between its outermost spans, light between the inner ends of the
sides left and right of it. Quotients of whole numbers are floored as ⌊(a + ½)/b⌋, which rounding cannot hurt.

What is left out: marks where the block touches a wall. The marks where the pusher touches the block are drawn in whole
pixels (the original blends their edges).

N frames, Q = 2 bars, E = 4 sides, R rows and C columns of the canvas that a window reads, W = side of a window.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from lpwm.errors import UserError
from lpwm.worlds.base import Renderer

CANVAS = 512
NATIVE = 224  # the size when none is asked for
GOAL_POSE = (256.0, 256.0, math.pi / 4)
BARS = (((-60, 0), (60, 0), (60, 30), (-60, 30)), ((-15, 30), (15, 30), (15, 120), (-15, 120)))
MIDDLE, REACH = 60.0, 88.0  # a disc about (0, MIDDLE) of the block holds all of it, outline included
RADIUS, MARK = 15.0, 2.0  # of the pusher; half a contact mark sticks out of either body
PUSHER_REACH = RADIUS + MARK + 2.0
WALL_LOW, WALL_HIGH = 5.0, 506.0

GROUND, GOAL, WALL, LIGHT, DARK, PUSHER, PUSHER_LIGHT, CONTACT = range(8)
# white; LightGreen; LightGray; LightSlateGray × 1.2, LightSlateGray; RoyalBlue, × 1.2; pymunk's red
PALETTE = (
    (255, 255, 255), (144, 238, 144), (211, 211, 211), (143, 163, 184), (119, 136, 153),
    (65, 105, 225), (78, 126, 255), (231, 76, 60),
)  # fmt: skip
# Half widths of pygame's filled discs, from the middle row outwards; the row below the centre begins the mirror image.
DISCS = {
    15: (15, 15, 15, 14, 14, 14, 13, 13, 12, 11, 10, 9, 8, 6, 3),
    11: (11, 11, 11, 10, 10, 9, 8, 8, 6, 5, 3),
    2: (2, 1),
}
FAR = 4096.0  # an empty span is [FAR, −FAR]
PHASES = 8  # a table of all mixtures is kept where a picture has at most this many different weights per axis
CHUNK = 16  # frames in flight on a CPU: what its cache holds

Span = tuple[Tensor, Tensor]


def _floor(a: Tensor, b: Tensor) -> Tensor:
    """⌊a/b⌋ for whole a and b > 0."""
    return torch.floor((a + 0.5) / b)


def _only(first: Tensor, last: Tensor, where: Tensor) -> Span:
    return torch.where(where, first, FAR), torch.where(where, last, -FAR)


def line_span(p: Tensor, q: Tensor, y: Tensor, before: float = 1.0, after: float = 2.0) -> Span:
    """The row y of a Bresenham line from p to q that spans `before` and `after` pixels across: (…, 2) ×2, (…)."""
    d = q - p
    dx, dy = d.abs().unbind(-1)
    sx, sy = torch.where(d[..., 0] > 0, 1.0, -1.0), torch.where(d[..., 1] > 0, 1.0, -1.0)
    n = (y - p[..., 1]) * sy
    # Steep: one step down per pixel, k across.
    k = torch.floor((n * dx - torch.floor(dy / 2) - 0.5) / dy.clamp(min=1.0)) + 1.0
    x = p[..., 0] + sx * k
    # Flat: the steps n along the line whose pixels come within reach of this row, which are neighbours.
    down = sy > 0
    low = n - torch.where(down, after, before)
    high = n + torch.where(down, before, after)
    rise, half = dy.clamp(min=2.0**-10), torch.floor(dx / 2)
    first = (_floor((low - 1) * dx + half, rise) + 1).clamp(min=0.0)
    last = torch.minimum(_floor(high * dx + half, rise), dx)
    a, b = p[..., 0] + sx * first, p[..., 0] + sx * last
    steep = dx <= dy
    there = torch.where(steep, (n >= 0) & (n <= dy), first <= last)
    start = torch.where(steep, x - before, torch.minimum(a, b))
    end = torch.where(steep, x + after, torch.maximum(a, b))
    return _only(start, end, there)


def fill_span(corners: tuple[Tensor, ...], y: Tensor) -> Span:
    """The row y of pygame's filled convex polygon; corners (…, 2) in the order in which it meets the sides.

    Of the two crossings the side met first is rounded down and the other up, whichever is left.
    """
    bottom = functools.reduce(torch.maximum, [c[..., 1] for c in corners])
    first = torch.full_like(y + bottom, FAR)
    last = -first
    met = torch.zeros_like(first, dtype=torch.bool)
    for p, q in zip(corners, (*corners[1:], corners[0]), strict=True):
        swap = (p[..., 1] > q[..., 1]).unsqueeze(-1)
        p, q = torch.where(swap, q, p), torch.where(swap, p, q)
        top, rise = p[..., 1], q[..., 1] - p[..., 1]
        here = (rise > 0) & (y >= top) & ((y < q[..., 1]) | ((y == bottom) & (q[..., 1] == bottom)))
        a = (y - top) * (q[..., 0] - p[..., 0])
        rise = rise.clamp(min=1.0)
        x = p[..., 0] + torch.where(met, torch.floor((a - 0.5) / rise) + 1.0, _floor(a, rise))
        first = torch.where(here, torch.minimum(first, x), first)
        last = torch.where(here, torch.maximum(last, x), last)
        met = met | here
    return first, last


def fat_span(p: Tensor, q: Tensor, y: Tensor) -> Span:
    """A side of a bar, or a wall: the line and the parallelogram over it."""
    d = (q - p).abs()
    o = torch.round(d.flip(-1) * (2.0 / torch.sqrt(d.square().sum(-1, keepdim=True))))
    line, over = line_span(p, q, y), fill_span((q - o, p - o, p + o, q + o), y)
    return torch.minimum(line[0], over[0]), torch.maximum(line[1], over[1])


def disc_span(centre: Tensor, y: Tensor, widths: Tensor) -> Span:
    """centre (…, 2); widths: one of DISCS as a tensor, from the middle row outwards."""
    off = y - centre[..., 1]
    row = torch.where(off < 0, -1.0 - off, off)
    half = widths[row.clamp(max=len(widths) - 1).to(torch.int64)]
    return _only(centre[..., 0] - half, centre[..., 0] + half - 1, row < len(widths))


def _widths(radius: int, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(DISCS[radius], dtype=torch.float32, device=device)


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
        paint(disc_span(p, rows, _widths(2)), WALL)
        paint(disc_span(q, rows, _widths(2)), WALL)
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


def _mix(colour: Tensor, share_y: Tensor, share_x: Tensor) -> Tensor:
    """(4 taps: 00, 01, 10, 11 as row, column; …, 3) and shares (…, 1) -> rounded values (…, 3)."""
    top = colour[0] + (colour[1] - colour[0]) * share_x
    low = colour[2] + (colour[3] - colour[2]) * share_x
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
    colour = torch.stack([palette[(codes >> (3 * tap)) & 7] for tap in range(4)])  # (4, 4096, 3)
    share = torch.tensor(axis.shares)
    value = _mix(colour[:, None, None], share[:, None, None, None], share[None, :, None, None])
    packed = torch.zeros(count, count, 4096, 4, dtype=torch.uint8)
    packed[..., :3] = value.to(torch.uint8)
    return packed.view(torch.int32).flatten()


class PushTFrames:
    """(N, 7) states -> uint8 (N, 3, size, size)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, self.ratio = size, CANVAS / size
        axis = _Axis(size)
        f32 = functools.partial(torch.tensor, dtype=torch.float32, device=device)
        self.taps = f32(np.stack([axis.near, axis.next]))  # (2, size)
        self.share = f32(axis.share)
        self.palette = f32(PALETTE)
        self.bars = f32(BARS)
        self.discs = {radius: _widths(radius, device) for radius in DISCS}
        self.phase = torch.tensor(axis.phase, dtype=torch.int32, device=device)
        self.phases = len(axis.shares)
        host = device.type == "cpu"
        self.table = _table(size) if host else None
        near = self.taps.to(torch.int64)
        ground = _ground().to(device)
        # (4 taps, size, size): what stands at each canvas pixel that a pixel reads
        self.ground = torch.stack([ground[near[i]][:, near[j]] for i in (0, 1) for j in (0, 1)])
        colour = self.palette[self.ground.to(torch.int64)]
        empty = _mix(colour, self.share[:, None, None], self.share[:, None])
        self.empty = empty.permute(2, 0, 1).to(torch.uint8).contiguous()
        self.windows = [self._window(reach) for reach in (REACH, PUSHER_REACH)]
        if host:
            self.views = [
                np.lib.stride_tricks.sliding_window_view(self.ground.numpy(), (w, w), (1, 2)).transpose(1, 2, 0, 3, 4)
                for w in self.windows
            ]  # fmt: skip

    def _window(self, reach: float) -> int:
        return min(self.size, math.ceil((2 * reach + 2) / self.ratio) + 2)

    def __call__(self, state: Tensor) -> Tensor:
        state = state.to(torch.float32)
        n = state.shape[0]
        out = torch.empty((n, 3, self.size, self.size), dtype=torch.uint8, device=state.device)
        chunk = CHUNK if _on_host(state) else max(1, n)
        for i in range(0, n, chunk):
            self._draw(state[i : i + chunk], out[i : i + chunk])
        return out

    def _draw(self, state: Tensor, out: Tensor) -> None:
        out.copy_(self.empty.expand_as(out))
        pusher, place, angle = state[:, :2], state[:, 2:4], state[:, 4]
        cos, sin = torch.cos(angle), torch.sin(angle)
        turn = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)  # (N, 2, 2)
        exact = torch.einsum("nij,qej->nqei", turn, self.bars) + place[:, None, None]
        centre = place + MIDDLE * torch.stack((-sin, cos), -1)
        marks = self._marks(pusher, exact)
        corners, middle = exact.round(), pusher.round()
        for i, (at, reach) in enumerate(((centre, REACH), (pusher, PUSHER_REACH))):
            side = self.windows[i]
            corner = (
                torch.floor((at - reach - 0.5) / self.ratio - 0.5).clamp(0, self.size - side).to(torch.int64)
            )
            span = corner.unsqueeze(2) + torch.arange(side, device=state.device)  # (N, 2, W): columns, rows
            read = self.taps[:, span]  # (2, N, 2, W)
            rows = read[:, :, 1].transpose(0, 1).flatten(1)  # (N, 2W)
            spans = self._bars(corners, rows)
            if i == 1:  # the second window lies over the first: only it needs the pusher
                spans += self._pusher(middle, marks, rows)
            index = self._index(i, spans, read[:, :, 0], corner, span)  # (N, 4, W, W)
            self._paste(out, self._colours(index, span), corner, span)

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
        return (
            (pusher[:, None] + (RADIUS - MARK) * n).round(),
            (q + MARK * n).round(),
            far <= RADIUS,
        )

    def _bars(self, corners: Tensor, rows: Tensor) -> list[Span]:
        """Outline and hole of either bar in each row: rows (N, R), four spans (N, R)."""
        p, q = corners[:, :, :, None], corners.roll(-1, 2)[:, :, :, None]  # (N, Q, E, 1, 2)
        y = rows[:, None, None, :]
        first, last = fat_span(p, q, y)  # (N, Q, E, R)
        tip = disc_span(p, y, self.discs[2])
        rise = (q - p)[..., 1]
        after = torch.where(rise <= 0, last, -FAR).amax(2) + 1.0  # the sides left of the hole end here
        until = torch.where(rise >= 0, first, FAR).amin(2) - 1.0
        outer = torch.minimum(first, tip[0]).amin(2), torch.maximum(last, tip[1]).amax(2)  # (N, Q, R)
        hole = _only(after, until, (after > 1.0 - FAR) & (until < FAR - 1.0))
        return [(s[0][:, bar], s[1][:, bar]) for bar in (0, 1) for s in (outer, hole)]

    def _pusher(self, middle: Tensor, marks: tuple[Tensor, Tensor, Tensor], rows: Tensor) -> list[Span]:
        """Both discs, and the mark on either bar."""
        spans = [disc_span(middle[:, None], rows, self.discs[r]) for r in (15, 11)]
        for bar in (0, 1):
            a, b, touch = (m[:, bar, None] for m in marks)
            spans.append(_only(*line_span(a, b, rows, 0.0, 0.0), touch))
        return spans

    def _index(self, i: int, spans: list[Span], columns: Tensor, corner: Tensor, span: Tensor) -> Tensor:
        """The palette number at every canvas pixel read: (N, 4 taps, W, W) uint8. columns: (2 taps, N, W).

        In bytes, where off ≤ width is a whole test: a column before its span wraps to a large number.
        """
        n, side = len(corner), self.windows[i]
        base = columns[0, :, :1]  # (N, 1): the first column read
        dtype, end = (torch.uint8, 255.0) if side * self.ratio + 2 < 250 else (torch.int16, 3 * FAR)
        first = torch.stack([s[0] for s in spans], 1) - base[:, None]
        last = torch.stack([s[1] for s in spans], 1) - base[:, None]
        low, last = first.clamp(min=0.0), last.clamp(max=end - 5)
        width = (last - low).clamp(min=0.0)
        low = torch.where(last < low, end, low)
        low, width = (t.to(dtype).view(n, -1, 2, 1, side, 1) for t in (low, width))
        x = (columns - base).to(dtype).transpose(0, 1)[:, None, :, None, :]  # (N, 1, 2, 1, W)

        def inside(k: int) -> Tensor:
            off = x - low[:, k]
            within = off <= width[:, k]
            if dtype != torch.uint8:
                within &= off >= 0
            return within.view(n, 4, side, side).view(torch.uint8)

        ground = self._under(i, corner, span)  # (N, 4, W, W)
        out = ground
        for k in (0, 2):
            out = _over(out, DARK - inside(k + 1), inside(k))  # LIGHT is DARK − 1
        if len(spans) > 4:
            out = _over(out, PUSHER + inside(5), inside(4))  # PUSHER_LIGHT is PUSHER + 1
        out = _over(out, torch.full_like(out, WALL), (ground == WALL).view(torch.uint8))
        for k in range(6, len(spans)):
            out = _over(out, torch.full_like(out, CONTACT), inside(k))
        return out

    def _under(self, i: int, corner: Tensor, span: Tensor) -> Tensor:
        if _on_host(corner):
            x, y = corner.T.numpy()
            return torch.from_numpy(self.views[i][y, x])
        return self.ground[:, span[:, 1, :, None], span[:, 0, None, :]].transpose(0, 1)

    def _colours(self, index: Tensor, span: Tensor) -> Tensor:
        """(N, 4, W, W) palette numbers -> uint8 (N, W, W, 3 or 4)."""
        if self.table is not None and _on_host(index):
            code = index[:, 0].to(torch.int32)
            for tap in (1, 2, 3):
                code = code | (index[:, tap].to(torch.int32) << (3 * tap))
            phase = self.phase[span] << 12  # (N, 2, W)
            code += phase[:, 1, :, None] * self.phases + phase[:, 0, None, :]
            return (
                torch.from_numpy(self.table.numpy().take(code.numpy())).view(torch.uint8).view(*code.shape, 4)
            )
        colour = self.palette[index.transpose(0, 1).to(torch.int64)]  # (4, N, W, W, 3)
        share = self.share[span]
        return _mix(colour, share[:, 1, :, None, None], share[:, 0, None, :, None]).to(torch.uint8)

    def _paste(self, out: Tensor, value: Tensor, corner: Tensor, span: Tensor) -> None:
        if _on_host(out):
            frame, side = out.numpy(), value.shape[1]
            planes = value.numpy()[..., :3].transpose(0, 3, 1, 2)
            for i, (left, top) in enumerate(corner.tolist()):
                frame[i, :, top : top + side, left : left + side] = planes[i]
            return
        where = (span[:, 1, :, None] * self.size + span[:, 0, None, :]).flatten(1)
        for c in range(3):
            out[:, c].view(len(out), -1).scatter_(1, where, value[..., c].flatten(1))


def _over(under: Tensor, over: Tensor, where: Tensor) -> Tensor:
    """`over` where `where` is 1, in byte operations (a CPU has no fast select of bytes)."""
    return under ^ ((under ^ over) & (0 - where))


def _on_host(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


@functools.cache
def _made(size: int, device: torch.device) -> Renderer:
    return PushTFrames(size, device)


def make_renderer(size: int | None = None, device: torch.device | str = "cpu") -> Renderer:
    """States (N, 7) in canvas pixels -> uint8 (N, 3, size, size); constants are built once per size and device."""
    size = NATIVE if size is None else size
    if size < 1:
        raise UserError(f"a frame needs a positive side, not {size}.")
    return _made(size, torch.device(device))
