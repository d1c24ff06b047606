"""The protocol: which episodes, which planners, which controls, and when success counts (method §5, §10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lpwm.core.errors import UserError, choose
from lpwm.evaluate.controls import CONTROLS
from lpwm.evaluate.curve import STATES
from lpwm.evaluate.goals import KINDS, OFFSET
from lpwm.plan import Solver, make_solver
from lpwm.plan.problem import check_path_discount

LIVE_ORACLE = {"samples": 64, "elites": 8, "iterations": 8}  # 512 candidates a plan instead of the paper's 9000


@dataclass(frozen=True)
class EvalConfig:
    """Every choice behind a number."""

    goals: tuple[str, ...] = KINDS
    episodes: int = 50
    offset: int = OFFSET  # raw steps from start to goal, for dataset goals
    seed: int = 0  # of the episode sets
    budgets: tuple[int, ...] = (50, 100)  # raw steps; all read from one run to the largest
    horizons: tuple[int, ...] = (5,)  # H, blocks
    receding: tuple[int, ...] = (1, 5)  # R, blocks executed of each plan; 0 is the whole horizon
    warm: bool = True  # the next mean is the shifted tail of the last plan
    context: int = 0  # real frames a plan starts from; 0 is the model's own history
    path_discount: float = 0.0  # how much a plan's way counts beside its end (see MPCConfig); 0 is the paper
    test: Literal["step", "plan"] = "step"  # when success counts: after each raw step, or each executed plan
    planner_seeds: int = 3
    solver: str = "cem"
    options: dict[str, Any] = field(default_factory=dict)  # of the solver
    controls: tuple[str, ...] = CONTROLS
    oracle_seeds: int = 1  # planner seeds of the oracle, the dearest control
    oracle_options: dict[str, Any] = field(default_factory=dict)  # what differs from the planner's, to reduce it
    live_oracle_options: dict[str, Any] = field(
        default_factory=lambda: dict(LIVE_ORACLE)
    )  # the same in worlds of live simulators, where every candidate step is a step of physics
    curve: int = STATES  # states behind the distance curve; 0 leaves it out
    precision: Literal["float32", "bfloat16"] = "float32"  # in which candidates are scored

    def __post_init__(self) -> None:
        for kind in self.goals:
            choose("kind of goals", kind, dict.fromkeys(KINDS))
        for name in self.controls:
            choose("control", name, dict.fromkeys(CONTROLS))
        for what in ("goals", "budgets", "horizons", "receding"):
            values = getattr(self, what)
            if not values or len(set(values)) != len(values):
                raise UserError(f"{what} = {list(values)}: give at least one, none of them twice.")
        for what in ("budgets", "horizons"):
            if min(getattr(self, what)) < 1:
                raise UserError(f"{what} = {list(getattr(self, what))}: give positive numbers.")
        for what, least in (("planner_seeds", 1), ("oracle_seeds", 1), ("episodes", 1), ("context", 0)):
            if getattr(self, what) < least:
                raise UserError(f"{what} = {getattr(self, what)}: give at least {least}.")
        check_path_discount(self.path_discount)
        if min(self.receding) < 0:
            raise UserError("receding counts executed blocks: give 1 or more, or 0 for the whole horizon.")
        if not self.ways():
            raise UserError(
                f"{min(self.receding)} blocks are to be executed of plans of {max(self.horizons)}: lengthen the "
                "horizon or execute fewer."
            )
        self.build_solver()
        self.build_oracle_solver()
        self.build_oracle_solver(live=True)

    def ways(self) -> list[tuple[int, int]]:
        """The pairs (H, R) with R ≤ H, each once."""
        pairs = [(h, r or h) for h in self.horizons for r in self.receding if (r or h) <= h]
        return list(dict.fromkeys(pairs))

    def build_solver(self) -> Solver:
        return _build(self.solver, self.options)

    def oracle_planner(self, live: bool = False) -> tuple[str, dict[str, Any]]:
        """LQR knows only linear latent dynamics: its oracle is CEM. So is that of live simulators, whatever the
        solver: they have no gradients and no batch, and its budget is reduced."""
        if live:
            return "cem", {**self.live_oracle_options, **self.oracle_options}
        if self.solver == "lqr":
            return "cem", dict(self.oracle_options)
        return self.solver, {**self.options, **self.oracle_options}

    def build_oracle_solver(self, live: bool = False) -> Solver:
        return _build(*self.oracle_planner(live))


def _build(name: str, options: Mapping[str, Any]) -> Solver:
    try:
        return make_solver(name, **options)
    except TypeError:
        raise UserError(f"an option of solver {name!r} has the wrong type: {dict(options)}.") from None


# `paper` is the support pipeline's protocol at the paper's planner; `quick` the same, reduced; `ladder` plans,
# executes 5 blocks, tests, at most 10 plans; `open` is its single plan; `horizons` is §10's open question; `stay` is
# not the paper's: replan after every block and count the whole way.
PRESETS: dict[str, EvalConfig] = {
    "paper": EvalConfig(),
    "quick": EvalConfig(
        episodes=20, planner_seeds=1, receding=(5,), options={"samples": 64, "elites": 8, "iterations": 8}, curve=256
    ),
    "ladder": EvalConfig(receding=(5,), budgets=(250,), test="plan", context=1),
    "open": EvalConfig(receding=(5,), budgets=(25,), test="plan", context=1),
    "stay": EvalConfig(receding=(1,), path_discount=1.0),
    "horizons": EvalConfig(horizons=tuple(range(1, 11)), receding=(1, 0), planner_seeds=1),
}


def solo(config: EvalConfig, **changes: Any) -> EvalConfig:
    """One method without controls or curve: what a callback during training asks for."""
    return replace(config, controls=(), curve=0, **changes)
