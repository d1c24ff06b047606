"""The contract of every planner, plans in chunks that fit in memory, and the loop shared by planners that sample.

Noise is a pure function of (seed, environment, iteration). Nothing inside the iterations waits for the device:
non-finite costs count as +inf, and one look at the end raises if an environment had no finite candidate at all.
"""

import functools
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lpwm.core.compiled import compiled
from lpwm.core.errors import UserError
from lpwm.core.graphs import Graph, warm_up
from lpwm.core.memory import free_bytes
from lpwm.core.rng import fold, normal_at
from lpwm.plan.problem import Problem

Outputs = dict[str, Tensor]
# (problem, start (B, H, A), seed ()) -> tensors (B, …)
Body = Callable[[Problem, Tensor, Tensor], Outputs]

KEPT = 4  # graphs per solver; each holds the memory of its plan


def signature(problem: Problem) -> Hashable:
    """What a graph has frozen into it: everything about a problem but the values of its rows and their number. Weights
    are read where they lie, so a graph follows updates in place but not a model that has moved."""
    rows = tuple((t.dtype, tuple(t.shape[1:]), t.device) for t in problem.tensors())
    return type(problem), problem.horizon, problem.action_dim, problem.dtype, rows, problem.frozen_state()


class CapturedPlan:
    """`body` captured for a problem's shapes; calling it copies a problem of these shapes in and replays."""

    def __init__(self, body: Body, problem: Problem, start_BHA: Tensor, seed: int) -> None:
        self.batch = problem.batch
        self.problem = problem.with_tensors([t.clone() for t in problem.tensors()])  # also keeps the model alive
        self.start_BHA = start_BHA.clone()
        self.seed = torch.tensor(seed, device=problem.device)
        warm_up(lambda: body(self.problem, self.start_BHA, self.seed))
        self.graph = Graph(lambda: body(self.problem, self.start_BHA, self.seed))

    def __call__(self, problem: Problem, start_BHA: Tensor, seed: int) -> Outputs:
        """Fewer environments than were captured are filled up with the first one, which changes no plan."""
        n = problem.batch
        given = [*problem.tensors(), start_BHA]
        for fixed, fresh in zip([*self.problem.tensors(), self.start_BHA], given, strict=True):
            fixed[:n].copy_(fresh)
            if n < self.batch:
                fixed[n:] = fresh[:1]
        self.seed.fill_(seed)
        return {name: t[:n].clone() for name, t in self.graph.replay().items()}


class Graphs:
    """The captured plans of one solver, the latest few."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, CapturedPlan] = OrderedDict()

    def run(self, body: Body, problem: Problem, start_BHA: Tensor, seed: int) -> Outputs:
        key = signature(problem)
        fitting = [k for k, plan in self._kept.items() if k[0] == key and plan.batch >= problem.batch]
        if fitting:
            best = min(fitting, key=lambda k: self._kept[k].batch)
            self._kept.move_to_end(best)
        else:
            best = (key, problem.batch)
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            self._kept[best] = CapturedPlan(body, problem, start_BHA, seed)
        return self._kept[best](problem, start_BHA, seed)


State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """actions (B, H, A) z-scored; costs (B,) of those actions (`Problem.value`); info: tensors (B, …)."""

    actions_BHA: Tensor
    costs_B: Tensor
    info: dict[str, Tensor] = field(default_factory=dict)


class Solver(ABC):
    """A planner. `candidates` per environment are alive at once, `graph` of them with their gradients. `seconds` is a
    time budget per plan: a planner that iterates stops before an iteration that would end later."""

    candidates: int = 1
    graph: bool = False
    seconds: float | None = None

    def rounds(self, count: int, device: torch.device) -> Iterator[int]:
        """0 … count − 1, or as many as fit into the time budget, at least one."""
        begun = time.perf_counter()
        for i in range(count):
            yield i
            if self.seconds is None:
                continue
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if (time.perf_counter() - begun) * (i + 2) / (i + 1) > self.seconds:
                return

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
        those = f"{len(dead)} of {problem.batch} environments (first: {dead[0]})"
        remedy = "check the checkpoint and the goal, or plan in float32"
        raise UserError(f"every candidate plan of {those} has a non-finite cost: {remedy}.")


@functools.cache
def _compiled(step: Callable[..., State], backend: str | Callable[..., Any] = "inductor") -> Callable[..., State]:
    """One compiled iteration per solver class. Weights are its inputs, so a new problem of the same shapes, of another
    model too, does not compile again; another horizon, context length or link does."""
    return compiled(step, backend)


class Sampler(Solver):
    """A solver that repeats one pure function of tensors. `first` makes the state, whose first entry is alive_B: some
    candidate was finite so far. `iterate` advances it: static shapes, the iteration number as a tensor, no look at the
    device, so that it can be compiled or captured. `last` takes the plan from it, and what to tell besides."""

    settings: type[Any]  # the config's class

    def __init__(self, config: Any = None) -> None:
        self.config = config or self.settings()
        self.candidates, self.iterations = self.config.samples, self.config.iterations

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
        if fast and self.seconds is None and problem.frozen_state() is not None:
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
        numbers = torch.arange(self.iterations, device=problem.device)
        for i in self.rounds(self.iterations, problem.device):
            state = step(self.config_at(i), problem, state, key_B, numbers[i])
        actions_BHA, info = self.last(state)
        if self.seconds is not None:
            info["iterations"] = torch.full_like(problem.env_ids, i + 1)
        costs_B = problem.value(actions_BHA[:, None])[:, 0]
        return {"alive": state[0], "actions": actions_BHA, "costs": costs_B, **info}


def memory_budget(device: torch.device) -> int:
    """Bytes a plan may use: 60 % of what is free on the GPU; on the host half of it, at most 4 GiB."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.6 * (free_bytes(device) + cached))
    return int(min(free_bytes() / 2, 4 << 30))


def chunk_size(problem: Problem, solver: Solver, budget_bytes: int) -> int:
    """Environments per chunk; chunks of nearly equal size, since every new shape costs a compilation."""
    alive = (1 + problem.horizon) if solver.graph else 1  # gradients keep every step of the rollout
    need = max(1, solver.candidates * problem.candidate_bytes() * alive)
    most = max(1, min(problem.batch, budget_bytes // need))
    return math.ceil(problem.batch / math.ceil(problem.batch / most))


def chunked(
    problem: Problem,
    solver: Solver,
    budget_bytes: int | None = None,
    start: Tensor | None = None,
    seed: int = 0,
    compile: bool = False,
) -> Plan:
    """`solver.solve`, a few environments at a time; the plans are those of one solve. The estimate
    (`Problem.candidate_bytes`) may be wrong: when CUDA runs out of memory the chunk is halved."""
    if problem.batch == 0:
        raise UserError("there is no environment to plan for: give at least one.")
    if start is not None and start.shape[0] != problem.batch:
        raise UserError(f"the warm start is for {start.shape[0]} environments, the problem has {problem.batch}.")
    size = chunk_size(problem, solver, memory_budget(problem.device) if budget_bytes is None else budget_bytes)
    plans: list[Plan] = []
    at = 0
    while at < problem.batch:
        rows = slice(at, at + size)
        try:
            part = problem if size >= problem.batch else problem.select(rows)
            plans.append(solver.solve(part, None if start is None else start[rows], seed, compile))
        except torch.cuda.OutOfMemoryError as error:
            if size == 1:
                raise UserError("one environment's plan does not fit on the GPU: use fewer samples.") from error
            size = math.ceil(size / 2)
        else:
            at += size
            continue
        torch.cuda.empty_cache()  # outside the handler, where the traceback no longer holds the tensors
    if len(plans) == 1:
        return plans[0]
    info = {name: torch.cat([p.info[name] for p in plans]) for name in plans[0].info}
    return Plan(torch.cat([p.actions_BHA for p in plans]), torch.cat([p.costs_B for p in plans]), info)
