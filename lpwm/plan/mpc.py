"""Receding horizon: plan H blocks, execute R of them, look, plan again.

    mpc.begin(frames)                          the first observation of every environment
    while …:
        blocks_BRA = mpc.plan(make_problem, seed)
        for block in blocks_BRA.unbind(1):     the episode loop executes a block …
            mpc.observe(frames, block)         … and shows what came of it

A frame is anything (pixels, latents, states): the last C are kept with the blocks executed between, and
`make_problem(frames_BC…, past_BPA, horizon)` turns them into a Problem.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.rng import seed_of
from lpwm.plan.config import MPCConfig
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Plan, Solver, chunked

MakeProblem = Callable[[Tensor, Tensor | None, int], Problem]


class MPC:
    """A controller for B environments side by side. Warm start: with r blocks executed of the last plan a_0 … a_{H−1},
    the next mean is a_r … a_{H−1} and r zeros, and the solver starts again from std 1. With R = H that is a cold start.

    Where the number of blocks of an episode is known (`begin`), no plan reaches beyond its end: the goal is to be
    reached at the end, not H blocks after every look."""

    def __init__(self, solver: Solver, config: MPCConfig | None = None, compile: bool = False) -> None:
        self.solver, self.config, self.compile = solver, config or MPCConfig(), compile
        self.last: Plan | None = None
        self.plans = self.executed = 0  # plans so far; blocks executed of the last one
        self._left: int | None = None  # blocks to the end of the episodes
        self._frames: list[Tensor] = []
        self._blocks: list[Tensor] = []

    def begin(self, frames_B: Tensor, blocks: int | None = None) -> None:
        """New episodes, (B, …) frames, that end after so many blocks."""
        self._left = blocks
        self.last, self.plans, self.executed = None, 0, 0
        self._frames, self._blocks = [frames_B], []

    def observe(self, frames_B: Tensor, block_BA: Tensor) -> None:
        """One block was executed and these frames followed."""
        if not self._frames:
            raise UserError("the controller has seen no first frame: call begin(frames) before observe.")
        self._frames = [*self._frames, frames_B][-self.config.context :]
        self._blocks = [*self._blocks, block_BA][max(0, len(self._blocks) + 2 - self.config.context) :]
        self.executed += 1
        if self._left is not None:
            self._left -= 1

    @property
    def horizon(self) -> int:
        """Blocks of the next plan."""
        return self.config.horizon if self._left is None else max(1, min(self.config.horizon, self._left))

    def start(self) -> Tensor | None:
        """The warm start of the next plan, (B, H, A), or None for a cold one."""
        if self.last is None or not self.config.warm or self.executed >= self.last.actions_BHA.shape[1]:
            return None
        tail = self.last.actions_BHA[:, self.executed :][:, : self.horizon]
        return torch.nn.functional.pad(tail, (0, 0, 0, self.horizon - tail.shape[1]))

    def plan(self, make_problem: MakeProblem, seed: int) -> Tensor:
        """The next R blocks, (B, R, A). The n-th plan of an episode draws its noise from (seed, n)."""
        if not self._frames:
            raise UserError("the controller has seen no first frame: call begin(frames) before plan.")
        past_BPA = torch.stack(self._blocks, 1) if self._blocks else None
        problem = make_problem(torch.stack(self._frames, 1), past_BPA, self.horizon)
        if problem.horizon != self.horizon:
            counts = f"the problem plans {problem.horizon} blocks, the controller {self.horizon}"
            raise UserError(f"{counts}: build the problem with the horizon it is given.")
        key = seed_of(seed, "plan", self.plans)
        self.last = chunked(problem, self.solver, start=self.start(), seed=key, compile=self.compile)
        self.plans, self.executed = self.plans + 1, 0
        return self.last.actions_BHA[:, : self.config.receding]
