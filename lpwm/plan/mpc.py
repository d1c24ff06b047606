"""Receding horizon: plan H blocks, execute R of them, look, plan again.

    mpc.begin(frames)                          the first observation of every environment
    while …:
        blocks_BRA = mpc.plan(make_problem, seed)
        for block in blocks_BRA.unbind(1):     the episode loop executes a block …
            mpc.observe(frames, block)         … and shows what came of it

The controller does not care what a frame is (pixels, latents, states): it keeps the last C of them with the
blocks executed between, and `make_problem(frames_BC…, past_BPA, horizon)` turns them into a Problem.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.rng import seed_of
from lpwm.plan.chunk import chunked
from lpwm.plan.config import MPCConfig
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Plan, Solver

MakeProblem = Callable[[Tensor, Tensor | None, int], Problem]


class MPC:
    """A controller for B environments side by side.

    Warm start: with r blocks executed of the last plan a_0 … a_{H−1}, the next mean is a_r … a_{H−1} and r
    zeros, and the solver starts again from std 1. With R = H that is a cold start.
    """

    def __init__(self, solver: Solver, config: MPCConfig | None = None, compile: bool = False) -> None:
        self.solver, self.config, self.compile = solver, config or MPCConfig(), compile
        self.last: Plan | None = None
        self.plans = self.executed = 0  # plans so far; blocks executed of the last one
        self._frames: list[Tensor] = []
        self._blocks: list[Tensor] = []

    def begin(self, frames_B: Tensor) -> None:
        """New episodes, (B, …) frames."""
        self.last, self.plans, self.executed = None, 0, 0
        self._frames, self._blocks = [frames_B], []

    def observe(self, frames_B: Tensor, block_BA: Tensor) -> None:
        """One block was executed and these frames followed."""
        if not self._frames:
            raise UserError("the controller has seen no first frame: call begin(frames) before observe.")
        self._frames = [*self._frames, frames_B][-self.config.context :]
        self._blocks = [*self._blocks, block_BA][max(0, len(self._blocks) + 2 - self.config.context) :]
        self.executed += 1

    def start(self) -> Tensor | None:
        """The warm start of the next plan, (B, H, A), or None for a cold one."""
        if self.last is None or not self.config.warm or self.executed >= self.config.horizon:
            return None
        tail = self.last.actions_BHA[:, self.executed :]
        return torch.nn.functional.pad(tail, (0, 0, 0, self.executed))

    def plan(self, make_problem: MakeProblem, seed: int) -> Tensor:
        """The next R blocks, (B, R, A). The n-th plan of an episode draws its noise from (seed, n)."""
        if not self._frames:
            raise UserError("the controller has seen no first frame: call begin(frames) before plan.")
        past_BPA = torch.stack(self._blocks, 1) if self._blocks else None
        problem = make_problem(torch.stack(self._frames, 1), past_BPA, self.config.horizon)
        if problem.horizon != self.config.horizon:
            raise UserError(
                f"the problem plans {problem.horizon} blocks, the controller {self.config.horizon}: "
                "build the problem with the horizon it is given."
            )
        key = seed_of(seed, "plan", self.plans)
        self.last = chunked(problem, self.solver, start=self.start(), seed=key, compile=self.compile)
        self.plans += 1
        self.executed = 0
        return self.last.actions_BHA[:, : self.config.receding]
