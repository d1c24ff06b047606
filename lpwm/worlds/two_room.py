"""TwoRoom: a room cut by a wall with doors.

    p' = collide(p, clamp(p + 5·clip(a, ±1), 21, 203))

The dot of radius 7 may not enter the wall's band [100, 124] unless its new y lies within a door (±14, with 1.75 of
tolerance); otherwise its x is put back half a pixel before the band, on the side it came from. Equal, bit for bit on a
CPU, to stable-worldmodel's environment, whose starts avoid the band and whose goals do not. State: the dot's x and y in
pixels of the 224² frame.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.worlds.base import Key, Renderer, row_keys, uniform_at
from lpwm.worlds.piecewise import BORDER, FRAME, RADIUS, SPEED, START_HIGH, START_LOW, Room, dot_renderer, draw_border

CENTER = 112.0
DOOR_TOLERANCE = 1.75
BACK_OFF = 0.5


@dataclass(frozen=True)
class TwoRoom(Room):
    """Door centers (y, in pixels), half the height of a door, and the thickness of the wall."""

    name, where, policy = "two_room", "room", "expert"
    doors: tuple[int, ...] = (49,)
    door_half: int = 14
    thickness: int = 10

    def __post_init__(self) -> None:
        if not self.doors or not all(isinstance(d, int) and 0 <= d < FRAME for d in self.doors):
            raise UserError(f"TwoRoom needs door centers within 0…{FRAME - 1}, such as (49,), not {self.doors}.")
        if not 8 <= self.door_half <= 21:
            raise UserError(f"TwoRoom needs a door_half of 8 to 21 pixels, not {self.door_half}.")
        if not 7 <= self.thickness <= 41:
            raise UserError(f"TwoRoom needs a wall thickness of 7 to 41 pixels, not {self.thickness}.")

    @property
    def band(self) -> tuple[float, float]:
        """The x between which the dot would touch the wall."""
        reach = self.thickness // 2 + RADIUS
        return CENTER - reach, CENTER + reach

    def sample_state(self, n: int, key: Key, start: int = 0) -> Tensor:
        left, right = self.band
        u = uniform_at(row_keys((*key, "state"), n, start), 2)
        x = START_LOW + (START_HIGH - START_LOW - (right - left)) * u[:, 0]
        x = torch.where(x < left, x, x + (right - left))  # the band is cut out and the rest drawn together
        y = START_LOW + (START_HIGH - START_LOW) * u[:, 1]
        return torch.stack((x, y), dim=-1)

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        moved = state + action.clamp(-1.0, 1.0) * SPEED
        moved = moved.clamp(BORDER + RADIUS, FRAME - BORDER - RADIUS)
        left, right = self.band
        x, y = moved[..., 0], moved[..., 1]
        shut = ~self.in_door(y)
        from_left = state[..., 0] < CENTER
        x = torch.where(shut & from_left & (x > left), left - BACK_OFF, x)
        x = torch.where(shut & ~from_left & (x < right), right + BACK_OFF, x)
        return torch.stack((x, y), dim=-1)

    def in_door(self, y: Tensor) -> Tensor:
        half = self.door_half + DOOR_TOLERANCE
        doors = [(y >= center - half) & (y <= center + half) for center in self.doors]
        return torch.stack(doors).any(0)

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        room = (state[..., 0] >= CENTER).to(torch.int64)
        return {"room": room, "x": state[..., 0], "y": state[..., 1]}

    def _draw(self, size: int, device: torch.device) -> Renderer:
        image = torch.full((3, FRAME, FRAME), 255, dtype=torch.uint8)
        columns = slice(int(CENTER) - self.thickness // 2, int(CENTER) + self.thickness // 2 + 1)
        image[:, :, columns] = 0
        for center in self.doors:
            image[:, max(0, center - self.door_half) : center + self.door_half + 1, columns] = 255
        draw_border(image)
        return dot_renderer(image.to(device), size)
