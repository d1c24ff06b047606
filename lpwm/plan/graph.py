"""A whole plan as one CUDA graph: compiled once, then replayed without Python between the iterations."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from lpwm.core.graphs import Graph, warm_up
from lpwm.plan.problem import Problem

Outputs = dict[str, Tensor]
# (problem, start (B, H, A), seed ()) -> tensors (B, …)
Body = Callable[[Problem, Tensor, Tensor], Outputs]

KEPT = 4  # graphs per solver; each holds the memory of its plan


def signature(problem: Problem) -> Hashable:
    """What a graph has frozen into it: everything about a problem but the values of its rows and their number.

    Weights are read where they lie, so a graph follows updates in place but not a model that has moved.
    """
    return (
        type(problem),
        problem.horizon,
        problem.action_dim,
        problem.dtype,
        tuple((t.dtype, tuple(t.shape[1:]), t.device) for t in problem.tensors()),
        problem.frozen_state(),
    )


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
        for fixed, fresh in zip(self.problem.tensors(), problem.tensors(), strict=True):
            _fill(fixed, fresh)
        _fill(self.start_BHA, start_BHA)
        self.seed.fill_(seed)
        return {name: t[:n].clone() for name, t in self.graph.replay().items()}


def _fill(fixed: Tensor, fresh: Tensor) -> None:
    n = fresh.shape[0]
    fixed[:n].copy_(fresh)
    if n < fixed.shape[0]:
        fixed[n:] = fresh[:1]


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
