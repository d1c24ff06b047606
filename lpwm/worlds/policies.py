"""Who moves the dot when data are collected.

A policy is batched and keyed: row i's action at step t is a function of (its key, t) and of what row i has seen, never
of the batch around it. What it carries from step to step is a tensor with one row per environment.

N environments, S state, A action, M what the policy carries (0 for most).
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.errors import UserError, choose, nearest
from lpwm.core.plugins import named
from lpwm.worlds.base import SimWorld, World, key_at, uniform_at
from lpwm.worlds.cube.expert import CubeExpert
from lpwm.worlds.piecewise import SPEED, Piecewise
from lpwm.worlds.pusht.policy import Pusher
from lpwm.worlds.two_room import CENTER, TwoRoom
from lpwm.worlds.wall import STEP_MAX, Wall


@runtime_checkable
class Policy(Protocol):
    """One that knows how long its episodes are also has `lengths(keys)`: (N,) int64 -> steps (N,) int64."""

    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        """What is carried at the start of an episode: (N, S), (N, S), (N,) int64 -> (N, M) float32."""

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """(N, S), (N, S), (N, M), (N,) int64, step -> actions (N, A) within bounds, carried (N, M)."""


@dataclass(frozen=True)
class _Forgetful:
    """A policy that carries nothing."""

    world: World

    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        return state.new_zeros((state.shape[0], 0))


@dataclass(frozen=True)
class Random(_Forgetful):
    """Actions uniform within the bounds of the world."""

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        spec = self.world.spec
        low, high = state.new_tensor(spec.action_low), state.new_tensor(spec.action_high)
        return low + (high - low) * uniform_at(key_at(keys, t), spec.action_dim), carried


@dataclass(frozen=True)
class Still(_Forgetful):
    """The action nearest zero."""

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        spec = self.world.spec
        low, high = state.new_tensor(spec.action_low), state.new_tensor(spec.action_high)
        return state.new_zeros(len(state), spec.action_dim).clamp(low, high), carried


@dataclass(frozen=True)
class PiecewiseExpert(_Forgetful):
    """a = clip((goal − p − b[zone(p)])/5 + noise·ε, ±1): the motion equation, inverted."""

    world: Piecewise
    noise: float = 0.0

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        action = (goal - state - self.world.bias(state)) / SPEED
        action = action + self.noise * rng.normal_at(key_at(keys, t), 2)
        return action.clamp(-1.0, 1.0), carried


@dataclass(frozen=True)
class TwoRoomExpert(_Forgetful):
    """Straight to the goal, or first to the nearest door while the goal is in the other room: a unit step in
    that direction plus noise·ε, clipped to ±1. The data of stable-worldmodel's users have noise 2."""

    world: TwoRoom
    noise: float = 2.0
    reached: float = 10.5  # this near the door's center, the goal is next

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        doors = state.new_tensor([(CENTER, float(y)) for y in self.world.doors])  # (doors, 2)
        away, nearest_door = torch.linalg.vector_norm(doors - state.unsqueeze(1), dim=-1).min(1)
        other_room = (state[:, 0] > CENTER) != (goal[:, 0] > CENTER)
        by_door = (other_room & (away > self.reached)).unsqueeze(1)
        toward = torch.where(by_door, doors[nearest_door], goal) - state
        toward = toward / torch.linalg.vector_norm(toward, dim=-1, keepdim=True).clamp(min=1e-8)
        return (toward + self.noise * rng.normal_at(key_at(keys, t), 2)).clamp(-1.0, 1.0), carried


@dataclass(frozen=True)
class WallDrift:
    """A walk that keeps its heading: the first is uniform, and each step adds a von Mises angle to it. Step lengths are
    normal, of mean 1 and deviation 0.4, restricted to [0.2, 1.8]. Carried: the heading (N, 1)."""

    world: Wall
    concentration: float = 5.0

    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        return uniform_at(key_at(keys, -1), 1) * (2 * math.pi)

    def act(self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int) -> tuple[Tensor, Tensor]:
        u, v = uniform_at(key_at(keys, t), 2).split(1, dim=-1)
        heading = carried if t == 0 else carried + _von_mises(u, self.concentration)
        two_sd = 0.4 * math.sqrt(2) * torch.erfinv((2 * v - 1) * math.erf(math.sqrt(2)))
        step = (1.0 + two_sd).clamp(0.2, STEP_MAX)
        return step * torch.cat((torch.cos(heading), torch.sin(heading)), dim=-1), heading


def _von_mises(u: Tensor, concentration: float) -> Tensor:
    """The angle in [−π, π] below which a von Mises variable falls with probability u, any shape."""
    angle, below = (x.to(u.device) for x in _von_mises_table(concentration))
    i = torch.searchsorted(below, u.contiguous(), right=True).clamp(1, len(below) - 1)
    part = (u - below[i - 1]) / (below[i] - below[i - 1]).clamp(min=1e-12)
    return torch.lerp(angle[i - 1], angle[i], part.clamp(0.0, 1.0))


@functools.cache
def _von_mises_table(concentration: float, cells: int = 8192) -> tuple[Tensor, Tensor]:
    """Angles −π…π and the probability below each: the density e^{κ cos θ}, summed by trapezia."""
    angle = torch.linspace(-math.pi, math.pi, cells + 1, dtype=torch.float64)
    density = torch.exp(concentration * (torch.cos(angle) - 1))
    below = torch.cat((torch.zeros(1, dtype=torch.float64), torch.cumsum(density[1:] + density[:-1], 0)))
    return angle.to(torch.float32), (below / below[-1]).to(torch.float32)


# world -> name -> what builds the policy from the world. A world from outside brings its own as `policies`.
POLICIES: dict[str, dict[str, Callable[..., Policy]]] = {
    "cube": {"random": Random, "expert": CubeExpert},
    "piecewise": {"random": Random, "expert": PiecewiseExpert},
    "pusht": {"random": Random, "pusher": Pusher},
    "two_room": {"random": Random, "expert": TwoRoomExpert},
    "wall": {"random": Random, "drift": WallDrift},
}


def make_policy(world: World, name: str | None = None, **options: Any) -> Policy:
    """A policy of this world by name; without one, the policy its data are made with."""
    spec = world.spec
    if name is not None and ":" in name:  # a function of the user's: of the world, or as the world wants it
        function = named(name, "policy")
        return getattr(world, "policy_from", lambda build: build(world, **options))(function)
    known = {**POLICIES.get(spec.name, {"random": Random}), **getattr(world, "policies", {})}
    build = choose(f"policy of {spec.name}", name or spec.policy, known)
    valid = [p for p in inspect.signature(build).parameters if p != "world"]
    for option in options:
        if option not in valid:
            hint = nearest(option, valid) if valid else "it has none"
            raise UserError(f"policy {name or spec.policy!r} has no option {option!r}: {hint}.")
    return build(world, **options)


def rollout(
    world: World, policy: Policy, state: Tensor, goal: Tensor, keys: Tensor, steps: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Follow a policy: (N, S), (N, S), (N,) -> states (N, T+1, S), actions (N, T, A).

    steps: T for all, or each row's own (N,), of which T is the largest: beyond its own a row is NaN. A world
    with hidden state is opened in this process.
    """
    n, own = len(state), torch.as_tensor(steps).expand(len(state))
    most = int(own.max())
    states = state.new_full((n, most + 1, state.shape[1]), torch.nan)
    actions = state.new_full((n, most, world.spec.action_dim), torch.nan)
    states[:, 0] = state
    carried = policy.begin(state, goal, keys)
    live = world.open(state) if isinstance(world, SimWorld) else None
    rows = torch.arange(n, device=state.device)
    for t in range(most):
        going = (own > t).to(state.device)
        if not going[rows].all():  # some are done: the others need not wait for them
            carried = carried[going[rows]]
            rows = going.nonzero()[:, 0]
        now = states[rows, t]
        action, carried = policy.act(now, goal[rows], carried, keys[rows], t)
        actions[rows, t] = action
        if isinstance(world, SimWorld):
            assert live is not None
            states[rows, t + 1] = live.step(action, rows)
        else:
            states[rows, t + 1] = world.step(now, action)
    if live is not None:
        live.close()
    return states, actions
