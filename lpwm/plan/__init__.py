"""Planning: what is minimized (Problem), who minimizes it (Solver), and how it is executed (MPC)."""

from __future__ import annotations

from typing import Any

from lpwm.core.errors import UserError, choose, nearest
from lpwm.plan.cem import CEM, CEMConfig
from lpwm.plan.chunk import chunked
from lpwm.plan.consensus import VOTES, ConsensusProblem
from lpwm.plan.gradient import Gradient, GradientConfig
from lpwm.plan.icem import ICEM, ICEMConfig
from lpwm.plan.lqr import LQR, LinearDynamics, LQRConfig
from lpwm.plan.mpc import MPC, MPCConfig
from lpwm.plan.mppi import MPPI, MPPIConfig
from lpwm.plan.problem import LatentProblem, LiveOracleProblem, OracleProblem, Problem
from lpwm.plan.solver import Plan, Solver

SolverConfig = CEMConfig | ICEMConfig | MPPIConfig | GradientConfig | LQRConfig

# Every config builds its solver: SOLVERS["cem"](samples=64).build().
SOLVERS: dict[str, type[Any]] = {
    "cem": CEMConfig,
    "icem": ICEMConfig,
    "mppi": MPPIConfig,
    "gradient": GradientConfig,
    "lqr": LQRConfig,
}


def make_solver(name: str, **options: Any) -> Solver:
    """`make_solver("cem", samples=64)`, with one sentence for a wrong name or option."""
    config = choose("solver", name, SOLVERS)
    for option in options:
        if option not in config.__dataclass_fields__:
            raise UserError(
                f"solver {name!r} has no option {option!r}: {nearest(option, config.__dataclass_fields__)}."
            )
    solver: Solver = config(**options).build()
    return solver


__all__ = [
    "CEM",
    "ICEM",
    "LQR",
    "MPC",
    "MPPI",
    "SOLVERS",
    "VOTES",
    "CEMConfig",
    "ConsensusProblem",
    "Gradient",
    "GradientConfig",
    "ICEMConfig",
    "LQRConfig",
    "LatentProblem",
    "LinearDynamics",
    "LiveOracleProblem",
    "MPCConfig",
    "MPPIConfig",
    "OracleProblem",
    "Plan",
    "Problem",
    "Solver",
    "SolverConfig",
    "chunked",
    "make_solver",
]
