"""Configs of the solvers and of receding-horizon control. Torch is imported by `build()`, not here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from lpwm.core.errors import UserError, choose, nearest

if TYPE_CHECKING:
    from lpwm.plan.mpc import MPC
    from lpwm.plan.solver import Solver


def require(name: str, value: float, least: float, most: float = float("inf")) -> None:
    if not value >= least:
        raise UserError(f"{name} is {value}: give at least {least}.")
    if not value <= most:
        raise UserError(f"{name} is {value}: give at most {most}.")


def check_horizon(horizon: int) -> int:
    if horizon < 1:
        raise UserError(f"the planning horizon is {horizon}: give at least 1 block.")
    return horizon


def check_path_discount(path_discount: float) -> float:
    if not 0 <= path_discount <= 1:
        raise UserError(
            f"path_discount = {path_discount}: give 0 (the end of a plan alone counts), 1 (all its blocks count "
            "alike), or between."
        )
    return path_discount


class _Buildable:
    def build(self) -> Solver:
        """The solver CEM of CEMConfig, and so on."""
        from lpwm import plan

        return getattr(plan, type(self).__name__.removesuffix("Config"))(self)


@dataclass(frozen=True)
class CEMConfig(_Buildable):
    samples: int = 300
    elites: int = 30
    iterations: int = 30
    std: float = 1.0  # at the start of every plan

    def __post_init__(self) -> None:
        require("samples", self.samples, 2)
        require("elites", self.elites, 2)  # the unbiased standard deviation of one elite does not exist
        if self.elites > self.samples:
            raise UserError(f"{self.elites} elites of {self.samples} samples: give at most as many elites as samples.")
        require("iterations", self.iterations, 1)
        require("std", self.std, 1e-6)


@dataclass(frozen=True)
class ICEMConfig(CEMConfig):
    beta: float = 2.0  # exponent of the noise's spectrum over the blocks of a plan; 0 is white
    keep: float = 0.3  # the fraction of the elites that stays in the next population
    momentum: float = 0.1  # of the old mean and std
    decay: float = 1.0  # the population is divided by this at each iteration, down to 2·elites

    def __post_init__(self) -> None:
        super().__post_init__()
        require("beta", self.beta, 0)
        require("decay", self.decay, 1)
        require("keep", self.keep, 0, 1)
        require("momentum", self.momentum, 0, 1)

    @property
    def kept(self) -> int:
        return min(int(self.keep * self.elites), self.samples - 1)

    def at(self, iteration: int) -> ICEMConfig:
        """The same with the population of a later iteration."""
        shrunk = int(self.samples * self.decay**-iteration)
        return replace(self, samples=min(self.samples, max(shrunk, 2 * self.elites)))


@dataclass(frozen=True)
class MPPIConfig(_Buildable):
    samples: int = 300
    iterations: int = 30
    std: float = 1.0
    temperature: float = 0.1  # in standard deviations of the candidates' costs
    decay: float = 0.9  # the noise is multiplied by this after each iteration

    def __post_init__(self) -> None:
        require("samples", self.samples, 2)
        require("iterations", self.iterations, 1)
        require("std", self.std, 1e-6)
        require("temperature", self.temperature, 1e-6)
        require("decay", self.decay, 0, 1)


@dataclass(frozen=True)
class GradientConfig(_Buildable):
    restarts: int = 8
    iterations: int = 100
    lr: float = 0.1
    std: float = 1.0  # of the random starts around the first
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        require("restarts", self.restarts, 1)
        require("iterations", self.iterations, 1)
        require("lr", self.lr, 1e-12)
        require("std", self.std, 0)
        require("beta1", self.beta1, 0, 1 - 1e-9)
        require("beta2", self.beta2, 0, 1 - 1e-9)


@dataclass(frozen=True)
class LQRConfig(_Buildable):
    method: Literal["dense", "riccati"] = "dense"
    control: float = 0.0  # ρ; 0 is the planners' own cost, more keeps actions within what the world can do

    def __post_init__(self) -> None:
        choose("LQR method", self.method, dict.fromkeys(("dense", "riccati")))
        require("control", self.control, 0)


SolverConfig = CEMConfig | ICEMConfig | MPPIConfig | GradientConfig | LQRConfig

SOLVERS: dict[str, Callable[..., SolverConfig]] = {
    "cem": CEMConfig,
    "icem": ICEMConfig,
    "mppi": MPPIConfig,
    "gradient": GradientConfig,
    "lqr": LQRConfig,
}


def solver_config(name: str, **options: Any) -> SolverConfig:
    """`solver_config("cem", samples=64)`, with one sentence for a wrong name, option or type."""
    config: Any = choose("solver", name, SOLVERS)
    for option in options:
        if option not in config.__dataclass_fields__:
            raise UserError(
                f"solver {name!r} has no option {option!r}: {nearest(option, config.__dataclass_fields__)}."
            )
    try:
        return config(**options)
    except TypeError:
        raise UserError(f"an option of solver {name!r} has the wrong type: {options}.") from None


def make_solver(name: str, **options: Any) -> Solver:
    """`make_solver("cem", samples=64)`."""
    return solver_config(name, **options).build()


@dataclass(frozen=True)
class MPCConfig:
    """Open loop is one plan with receding = horizon."""

    horizon: int = 5  # H, blocks
    receding: int = 5  # R, blocks executed before planning again
    warm: bool = True  # the next mean is the shifted tail of the last plan
    context: int = 1  # real frames a plan starts from; 1 is the current frame alone
    path_discount: float = 0.0  # the path cost: block h of H counts as path_discount^(H−h)

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        require("receding", self.receding, 1)
        require("context", self.context, 1)
        check_path_discount(self.path_discount)
        if self.receding > self.horizon:
            raise UserError(
                f"{self.receding} blocks are to be executed of plans of {self.horizon}: "
                "lengthen the horizon or execute fewer."
            )

    def build(self, solver: Solver, compile: bool = False) -> MPC:
        from lpwm.plan.mpc import MPC

        return MPC(solver, self, compile)
