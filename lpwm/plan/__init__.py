"""Planning: what is minimized (Problem), who minimizes it (Solver), and how it is executed (MPC)."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy

if TYPE_CHECKING:
    from lpwm.plan.cem import CEM
    from lpwm.plan.config import CEMConfig, GradientConfig, ICEMConfig, LQRConfig, MPCConfig, MPPIConfig, make_solver
    from lpwm.plan.gradient import Gradient
    from lpwm.plan.icem import ICEM
    from lpwm.plan.lqr import LQR, LinearDynamics
    from lpwm.plan.mpc import MPC
    from lpwm.plan.mppi import MPPI
    from lpwm.plan.problem import LatentProblem, LiveOracleProblem, OracleProblem, Problem
    from lpwm.plan.solver import Plan, Solver, chunked

__getattr__, __dir__, __all__ = lazy(__name__)
