"""Piecewise: an open room whose g×g zones each push the dot in a direction of their own (the paper's appendix).

    p' = clamp(p + 5·clip(a, ±1) + b[zone(p)], 21, 203),   b_i = scale·(cos, sin)(2πi/g²)

The zone is that of the old position, row·g + column of [14, 210)². Equal, bit for bit on a CPU, to stable-worldmodel's
environment. Starts and goals are uniform on [14, 209]². State: the dot's x and y in pixels of the 224² frame.
"""

import colorsys
import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.worlds.base import Planar, Renderer, uniform_at
from lpwm.worlds.dots import ExactDots, SoftDots

FRAME, BORDER, RADIUS, LINE = 224, 14, 7, 4
SPEED = 5.0
SUCCESS = 16.0  # pixels
START_LOW, START_HIGH = float(BORDER), float(FRAME - BORDER - 1)
RED = (255, 0, 0)


class Room(Planar):
    """224² pixels with a border, starts and goals anywhere in it."""

    side, bounds, within, episode = FRAME, (START_LOW, START_HIGH), SUCCESS, 100

    def _anywhere(self, keys: Tensor) -> Tensor:
        return START_LOW + (START_HIGH - START_LOW) * uniform_at(keys, 2)


@dataclass(frozen=True)
class Piecewise(Room):
    """g zones per side, each with a bias of length `scale` pixels; `visible` paints the zones in pastel."""

    name, where = "piecewise", "zone"
    g: int = 2
    scale: float = 2.0
    visible: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.g <= 14:
            raise UserError(f"Piecewise needs 1 to 14 zones per side, not g={self.g}.")
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise UserError(f"Piecewise needs a finite, non-negative bias scale, not {self.scale}.")

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        moved = state + action.clamp(-1.0, 1.0) * SPEED + self.bias(state)
        return moved.clamp(BORDER + RADIUS, FRAME - BORDER - RADIUS)

    def zone(self, state: Tensor) -> Tensor:
        """(…, 2) -> (…) int64, row·g + column."""
        passed = (state[..., None] >= _thresholds(self.g, state.device)).sum(-1)  # (…, 2)
        return passed[..., 1] * self.g + passed[..., 0]

    def bias(self, state: Tensor) -> Tensor:
        """The push at a position: (…, 2) -> (…, 2)."""
        return _biases(self, state.device)[self.zone(state)]

    def _draw(self, size: int, device: torch.device) -> Renderer:
        return dot_renderer(_background(self).to(device), size)

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        return {"zone": self.zone(state), "x": state[..., 0], "y": state[..., 1]}


@functools.cache
def _biases(world: Piecewise, device: torch.device) -> Tensor:
    angle = [2.0 * math.pi * i / world.g**2 for i in range(world.g**2)]
    bias = [(world.scale * math.cos(a), world.scale * math.sin(a)) for a in angle]
    return torch.tensor(bias, dtype=torch.float32, device=device)


@functools.cache
def _thresholds(g: int, device: torch.device) -> Tensor:
    """The least float32 x with ⌊(x − 14)/196·g⌋ ≥ k in double precision, for k = 1…g−1. Comparing float32 positions
    with these gives the zone that double arithmetic gives, without doubles."""
    inside = float(FRAME - 2 * BORDER)
    edges = []
    for k in range(1, g):
        x = BORDER + inside * k / g
        ulp = 2.0 ** (math.floor(math.log2(x)) - 23)  # between neighboring float32 numbers here
        x = round(x / ulp) * ulp - 2 * ulp
        while (x - BORDER) / inside * g < k:
            x += ulp
        edges.append(x)
    return torch.tensor(edges, dtype=torch.float32, device=device)


def draw_border(image_CHW: Tensor) -> None:
    """Black lines of 4 pixels just outside the arena, running across the whole frame."""
    for low in (BORDER - LINE, FRAME - BORDER):
        image_CHW[:, low : low + LINE, :] = 0
        image_CHW[:, :, low : low + LINE] = 0


def _background(world: Piecewise) -> Tensor:
    image = torch.full((3, FRAME, FRAME), 255, dtype=torch.uint8)
    if world.visible:
        inside = FRAME - 2 * BORDER
        edge = [BORDER + k * inside // world.g for k in range(world.g + 1)]
        for i in range(world.g**2):
            row, col = divmod(i, world.g)
            pastel = [int(v * 255) for v in colorsys.hsv_to_rgb(i / world.g**2, 0.25, 1.0)]
            area = image[:, edge[row] : edge[row + 1], edge[col] : edge[col + 1]]
            area.copy_(torch.tensor(pastel, dtype=torch.uint8).view(3, 1, 1).expand_as(area))
    draw_border(image)
    return image


def dot_renderer(background_CHW: Tensor, size: int) -> Renderer:
    """A red dot of radius 7 on this native background, at its own size exactly or at any other."""
    if size == background_CHW.shape[-1]:
        return ExactDots(background_CHW, RED, float(RADIUS))
    return SoftDots(background_CHW, RED, float(RADIUS), size)
