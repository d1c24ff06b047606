"""Who moves the dot when data are collected.

A policy is batched and keyed: row i's action at step t is a function of (its key, t) and of what row i has
seen, never of the batch around it. What a policy carries from step to step is a tensor with one row per
environment, so that it can be sliced, stored and resumed.

N environments, S state, A action, M what the policy carries (0 for most).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lpwm import rng
from lpwm.errors import UserError, choose, nearest
from lpwm.worlds.base import TensorWorld, uniform_at
from lpwm.worlds.piecewise import SPEED, Piecewise


@runtime_checkable
class Policy(Protocol):
    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        """What is carried at the start of an episode: (N, S), (N, S), (N,) int64 -> (N, M) float32."""
        ...

    def act(
        self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """(N, S), (N, S), (N, M), (N,) int64, step -> actions (N, A) within bounds, carried (N, M)."""
        ...


class _Forgetful:
    """A policy that carries nothing."""

    def begin(self, state: Tensor, goal: Tensor, keys: Tensor) -> Tensor:
        return state.new_zeros((state.shape[0], 0))


def _at(keys: Tensor, t: int) -> Tensor:
    """The rows' keys at step t."""
    return rng.fold(keys, torch.full_like(keys, t))


@dataclass(frozen=True)
class Random(_Forgetful):
    """Actions uniform within the bounds of the world."""

    world: TensorWorld

    def act(
        self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        spec = self.world.spec
        low, high = state.new_tensor(spec.action_low), state.new_tensor(spec.action_high)
        return low + (high - low) * uniform_at(_at(keys, t), spec.action_dim), carried


@dataclass(frozen=True)
class PiecewiseExpert(_Forgetful):
    """a = clip((goal − p − b[zone(p)])/5 + noise·ε, ±1): the motion equation, inverted."""

    world: Piecewise
    noise: float = 0.0

    def act(
        self, state: Tensor, goal: Tensor, carried: Tensor, keys: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        action = (goal - state - self.world.bias(state)) / SPEED
        action = action + self.noise * rng.normal_at(_at(keys, t), 2)
        return action.clamp(-1.0, 1.0), carried


# world -> name -> what builds the policy from the world
POLICIES: dict[str, dict[str, Callable[..., Policy]]] = {
    "piecewise": {"random": Random, "expert": PiecewiseExpert},
}


def make_policy(world: TensorWorld, name: str | None = None, **options: Any) -> Policy:
    """A policy of this world by name; without one, the policy its data are made with."""
    spec = world.spec
    build = choose(f"policy of {spec.name}", name or spec.policy, POLICIES[spec.name])
    valid = [p for p in inspect.signature(build).parameters if p != "world"]
    for option in options:
        if option not in valid:
            hint = nearest(option, valid) if valid else "it has none"
            raise UserError(f"policy {name or spec.policy!r} has no option {option!r}: {hint}.")
    return build(world, **options)


def rollout(
    world: TensorWorld, policy: Policy, state: Tensor, goal: Tensor, keys: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Follow a policy: (N, S), (N, S), (N,) -> states (N, steps+1, S), actions (N, steps, A)."""
    states = state.new_empty((state.shape[0], steps + 1, state.shape[1]))
    actions = state.new_empty((state.shape[0], steps, world.spec.action_dim))
    states[:, 0] = state
    carried = policy.begin(state, goal, keys)
    for t in range(steps):
        actions[:, t], carried = policy.act(states[:, t], goal, carried, keys, t)
        states[:, t + 1] = world.step(states[:, t], actions[:, t])
    return states, actions
