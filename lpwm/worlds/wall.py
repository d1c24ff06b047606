"""Wall: two rooms of a 65² grid and a door, the world of DINO-WM's `wall_single` data.

    p' = p + 2a unless the path from p meets a surface; then the dot stops at the first one it meets.

Surfaces are segments, each with a free side: the four borders, the two faces of the wall outside the door, and the two
jambs of the door between the faces. A dot that meets a surface is put 0.5 off it and, as in the original, 0.5 further
along it (towards larger x or y); where that would carry it into a second surface it stays 0.3 before that one. Actions
are not clipped.

Frames are drawn at 65 (white ground, black walls, a red dot, 255·exp(−d²/2·1.7²) normalized by its maximum, truncated)
and resized bilinearly. State: the dot's x and y in grid units.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.worlds.base import Planar, Renderer, on_host, uniform_at

FRAME, DOT = 65, 1.7
LOW, HIGH = 4.0, 60.0  # the border lines
HALF_WIDTH, HALF_DOOR = 3, 4
SPEED, SUCCESS = 2.0, 4.5
OFF, NEAR = 0.5, 0.3  # where the dot lands: off the surface it met; before a second one
PADDING = 2 * DOT  # starts and goals keep this distance from every surface
STEP_MAX = 1.8  # the longest step of the data


@dataclass(frozen=True)
class Wall(Planar):
    """The x of the wall's middle and the y of the door's, in grid units."""

    name, where, policy = "wall", "room", "drift"
    side, bounds, within, episode, largest = FRAME, (LOW, HIGH), SUCCESS, 50, STEP_MAX
    wall: int = 32
    door: int = 30

    def __post_init__(self) -> None:
        if not 16 <= self.wall <= 48:
            raise UserError(f"Wall needs its wall at x = 16…48, so that both rooms have floor, not {self.wall}.")
        if not 10 <= self.door <= 54:
            raise UserError(f"Wall needs its door at y = 10…54, inside the border, not {self.door}.")

    @property
    def faces(self) -> tuple[float, float]:
        return float(self.wall - HALF_WIDTH), float(self.wall + HALF_WIDTH)

    @property
    def jambs(self) -> tuple[float, float]:
        return float(self.door - HALF_DOOR), float(self.door + HALF_DOOR)

    def _anywhere(self, keys: Tensor) -> Tensor:
        """Either room with even odds, then uniform within it, away from its walls."""
        room, u, v = uniform_at(keys, 3).unbind(-1)
        (left, right), low, high = self.faces, LOW + PADDING, HIGH - PADDING
        in_left = low + (left - PADDING - low) * u
        in_right = right + PADDING + (high - right - PADDING) * u
        return torch.stack((torch.where(room < 0.5, in_left, in_right), low + (high - low) * v), dim=-1)

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        move = SPEED * action
        axis, place, normal, low, high, within = _surfaces(self, state.device)  # 8 surfaces
        away = normal * (state[..., axis] - place)  # how far the dot is from each, on its free side
        into = -normal * move[..., axis]  # how far it moves towards each
        when = away / torch.where(into > 0, into, torch.inf)  # a fraction of the move
        meet = state[..., 1 - axis] + when.clamp(0.0, 1.0) * move[..., 1 - axis]
        on = ((meet >= low) & (meet <= high)) == within
        hit = on & (into > 0) & (away >= 0) & (away <= into)
        when, first = torch.where(hit, when, torch.inf).min(-1, keepdim=True)

        stopped = when <= 1.0
        at = state + torch.where(stopped, when, 0.0) * move
        off = place[first] + OFF * normal[first]
        landed = torch.where(axis[first] == torch.arange(2, device=state.device), off, at + OFF)
        return torch.where(stopped, self._keep_clear(landed, at), state + move)

    def _keep_clear(self, landed: Tensor, at: Tensor) -> Tensor:
        """Landing half a unit along one surface must not carry the dot into another one."""
        left, _ = self.faces
        x, y = landed[..., 0], landed[..., 1]
        x = torch.where((at[..., 0] <= left) & (x >= left), left - NEAR, x)
        x = torch.where(x >= HIGH, HIGH - NEAR, x)
        y = torch.where(y >= HIGH, HIGH - NEAR, y)
        return torch.stack((x, y), dim=-1)

    def _draw(self, size: int, device: torch.device) -> Renderer:
        return _WallFrames(self, size, device)

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        room = (state[..., 0] >= self.wall).to(torch.int64)
        return {"room": room, "x": state[..., 0], "y": state[..., 1]}


@functools.cache
def _surfaces(world: Wall, device: torch.device) -> tuple[Tensor, ...]:
    """One column per surface: the axis it is normal to, its place on that axis, the side that is free, and
    from where to where it runs on the other axis (`within`: it is there; otherwise: everywhere else)."""
    (left, right), (top, bottom) = world.faces, world.jambs
    everywhere = (-torch.inf, torch.inf, True)
    rows = [
        (1, LOW, 1.0, *everywhere),
        (1, HIGH, -1.0, *everywhere),
        (0, LOW, 1.0, *everywhere),
        (0, HIGH, -1.0, *everywhere),
        (0, left, -1.0, top, bottom, False),
        (0, right, 1.0, top, bottom, False),
        (1, top, 1.0, left, right, True),
        (1, bottom, -1.0, left, right, True),
    ]
    kinds = (torch.int64, *(torch.float32,) * 4, torch.bool)
    columns = zip(kinds, zip(*rows, strict=True), strict=True)
    return tuple(torch.tensor(column, dtype=kind, device=device) for kind, column in columns)


class _WallFrames:
    """(N, 2) positions -> uint8 (N, 3, size, size). Red never changes, and green equals blue."""

    def __init__(self, world: Wall, size: int, device: torch.device) -> None:
        self.size = size
        (left, right), (top, bottom) = world.faces, world.jambs
        free = torch.ones((FRAME, FRAME), device=device)
        free[:, int(left) : int(right) + 1] = 0
        free[int(top) : int(bottom) + 1, int(left) : int(right) + 1] = 1
        for line in (int(LOW), int(HIGH)):
            free[line, :] = free[:, line] = 0
        self.free = free
        self.red = self._resize(255 * free.expand(1, 1, FRAME, FRAME))[0, 0]
        self.grid = torch.arange(FRAME, dtype=torch.float32, device=device)

    def __call__(self, xy_N2: Tensor) -> Tensor:
        n = xy_N2.shape[0]
        out = torch.empty((n, 3, self.size, self.size), dtype=torch.uint8, device=xy_N2.device)
        out[:, 0] = self.red
        chunk = 64 if on_host(xy_N2) else max(1, n)
        for i in range(0, n, chunk):
            rows = slice(i, i + chunk)
            out[rows, 1:] = self._resize(self._green(xy_N2[rows].to(torch.float32)).unsqueeze(1))
        return out

    def _green(self, xy_N2: Tensor) -> Tensor:
        off = self.grid - xy_N2.unsqueeze(2)  # (N, 2, 65)
        line = torch.exp((off * off).neg_() / (2 * DOT * DOT))
        line = line / line.amax(2, keepdim=True)  # the maximum of a product is the product of the maxima
        dot = line[:, 1, :, None] * line[:, 0, None, :]
        return (255.0 - (255.0 * dot).floor_()).mul_(self.free)

    def _resize(self, image_N1HW: Tensor) -> Tensor:
        if self.size == FRAME:
            return image_N1HW.to(torch.uint8)
        shape = (self.size, self.size)
        image = F.interpolate(image_N1HW, shape, mode="bilinear", antialias=self.size < FRAME)
        return image.add_(0.5).clamp_(0, 255).to(torch.uint8)
