"""Who pushes the T when data are collected.

The pusher wants the T somewhere near the middle of the table at some angle, chooses a place on its outline where a push
would help (or, often enough, another), goes around to it, pushes, and after a while stops: to choose again, to wander
off, or to do nothing. Its numbers were set by the statistics of the public set (tests/data/test_pusht_data.py).

Everything is computed in float64 and by rows. N environments, K candidate contacts.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.worlds.base import key_at, uniform_at
from lpwm.worlds.pusht.physics import COG, RADIUS, REACH
from lpwm.worlds.pusht.world import air, from_block, to_block

TRAVEL, PUSH, WANDER = 0.0, 1.0, 2.0

# What is carried from step to step, one column each.
MODE, CONTACT, NORMAL, LEFT, PACE, WANT, NOISE, PLACE = 0, 1, 3, 5, 6, 7, 10, 12
WIDTH = 14


def _outline() -> tuple[Tensor, Tensor]:
    """Places on the T where one can push, and their outward normals, in its frame: (K, 2) each."""
    sides = [((x, 0.0), (0.0, -1.0)) for x in (-54.0, -36.0, -18.0, 0.0, 18.0, 36.0, 54.0)]
    sides += [((x, 30.0), (0.0, 1.0)) for x in (-52.0, -38.0, 38.0, 52.0)]
    sides += [((60.0 * s, 15.0), (1.0 * s, 0.0)) for s in (-1, 1)]
    sides += [((15.0 * s, y), (1.0 * s, 0.0)) for s in (-1, 1) for y in (60.0, 80.0, 100.0, 114.0)]
    sides += [((x, 120.0), (0.0, 1.0)) for x in (-8.0, 8.0)]
    places, normals = zip(*sides, strict=True)
    return torch.tensor(places, dtype=torch.float64), torch.tensor(normals, dtype=torch.float64)


@dataclass(frozen=True)
class Pusher:
    """Goes around the T, chooses a contact, pushes, sometimes leaves. `lengths` says how long its episodes are."""

    world: Any
    spread: float = 20.0  # px: deviation of the wanted place from the middle of the table
    temperature: float = 0.6  # of the choice of contacts
    purpose: float = 4.0  # how much the direction to the wanted place counts in that choice
    near: float = 100.0  # px: a contact this much further away scores 1 less
    heed: float = 0.25  # probability per step to notice that the T is beyond the wanted place
    leave: float = 0.2  # probability to wander after a push
    absence: tuple[float, float] = (40.0, 100.0)  # steps
    pushes: tuple[float, float] = (15.0, 60.0)  # steps
    pace: tuple[float, float] = (0.05, 0.25)  # |action| while pushing
    hurry: float = 0.4  # the largest |action| while traveling
    noise: float = 0.08  # deviation of the noise on an action, of correlation 0.5 from step to step
    least: int = 100  # steps of an episode
    most: int = 300

    def lengths(self, keys: Tensor) -> Tensor:
        """Steps of each episode, uniform in [least, most]: (N,) int64 -> (N,) int64."""
        u = uniform_at(key_at(keys, -2), 1)[:, 0].to(torch.float64)
        return self.least + (u * (self.most - self.least + 1)).long()

    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        s = state.to(torch.float64)
        carried = s.new_zeros((len(s), WIDTH))
        u = uniform_at(key_at(keys, -1), 2 + len(_PLACES)).to(torch.float64)
        carried[:, WANT : WANT + 3] = self._want(rng.normal_at(key_at(keys, -3), 2), u[:, 0])
        return self._choose(s, carried, u[:, 1:]).to(torch.float32)

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        s, c = state.to(torch.float64), carried.to(torch.float64)
        u = uniform_at(key_at(keys, t), 8 + len(_PLACES)).to(torch.float64)
        z = rng.normal_at(key_at(keys, t + (1 << 32)), 4).to(torch.float64)
        c[:, LEFT] -= 1
        c = self._arrive(s, c, u)
        c = self._finish(s, c, u, z)
        action = self._move(s, c)
        c[:, NOISE : NOISE + 2] = 0.5 * c[:, NOISE : NOISE + 2] + 0.75**0.5 * self.noise * z[:, 2:]
        resting = ((c[:, MODE] == WANDER) & (c[:, PACE] == 0)).unsqueeze(1)
        action = torch.where(resting, action, action + c[:, NOISE : NOISE + 2])
        return action.clamp(-1.0, 1.0).to(torch.float32), c.to(torch.float32)

    def _want(self, z: Tensor, u: Tensor) -> Tensor:
        """A wanted pose of the T: (N, 2) normals, (N,) uniforms -> (N, 3)."""
        place = (256 + self.spread * z.to(torch.float64)).clamp(140, 372)
        return torch.cat((place, (6.2831853 * u).unsqueeze(1)), dim=1)

    def _choose(self, s: Tensor, c: Tensor, u: Tensor) -> Tensor:
        """Set off to a contact: the best by what its push would do for the wanted pose, plus Gumbel noise."""
        K = len(_PLACES)
        each = s.unsqueeze(1)
        place, normal = _PLACES.to(s.device), _NORMALS.to(s.device)
        out_NK2 = from_block(normal.expand(len(s), K, 2), each)
        stand = s[:, None, 2:4] + from_block((place + normal * (RADIUS + _STAND_OFF)).expand(len(s), K, 2), each)
        toward = c[:, None, WANT : WANT + 2] - (s[:, None, 2:4] + from_block(place.new_tensor(COG), s).unsqueeze(1))
        far = torch.linalg.vector_norm(toward, dim=-1)
        helps = -(out_NK2 * toward).sum(-1) / 60 / (far / 60).clamp(min=1)
        lever = place - place.new_tensor(COG)
        torque = (lever[:, 1] * normal[:, 0] - lever[:, 0] * normal[:, 1]) / 50  # of a push along −normal
        # Near the wanted place turn the T as wanted; far from it push through the center, which does not turn it.
        close = 1 - (far / 100).clamp(max=1)
        turning = close * torch.sin(c[:, WANT + 2] - s[:, 4]).unsqueeze(1) * torque - (1 - close) * torque.abs()
        trip = torch.linalg.vector_norm(stand - s[:, None, :2], dim=-1) / self.near
        gumbel = -torch.log(-torch.log(u[:, :K].clamp(1e-7, 1 - 1e-7)))
        outside = ((stand < 20) | (stand > 492)).any(-1)
        score = self.purpose * helps + turning - trip + self.temperature * gumbel - 1e6 * outside
        best = score.argmax(1)
        c = c.clone()
        c[:, MODE] = TRAVEL
        c[:, CONTACT : CONTACT + 2] = place[best]
        c[:, NORMAL : NORMAL + 2] = normal[best]
        c[:, LEFT] = 40
        return c

    def _arrive(self, s: Tensor, c: Tensor, u: Tensor) -> Tensor:
        """Travelers at their place begin to push; those who wander nowhere any more choose."""
        stand = _stand(s, c)
        there = (c[:, MODE] == TRAVEL) & (torch.linalg.vector_norm(stand - s[:, :2], dim=-1) < 12)
        c = c.clone()
        c[there, MODE] = PUSH
        c[there, LEFT] = _between(self.pushes, u[there, 0]).floor()
        c[there, PACE] = _between(self.pace, u[there, 1])
        return c

    def _finish(self, s: Tensor, c: Tensor, u: Tensor, z: Tensor) -> Tensor:
        """Whoever has pushed enough, lost the T, or run out of time: leave it for a while, or choose again."""
        local = to_block(s[:, :2], s)
        touch = c[:, CONTACT : CONTACT + 2] + RADIUS * c[:, NORMAL : NORMAL + 2]
        lost = torch.linalg.vector_norm(local - touch, dim=-1) > 40
        toward = c[:, WANT : WANT + 2] - (s[:, 2:4] + from_block(s.new_tensor(COG).expand(len(s), 2), s))
        beyond = (toward * from_block(-c[:, NORMAL : NORMAL + 2], s)).sum(-1) < -25
        over = c[:, LEFT] <= 0
        pushed = (c[:, MODE] == PUSH) & (lost | over | (beyond & (u[:, 1] < self.heed)))
        arrived = torch.linalg.vector_norm(toward, dim=-1) < 20
        fresh = (arrived & pushed).unsqueeze(1)
        c = c.clone()
        c[:, WANT : WANT + 3] = torch.where(fresh, self._want(z[:, :2], u[:, 2]), c[:, WANT : WANT + 3])
        away = pushed & (u[:, 3] < self.leave)
        again = (pushed & ~away) | (over & (c[:, MODE] != PUSH))
        c = torch.where(again.unsqueeze(1), self._choose(s, c, u[:, 8:]), c)
        c[away, MODE] = WANDER
        c[away, LEFT] = _between(self.absence, u[away, 4]).floor()
        c[away, PACE] = torch.where(u[away, 5] < 0.2, 0.0, 0.1 + 0.4 * u[away, 5])
        here = torch.linalg.vector_norm(c[:, PLACE : PLACE + 2] - s[:, :2], dim=-1) < 20
        there = away | (here & (c[:, MODE] == WANDER))
        c[there, PLACE : PLACE + 2] = (25 + 462 * u[:, 6:8])[there]
        return c

    def _move(self, s: Tensor, c: Tensor) -> Tensor:
        """The action of each mode, without noise: (N, 2)."""
        agent = s[:, :2]
        wandering = (c[:, MODE] == WANDER).unsqueeze(1)
        end = torch.where(wandering, c[:, PLACE : PLACE + 2], _stand(s, c))
        step = (_around(s, end) - agent) / REACH
        most = torch.where(wandering[:, 0], c[:, PACE], torch.full_like(c[:, PACE], self.hurry))
        size = torch.linalg.vector_norm(step, dim=-1).clamp(min=1e-9)
        travel = step * (torch.minimum(size, most) / size).unsqueeze(1)
        normal = from_block(c[:, NORMAL : NORMAL + 2], s)
        place = s[:, 2:4] + from_block(c[:, CONTACT : CONTACT + 2], s)
        aside = place - agent
        aside = aside - (aside * normal).sum(-1, keepdim=True) * normal
        push = -normal * c[:, PACE : PACE + 1] + aside / REACH
        action = torch.where((c[:, MODE] == PUSH).unsqueeze(1), push, travel)
        return ((agent + REACH * action).clamp(16, 496) - agent) / REACH  # nothing else stops it at a wall


_PLACES, _NORMALS = _outline()
_STAND_OFF = 5.0  # px of air before a push begins
_RING = 118.0  # px: the circle about the center of gravity on which the disc goes around


def _between(bounds: tuple[float, float], u: Tensor) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * u


def _stand(s: Tensor, c: Tensor) -> Tensor:
    """Where to stand before the push: (N, 2)."""
    local = c[:, CONTACT : CONTACT + 2] + c[:, NORMAL : NORMAL + 2] * (RADIUS + _STAND_OFF)
    return s[:, 2:4] + from_block(local, s)


def _around(s: Tensor, end: Tensor) -> Tensor:
    """Where to head for `end` (N, 2): straight there where the path is free of the T, else along the ring."""
    agent = s[:, :2]
    part = torch.linspace(0.15, 1.0, 6, dtype=s.dtype, device=s.device)[:, None]
    line = s.unsqueeze(1).repeat(1, 6, 1)
    line[..., :2] = agent.unsqueeze(1) + part * (end - agent).unsqueeze(1)
    free = (air(line) > 2.0).all(-1, keepdim=True)
    center = s[:, 2:4] + from_block(s.new_tensor(COG).expand(len(s), 2), s)
    r, to = agent - center, end - center
    r = r / torch.linalg.vector_norm(r, dim=-1, keepdim=True).clamp(min=1e-9)
    side = torch.where(r[:, 0] * to[:, 1] - r[:, 1] * to[:, 0] < 0, -1.0, 1.0).unsqueeze(1)
    across = side * torch.stack((-r[:, 1], r[:, 0]), dim=-1)
    ring = (center + _RING * (0.8 * r + 0.6 * across)).clamp(20, 492)
    return torch.where(free, end, ring)
