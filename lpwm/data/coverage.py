"""How much of the arena the data have seen: random goals fall everywhere, and biases herd the dot."""

from __future__ import annotations

import torch
from torch import Tensor

from lpwm.worlds.base import TensorWorld, World

CELLS = 20  # per side
_GOALS = 100_000
_FEWER = 8_000  # where a goal is a pose to be solved for; still twenty per cell


class Coverage:
    """The fraction of the cells in which goals fall that some state lies in.

    The grid is CELLS×CELLS over the first two entries of the state a robot would feel (its position); the
    cells that count are found by drawing goals, so walls and borders do not.
    """

    def __init__(self, world: World):
        spec = world.spec
        self.axes = list(spec.proprio or range(spec.state_dim))[:2]
        draws = _GOALS if isinstance(world, TensorWorld) else _FEWER
        goals = world.sample_goal(draws, ("coverage",))[:, self.axes]
        self.low, self.high = goals.amin(0), goals.amax(0)
        self.seen = torch.zeros(CELLS ** len(self.axes), dtype=torch.bool)
        self.counts = torch.zeros_like(self.seen)
        self.counts[self._cell(goals)] = True

    def _cell(self, position: Tensor) -> Tensor:
        span = (self.high - self.low).clamp(min=1e-12)
        grid = ((position - self.low) / span * CELLS).floor().clamp(0, CELLS - 1).to(torch.int64)
        index = grid[:, 0]
        for axis in range(1, grid.shape[1]):
            index = index * CELLS + grid[:, axis]
        return index

    def add(self, states: Tensor) -> None:
        """states (N, S)."""
        self.seen[self._cell(states[:, self.axes])] = True

    def fraction(self) -> float:
        return int((self.seen & self.counts).sum()) / int(self.counts.sum())


def coverage(world: World, states: Tensor) -> float:
    """Of states (N, S)."""
    grid = Coverage(world)
    grid.add(states)
    return grid.fraction()
