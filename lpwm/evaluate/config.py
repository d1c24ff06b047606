"""The protocol: which episodes, which planners, which controls, and when success counts (method §5, §10)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lpwm.core.errors import UserError, choose, require
from lpwm.plan.config import solver_config

if TYPE_CHECKING:
    from lpwm.plan.solver import Solver

KINDS = ("random", "dataset")  # of goals
OFFSET = 25  # raw steps between start and goal in a held-out trajectory
CONTROLS = ("nothing", "random", "oracle")
STATES = 512  # behind the distance curve
LIVE_ORACLE = {"samples": 64, "elites": 8, "iterations": 8}  # 512 candidates a plan instead of the paper's 9000


@dataclass(frozen=True)
class EvalConfig:
    """Every choice behind a number."""

    goals: tuple[str, ...] = KINDS  # random: anywhere; dataset: ahead in a held-out trajectory
    episodes: int = 50  # of each kind of goals
    offset: int = OFFSET  # raw steps from start to goal, for dataset goals
    seed: int = 0  # of the episode sets
    budgets: tuple[int, ...] = (50, 100)  # raw steps; all from one run to the largest
    horizons: tuple[int, ...] = (5,)  # H, blocks
    receding: tuple[int, ...] = (1, 5)  # R, blocks executed of each plan; 0 is the whole horizon
    warm: bool = True  # the next mean is the shifted tail of the last plan
    context: int = 0  # real frames a plan starts from; 0 is the model's own history
    path_discount: float = 0.0  # the path cost (see MPCConfig); 0 is the paper
    arrive: bool = False  # no plan reaches beyond the last budget: the goal is to be reached at the end; not the paper
    test: Literal["step", "plan"] = "step"  # when success counts: after each raw step, or each executed plan
    planner_seeds: int = 3  # every episode is planned with each
    solver: str = "cem"  # cem, icem, mppi, gradient or lqr
    options: dict[str, Any] = field(default_factory=dict)  # of the solver
    controls: tuple[str, ...] = CONTROLS  # what models are compared with
    oracle_seeds: int = 1  # planner seeds of the oracle, the most expensive control
    oracle_options: dict[str, Any] = field(default_factory=dict)  # what differs from the planner's, to reduce it
    # the same in worlds of live simulators, where every candidate step is a step of physics
    live_oracle_options: dict[str, Any] = field(default_factory=lambda: dict(LIVE_ORACLE))
    curve: int = STATES  # states behind the distance curve; 0 leaves it out
    precision: Literal["float32", "bfloat16"] = "float32"  # in which candidates are scored

    def __post_init__(self) -> None:
        for what, names, known in (("kind of goals", self.goals, KINDS), ("control", self.controls, CONTROLS)):
            for name in names:
                choose(what, name, dict.fromkeys(known))
        for what in ("goals", "budgets", "horizons", "receding"):
            values = getattr(self, what)
            if not values or len(set(values)) != len(values):
                raise UserError(f"{what} = {list(values)}: give at least one, none of them twice.")
            if what in ("budgets", "horizons") and min(values) < 1:
                raise UserError(f"{what} = {list(values)}: give positive numbers.")
        for what, least in (("planner_seeds", 1), ("oracle_seeds", 1), ("episodes", 1), ("context", 0)):
            if getattr(self, what) < least:
                raise UserError(f"{what} = {getattr(self, what)}: give at least {least}.")
        require("path_discount", self.path_discount, 0, 1)
        if min(self.receding) < 0:
            raise UserError("receding counts executed blocks: give 1 or more, or 0 for the whole horizon.")
        if not self.pairs():
            least, most = min(self.receding), max(self.horizons)
            raise UserError(f"{least} blocks are to be executed of plans of {most}: lengthen the horizon.")
        for name, options in ((self.solver, self.options), self.oracle_planner(), self.oracle_planner(live=True)):
            solver_config(name, **options)

    def pairs(self) -> list[tuple[int, int]]:
        """The pairs (H, R) with R ≤ H, each once."""
        pairs = [(h, r or h) for h in self.horizons for r in self.receding if (r or h) <= h]
        return list(dict.fromkeys(pairs))

    def build_solver(self) -> "Solver":
        return solver_config(self.solver, **self.options).build()

    def oracle_planner(self, live: bool = False) -> tuple[str, dict[str, Any]]:
        """Name and options of the oracle's solver. LQR knows only linear latent dynamics: its oracle is CEM. So is that
        of live simulators, whatever the solver: they have no gradients and no batch, and its budget is reduced."""
        if live:
            return "cem", {**self.live_oracle_options, **self.oracle_options}
        if self.solver == "lqr":
            return "cem", dict(self.oracle_options)
        return self.solver, {**self.options, **self.oracle_options}

    def build_oracle_solver(self, live: bool = False) -> "Solver":
        name, options = self.oracle_planner(live)
        return solver_config(name, **options).build()


# paper: the support pipeline's protocol at the paper's planner. ladder: plan, execute 5 blocks, test, at most 10 plans.
# open: its single plan. horizons: §10's open question. path: replan after every block and count the whole path.
PRESETS: dict[str, EvalConfig] = {
    "paper": EvalConfig(),
    "quick": EvalConfig(
        episodes=20, planner_seeds=1, receding=(5,), options={"samples": 64, "elites": 8, "iterations": 8}, curve=256
    ),
    "ladder": EvalConfig(receding=(5,), budgets=(250,), test="plan", context=1),
    "open": EvalConfig(receding=(5,), budgets=(25,), test="plan", context=1),
    "path": EvalConfig(receding=(1,), path_discount=1.0),
    "horizons": EvalConfig(horizons=tuple(range(1, 11)), receding=(1, 0), planner_seeds=1),
}


def preset(name: str) -> EvalConfig:
    """A preset by its name; `stay` is what 0.1.0 called `path`."""
    return choose("preset", "path" if name == "stay" else name, PRESETS)
