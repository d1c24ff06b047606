"""The cells of the target study, and what is measured of each run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from lpwm.evaluate.config import EvalConfig
from lpwm.train.run_config import RunConfig


@dataclass(frozen=True, order=True)
class TargetCell:
    p: float
    mu: float
    axis_fraction: float

    @property
    def name(self) -> str:
        return f"target-p{self.p:g}-mu{self.mu:g}-axis{self.axis_fraction:g}"

    def config(self, base: RunConfig, seed: int) -> RunConfig:
        target = replace(base.objective.rdmreg, p=self.p, mu=self.mu, axis_fraction=self.axis_fraction)
        return replace(base, objective=replace(base.objective, rdmreg=target), train=replace(base.train, seed=seed))


Job = tuple[TargetCell, int]  # and its training seed
CELLS = tuple(
    TargetCell(p, mu, axis) for axis, p, mu in itertools.product((0.0, 0.25), (0.5, 1.0, 2.0), (0.0, -1.0, -2.0))
)
# The paper's planner on random goals, one planner seed for each checkpoint: checkpoints are the sample.
PLANNING = EvalConfig(goals=("random",), episodes=50, budgets=(50,), planner_seeds=1, curve=0)

# Measures of a run, by name: what a table calls them.
MEASURES: dict[str, str] = {
    "active": "active fraction",
    "gap": "active − target",
    "off": "|active − target|",
    "at_least": "E[z]²/E[z²]",
    "law": "distance of a unit's law to the target's",
    "dead": "share of dead units",
    "dimension": "effective dimension",
    "ratio": "error / copying, 1 block",
    "ratio_deep": "error / copying, deepest",
    "zone_code": "zone from code",
    "zone_support": "zone from support",
    "position_code": "position R² from code",
    "position_support": "position R² from support",
}
