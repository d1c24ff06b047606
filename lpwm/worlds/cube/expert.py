"""The expert of Cube: takes the cube to a target, lets go, flies off, and gets a new target.

It is Markov: what it does depends on the state and its target alone. As ogbench's oracle of that name describes it,
until the cube is within 2 cm of its target:
  far       the cube is more than 4 cm aside of the effector: fly to 18 cm above it, open, turning with it;
  near      less, but more than 2 cm away: go to it, open;
  loose     there, without a grip (> 0.5): close;
  low       gripped, not yet 16 cm up, and not above the target (4 cm aside): up;
  high      gripped, up, and not above the target: fly to 18 cm above the target;
  otherwise go to the target;
and then
  done      still touching (grip ≥ 0.1): open;
  leaving   less than 16 cm up: up, open;
  gone      fly to a resting place; there (4 cm), or 200 steps after the target was given, a new target is drawn.
The move is 5 × the vector to where it goes, lengthened to 0.4 m when shorter, so that it nearly always goes at full
speed; the turn is 3 × the angle, the shortest of the cube's four. Everything is clipped to ±1.

Noise (method §6): ξ ~ U(0, 0.1) per episode; normal with standard deviations ξ, ξ, ξ, 3ξ, 10ξ, then clipped again.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.worlds.base import key_at, uniform_at
from lpwm.worlds.cube.sim import EFFECTOR, GRIP, YAW
from lpwm.worlds.cube.world import ARM_HIGH, ARM_LOW, CUBE_AT, CUBE_HIGH, CUBE_LOW, Cube, cube_yaw

ABOVE, UP = 0.18, 0.16  # meters
GAIN, GAIN_YAW, LEAST = 5.0, 3.0, 0.4
PATIENCE = 200  # steps with one target


def _shortest(effector: Tensor, cube: Tensor) -> Tensor:
    """The cube's yaw plus the multiple of 90°, up to a full turn in each direction, nearest the effector's."""
    turns = torch.arange(-4, 5, dtype=cube.dtype, device=cube.device) * (math.pi / 2)
    every = cube.unsqueeze(-1) + turns
    best = (effector.unsqueeze(-1) - every).abs().argmin(-1, keepdim=True)
    return every.gather(-1, best).squeeze(-1)


def _near(a: Tensor, b: Tensor, within: float) -> Tensor:
    return torch.linalg.vector_norm(a - b, dim=-1) <= within


def decide(state: Tensor, target: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """(N, S), target and resting place (N, 4) as xyz and yaw -> actions (N, 5) without noise, and who is done."""
    state = state.double()
    at, yaw, grip, cube = state[:, EFFECTOR], state[:, YAW], state[:, GRIP], state[:, CUBE_AT]
    cube_turn, target_turn = (_shortest(yaw, y) for y in (cube_yaw(state), target[:, 3]))
    up = at[:, 2] > UP
    reached = _near(cube, target[:, :3], 0.02)
    above_target = _near(cube[:, :2], target[:, :2], 0.04)
    far = ~_near(cube[:, :2], at[:, :2], 0.04)
    near = ~_near(cube, at, 0.02)
    loose = ~(grip > 0.5)

    def over(place: Tensor, height: float) -> Tensor:
        return torch.cat((place[:, :2], torch.full_like(place[:, 2:3], height)), -1)

    lift = torch.tensor([0.0, 0.0, ABOVE], dtype=at.dtype, device=at.device)
    open_, close = torch.tensor(-1.0, dtype=at.dtype), torch.tensor(1.0, dtype=at.dtype)
    to_cube, to_target, to_rest = cube_turn - yaw, target_turn - cube_turn, rest[:, 3] - yaw
    phases = (  # when, where to, the turn, the gripper: the last that applies decides
        (torch.ones_like(far), target[:, :3], to_target, close),
        (up & ~above_target, target[:, :3] + lift, to_target, close),
        (~up & ~above_target, over(cube, 2 * ABOVE), to_target, close),
        (loose, cube, to_cube, close),
        (near, cube, to_cube, open_),
        (far, cube + lift, to_cube, open_),
        (reached, rest[:, :3], to_rest, open_),
        (reached & ~up, over(cube, 2 * UP), to_rest, open_),
        (reached & ~(grip < 0.1), target[:, :3], to_target, open_),
    )
    goal, turn, hand = torch.zeros_like(at), torch.zeros_like(yaw), torch.zeros_like(yaw)
    for when, where, angle, fingers in phases:
        goal = torch.where(when.unsqueeze(-1), where.to(at.dtype), goal)
        turn, hand = torch.where(when, angle, turn), torch.where(when, fingers, hand)
    move = goal - at
    length = torch.linalg.vector_norm(move, dim=-1, keepdim=True)
    move = torch.where(length >= LEAST, move, move / (length + 1e-6) * LEAST)
    action = torch.cat((GAIN * move, GAIN_YAW * turn.unsqueeze(-1), hand.unsqueeze(-1)), -1)
    return action.clamp(-1.0, 1.0), reached & _near(rest[:, :3], at, 0.04)


@dataclass(frozen=True)
class CubeExpert:
    """The first target is the goal's cube, the first resting place the goal's effector; later ones are drawn."""

    world: Cube
    noise: float = 0.1  # the largest ξ

    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        xi = self.noise * uniform_at(key_at(keys, -1), 1)
        first = (goal[:, CUBE_AT], cube_yaw(goal).unsqueeze(-1), goal[:, EFFECTOR], goal[:, YAW].unsqueeze(-1))
        return torch.cat((*first, xi, torch.zeros(len(xi), 2)), -1)

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        action, done = decide(state, carried[:, :4], carried[:, 4:8])
        spread = torch.tensor([1.0, 1.0, 1.0, 3.0, 10.0])
        noise = carried[:, 8:9] * spread * rng.normal_at(key_at(keys, t), 5)
        action = (action.float() + noise).clamp(-1.0, 1.0)
        age, count = carried[:, 9] + 1, carried[:, 10]
        over = done | (age >= PATIENCE)
        drawn = self._drawn(keys, count)
        targets = torch.where(over.unsqueeze(-1), drawn, carried[:, :8])
        ages = torch.stack((torch.where(over, 0.0, age), torch.where(over, count + 1, count)), -1)
        return action, torch.cat((targets, carried[:, 8:9], ages), -1)

    def _drawn(self, keys: Tensor, count: Tensor) -> Tensor:
        """Target number count+1 and its resting place, (N, 8)."""
        u = uniform_at(rng.fold(key_at(keys, -2), count.long()), 7)
        low = u.new_tensor([*CUBE_LOW, 0.0, *ARM_LOW, -math.pi])
        high = u.new_tensor([*CUBE_HIGH, 2 * math.pi, *ARM_HIGH, math.pi])
        x = low + (high - low) * u
        return torch.cat((x[:, :2], torch.full_like(x[:, :1], 0.02), x[:, 2:]), -1)
