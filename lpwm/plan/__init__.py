"""Planning: what is minimized (Problem), who minimizes it (Solver), and how it is executed (MPC)."""

from lpwm.core.lazy import lazy

_CONFIG = "CEMConfig ICEMConfig MPPIConfig GradientConfig LQRConfig MPCConfig SolverConfig SOLVERS make_solver"
_PROBLEMS = "LatentProblem LiveOracleProblem OracleProblem Problem"

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        **dict.fromkeys(_CONFIG.split(), "config"),
        **dict.fromkeys(_PROBLEMS.split(), "problem"),
        "CEM": "cem",
        "ICEM": "icem",
        "LQR": "lqr",
        "LinearDynamics": "lqr",
        "MPC": "mpc",
        "MPPI": "mppi",
        "Gradient": "gradient",
        "Plan": "solver",
        "Solver": "solver",
        "VOTES": "consensus",
        "ConsensusProblem": "consensus",
        "chunked": "chunk",
    },
)
