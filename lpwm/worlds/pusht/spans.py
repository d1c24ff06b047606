"""What pygame draws without antialiasing, row by row: the pixels [first, last] of a convex shape in a row.

  fat line    pygame's Bresenham walk, k_n = ⌈(n·dx − ⌊dy/2⌋)/dy⌉ across after n pixels along, 4 pixels wide; over it
              the parallelogram with corners ±o off both ends, o = round(2·(|dy|, |dx|)/length), as in the original;
  disc        a table of half widths per radius.

Quotients of whole numbers are floored as ⌊(a + ½)/b⌋, which the last bit cannot change. Points (…, 2), rows (…), spans
a pair of (…), all float32.
"""

import functools

import torch
from torch import Tensor

# Half widths of pygame's filled discs, from the middle row outwards; the row below the center begins the mirror image.
DISCS = {
    15: (15, 15, 15, 14, 14, 14, 13, 13, 12, 11, 10, 9, 8, 6, 3),
    11: (11, 11, 11, 10, 10, 9, 8, 8, 6, 5, 3),
    2: (2, 1),
}
FAR = 4096.0  # an empty span is [FAR, −FAR]

Span = tuple[Tensor, Tensor]


def only(first: Tensor, last: Tensor, where: Tensor) -> Span:
    """The span where `where` holds, else an empty one."""
    return torch.where(where, first, FAR), torch.where(where, last, -FAR)


def line_span(p: Tensor, q: Tensor, y: Tensor, before: float = 1.0, after: float = 2.0) -> Span:
    """The row y of a Bresenham line from p to q that spans `before` and `after` pixels across: (…, 2) ×2, (…)."""
    d = q - p
    dx, dy = d.abs().unbind(-1)
    sx, sy = torch.where(d[..., 0] > 0, 1.0, -1.0), torch.where(d[..., 1] > 0, 1.0, -1.0)
    n = (y - p[..., 1]) * sy
    # Steep: one step down per pixel, ⌊n·dx/dy + c⌋ + 1 across.
    per = 1.0 / dy.clamp(min=1.0)
    x = torch.floor(n * (dx * per) - (torch.floor(dy / 2) + 0.5) * per) * sx + (p[..., 0] + sx)
    # Flat: the steps n along the line whose pixels come within reach of this row, which are neighbors.
    down = d[..., 1] > 0
    per = 1.0 / dy.clamp(min=2.0**-10)
    half, run = (torch.floor(dx / 2) + 0.5) * per, dx * per
    low, high = torch.where(down, after, before), torch.where(down, before, after)
    first = (torch.floor(n * run + (half - (low + 1) * run)) + 1).clamp(min=0.0)
    last = torch.minimum(torch.floor(n * run + (half + high * run)), dx)
    a, b = p[..., 0] + sx * first, p[..., 0] + sx * last
    steep = dx <= dy
    there = torch.where(steep, (n >= 0) & (n <= dy), first <= last)
    start = torch.where(steep, x - before, torch.minimum(a, b))
    end = torch.where(steep, x + after, torch.maximum(a, b))
    return only(start, end, there)


def fill_span(corners: tuple[Tensor, ...], y: Tensor) -> Span:
    """The row y of pygame's filled convex polygon: the crossing of the side met first is rounded down, the other up."""
    bottom = functools.reduce(torch.maximum, [c[..., 1] for c in corners])
    first = last = met = None
    for p, q in zip(corners, (*corners[1:], corners[0]), strict=True):
        swap = (p[..., 1] > q[..., 1]).unsqueeze(-1)
        p, q = torch.where(swap, q, p), torch.where(swap, p, q)
        rise = q[..., 1] - p[..., 1]
        rows = torch.where((q[..., 1] == bottom) & (rise > 0), rise + 1, rise)  # the last row belongs to it
        t = y - p[..., 1]
        here = (t >= 0) & (t < rows)
        per = 1.0 / rise.clamp(min=1.0)
        x, shift = t * ((q[..., 0] - p[..., 0]) * per), 0.5 * per
        if met is None:
            x = torch.floor(x + shift) + p[..., 0]
        else:
            x = torch.floor(x + torch.where(met, -shift, shift)) + (met + p[..., 0])
        low, high = only(x, x, here)
        first = low if first is None else torch.minimum(first, low)
        last = high if last is None else torch.maximum(last, high)
        met = here if met is None else met | here
    assert first is not None and last is not None
    return first, last


def fat_span(p: Tensor, q: Tensor, y: Tensor) -> Span:
    """A side of a bar, or a wall: the line and the parallelogram over it."""
    d = (q - p).abs()
    o = torch.round(d.flip(-1) * (2.0 / torch.sqrt(d.square().sum(-1, keepdim=True))))
    line, over = line_span(p, q, y), fill_span((q - o, p - o, p + o, q + o), y)
    return torch.minimum(line[0], over[0]), torch.maximum(line[1], over[1])


def disc_span(center: Tensor, y: Tensor, widths: Tensor) -> Span:
    """center (…, 2); widths: one of DISCS as a tensor, from the middle row outwards."""
    off = y - center[..., 1]
    row = torch.where(off < 0, -1.0 - off, off)
    half = widths[row.clamp(max=len(widths) - 1).to(torch.int64)]
    return only(center[..., 0] - half, center[..., 0] + half - 1, row < len(widths))


def half_widths(radius: int, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(DISCS[radius], dtype=torch.float32, device=device)
