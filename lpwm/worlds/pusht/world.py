"""PushT: a disc pushes a T about a walled table.

State: pusher x, y, the T's origin x, y and angle, the pusher's velocity (7). Action: the pusher's
target relative to where it is, in units of 100 px. The physics is in `physics`, the picture in `render`, the policy
that makes data in `policy`.

N states, S = 7.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.worlds.base import Key, Renderer, WorldSpec, row_keys, uniform_at
from lpwm.worlds.pool import Live, Snapshot, open_live
from lpwm.worlds.pusht.physics import BAR, RADIUS, SIDE, STEM, WALL_RADIUS, WALLS, Simulator

ANGLE_WITHIN = math.pi / 9
WITHIN = 20.0  # px, over (pusher x, y, T x, y)
TOUCHING = 0.5  # px of air that still count as contact
CLEAR = 1.0  # px of air around what starts
PUSHER = 0.1  # weight of the pusher's place in `plan_cost`


@dataclass(frozen=True)
class PushT:
    degrees_of_freedom: ClassVar[int] = 4  # agent and block; the angle shows late and in few dimensions

    @property
    def spec(self) -> WorldSpec:
        names = ("agent_x", "agent_y", "block_x", "block_y", "angle", "velocity_x", "velocity_y")
        return WorldSpec(
            name="pusht",
            options={},
            state_names=names,
            action_names=("x", "y"),
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            frame=224,
            episode=200,
            proprio=(0, 1, 5, 6),
            factors=("contact", "gap"),
            policy="pusher",
            # Nothing stops the pusher at a wall, so its bounds are wide.
            state_low=(-SIDE, -SIDE, 0.0, 0.0, 0.0, -SIDE, -SIDE),
            state_high=(2 * SIDE, 2 * SIDE, SIDE, SIDE, math.nextafter(2 * math.pi, 7), SIDE, SIDE),
            success_within=WITHIN,
        )

    def sample_state(self, n: int, key: Key, start: int = 0) -> Tensor:
        """At rest, nothing touching: the pusher uniform in [50, 450]², the T in [100, 400]² at any angle. The T is more
        often near the middle, as in the public data: each coordinate is the mean of two uniforms."""
        keys = row_keys((*key, "pusht"), n, start)
        state = _candidate(keys, 0)
        low, high = WALLS[0] + WALL_RADIUS + CLEAR, WALLS[1] - WALL_RADIUS - CLEAR
        for attempt in range(1, 100):
            at = corners(state)
            bad = (air(state) <= CLEAR) | ~((at > low) & (at < high)).flatten(-2).all(-1)
            if not bad.any():
                break
            state[bad] = _candidate(keys[bad], attempt)
        return state

    def sample_goal(self, n: int, key: Key, start: int = 0) -> Tensor:
        return self.sample_state(n, (*key, "goal"), start)

    def open(self, states: Any, workers: int | None = 1) -> Live:
        """Simulators at rest but for the pusher's velocity, from states (N, 7); or exactly as in a snapshot. A bare
        state lacks the T's velocity and the contact's impulses."""
        if not isinstance(states, Snapshot):
            states = torch.as_tensor(states)
            if states.ndim != 2 or states.shape[1] != 7:
                raise UserError(f"PushT opens at states of shape (N, 7), not {tuple(states.shape)}.")
        return open_live(Simulator, states, workers)

    def render(self, state: Tensor, size: int | None = None) -> Tensor:
        return self.renderer(size, state.device)(state)

    def renderer(self, size: int | None = None, device: torch.device | str = "cpu") -> Renderer:
        from lpwm.worlds.pusht.render import make_renderer

        return make_renderer(self.spec.frame if size is None else size, device)

    def distance(self, state: Tensor, goal: Tensor) -> Tensor:
        """‖Δ(pusher x, y, T x, y)‖ in px of 512: what success bounds, with the angle."""
        return torch.linalg.vector_norm((state - goal)[..., :4], dim=-1)

    def success(self, state: Tensor, goal: Tensor) -> Tensor:
        return (self.distance(state, goal) < WITHIN) & (turn(state, goal) < ANGLE_WITHIN)

    def plan_cost(self, state: Tensor, goal: Tensor) -> Tensor:
        """What a planner on the true simulator minimizes: ‖ΔT‖² + PUSHER·‖Δpusher‖² + (Δangle·20 px/(π/9))²."""
        away = (state - goal).square()
        angle = turn(state, goal) * (WITHIN / ANGLE_WITHIN)
        return away[..., 2:4].sum(-1) + PUSHER * away[..., :2].sum(-1) + angle.square()

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        """contact: whether the disc touches the T; gap: the air between them in px, negative where they overlap."""
        gap = air(state)
        return {"contact": (gap < TOUCHING).long(), "gap": gap}

    def goal_groups(self, start: Tensor, goal: Tensor) -> dict[str, Tensor]:
        """Goals to be reported apart: those that the pusher could reach alone, and those that need a push."""
        moved = block_moved(start, goal)
        return {"block moved": moved, "block still": ~moved}


def turn(state: Tensor, goal: Tensor) -> Tensor:
    """The angle between the two Ts, in [0, π]: (…, 7), (…, 7) -> (…)."""
    difference = (state[..., 4] - goal[..., 4]).abs() % (2 * math.pi)
    return torch.minimum(difference, 2 * math.pi - difference)


def block_moved(start: Tensor, goal: Tensor) -> Tensor:
    """Whether the T must move: with the pusher in its place, the start would not count as success."""
    away = torch.linalg.vector_norm((start - goal)[..., 2:4], dim=-1)
    return (away >= WITHIN) | (turn(start, goal) >= ANGLE_WITHIN)


def to_block(point: Tensor, state: Tensor) -> Tensor:
    """Points (…, 2) of the table in the frame of the T of states (…, 7)."""
    c, s = torch.cos(state[..., 4]), torch.sin(state[..., 4])
    x, y = (point - state[..., 2:4]).unbind(-1)
    return torch.stack((c * x + s * y, c * y - s * x), dim=-1)


def from_block(vector: Tensor, state: Tensor) -> Tensor:
    """Directions (…, 2) of the T's frame as directions on the table; add `state[..., 2:4]` for points."""
    c, s = torch.cos(state[..., 4]), torch.sin(state[..., 4])
    x, y = vector.unbind(-1)
    return torch.stack((c * x - s * y, s * x + c * y), dim=-1)


def air(state: Tensor) -> Tensor:
    """The signed distance from the disc to the T, (…, 7) -> (…)."""
    point = to_block(state[..., :2], state)
    return torch.minimum(_to_box(point, BAR), _to_box(point, STEM)) - RADIUS


def _to_box(point: Tensor, box: tuple[float, float, float, float]) -> Tensor:
    """Signed distance from points (…, 2) to a box."""
    low, high = point.new_tensor(box[:2]), point.new_tensor(box[2:])
    beyond = (point - (low + high) / 2).abs() - (high - low) / 2
    return torch.linalg.vector_norm(beyond.clamp(min=0), dim=-1) + beyond.amax(-1).clamp(max=0)


def corners(state: Tensor) -> Tensor:
    """The eight corners of the two boxes on the table: (…, 7) -> (…, 8, 2)."""
    local = [(x, y) for a, b, c, d in (BAR, STEM) for x, y in ((a, b), (c, b), (c, d), (a, d))]
    state = state.unsqueeze(-2)
    return from_block(state.new_tensor(local), state) + state[..., 2:4]


def _candidate(keys: Tensor, attempt: int) -> Tensor:
    u = uniform_at(rng.fold(keys, torch.full_like(keys, attempt)), 7)
    state = torch.zeros((len(keys), 7))
    state[:, :2] = 50 + 400 * u[:, :2]
    state[:, 2:4] = 100 + 150 * (u[:, 2:4] + u[:, 5:7])
    state[:, 4] = 2 * math.pi * u[:, 4]
    return state
