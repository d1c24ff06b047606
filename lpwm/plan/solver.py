"""The contract of every planner, and the loop shared by those that sample.

`solve(problem, start, seed) -> Plan`. Noise is a pure function of (seed, environment, iteration). Nothing
inside the iterations waits for the device: non-finite costs count as +inf and are never elites, and one
look at the end raises if an environment had no finite candidate at all.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.rng import fold, normal_at
from lpwm.plan.graph import Graphs
from lpwm.plan.problem import Problem

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """actions (B, H, A) z-scored; costs (B,) of those actions (`Problem.value`); info: tensors (B, …)."""

    actions_BHA: Tensor
    costs_B: Tensor
    info: dict[str, Tensor] = field(default_factory=dict)


class Solver(ABC):
    """A planner. `candidates` per environment are alive at once, `graph` of them with their gradients."""

    candidates: int = 1
    graph: bool = False

    @abstractmethod
    def solve(self, problem: Problem, start: Tensor | None = None, seed: int = 0, compile: bool = False) -> Plan:
        """`start` (B, H, A) is a warm start; `compile` takes effect on CUDA, where a planner can use it."""


def start_mean(problem: Problem, start: Tensor | None) -> Tensor:
    """The mean to start from, (B, H, A): the warm start, or zero."""
    shape = (problem.batch, problem.horizon, problem.action_dim)
    if start is None:
        return torch.zeros(shape, device=problem.device, dtype=problem.dtype)
    if start.shape != shape:
        raise UserError(f"the warm start has shape {tuple(start.shape)}: this problem needs {shape}.")
    return start.to(problem.device, problem.dtype)


def noise(problem: Problem, key_B: Tensor, iteration: Tensor, samples: int) -> Tensor:
    """Standard normals (B, S, H, A): element i of environment e depends on (seed, e, iteration, i) alone."""
    shape = (problem.batch, samples, problem.horizon, problem.action_dim)
    return normal_at(fold(key_B, iteration), samples * shape[2] * shape[3], problem.dtype).view(shape)


def finite_or_inf(cost: Tensor) -> Tensor:
    return torch.where(cost.isfinite(), cost, torch.inf)


def take(actions_BSHA: Tensor, index_BK: Tensor) -> Tensor:
    """The chosen candidates, (B, K, H, A)."""
    return actions_BSHA.gather(1, index_BK[:, :, None, None].expand(-1, -1, *actions_BSHA.shape[2:]))


def raise_if_dead(alive_B: Tensor, problem: Problem) -> None:
    """The one look at the device, after the last iteration."""
    dead = problem.env_ids[~alive_B].tolist()
    if dead:
        raise UserError(
            f"every candidate plan of {len(dead)} of {problem.batch} environments (first: {dead[0]}) has a "
            "non-finite cost: check the checkpoint and the goal, or plan in float32."
        )


SHAPES = 128  # kinds of problem one call may compile for; torch stops at 8 and plans on uncompiled


@functools.cache
def _compiled(step: Callable[..., State], backend: str | Callable[..., Any] = "inductor") -> Callable[..., State]:
    """One compiled iteration per solver class. Weights are its inputs, so a new problem of the same shapes, of another
    model too, does not compile again; another horizon, context length or link does."""
    fast = torch.compile(step, dynamic=False, backend=backend)

    def call(*args: Any) -> State:
        with torch._dynamo.config.patch(recompile_limit=SHAPES):
            return fast(*args)

    return call


class Sampler(Solver):
    """A solver that repeats one pure function of tensors.

    `first(problem, mean)` makes the state, `iterate(config, problem, state, key_B, iteration)` advances it
    (static shapes, the iteration number as a tensor, no look at the device: it can be compiled or captured),
    `last(problem, state)` reads the plan. `state[0]` is (B,) bool: some candidate was finite so far.
    """

    config: Any
    iterations: int

    def config_at(self, iteration: int) -> Any:
        """The config of one iteration (iCEM's population may shrink)."""
        return self.config

    @abstractmethod
    def first(self, problem: Problem, mean_BHA: Tensor) -> State: ...

    @staticmethod
    @abstractmethod
    def iterate(config: Any, problem: Problem, state: State, key_B: Tensor, iteration: Tensor) -> State: ...

    @abstractmethod
    def last(self, state: State) -> tuple[Tensor, dict[str, Tensor]]: ...

    @torch.no_grad()
    def solve(self, problem: Problem, start: Tensor | None = None, seed: int = 0, compile: bool = False) -> Plan:
        """On CUDA with `compile` the whole search is one graph, where the problem can be captured."""
        mean_BHA = start_mean(problem, start)
        fast = compile and problem.device.type == "cuda"
        search = functools.partial(self._search, _compiled(type(self).iterate) if fast else self.iterate)
        if fast and problem.frozen_state() is not None:
            graphs: Graphs = self.__dict__.setdefault("_graphs", Graphs())
            outputs = graphs.run(search, problem, mean_BHA, seed)
        else:
            outputs = search(problem, mean_BHA, torch.tensor(seed, device=problem.device))
        raise_if_dead(outputs.pop("alive"), problem)
        return Plan(outputs.pop("actions"), outputs.pop("costs"), outputs)

    def _search(
        self, step: Callable[..., State], problem: Problem, mean_BHA: Tensor, seed: Tensor
    ) -> dict[str, Tensor]:
        """alive (B,), actions (B, H, A), costs (B,), and what `last` tells besides."""
        problem = problem.prepared()
        key_B = fold(seed, problem.env_ids)
        state = self.first(problem, mean_BHA)
        for i, iteration in enumerate(torch.arange(self.iterations, device=problem.device).unbind()):
            state = step(self.config_at(i), problem, state, key_B, iteration)
        actions_BHA, info = self.last(state)
        costs_B = problem.value(actions_BHA[:, None])[:, 0]
        return {"alive": state[0], "actions": actions_BHA, "costs": costs_B, **info}
