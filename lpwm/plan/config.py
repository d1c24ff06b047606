"""Configs of the solvers and of receding-horizon control. Torch is imported by `build()`, not here."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from lpwm.core.config import from_dict
from lpwm.core.errors import UserError, choose, require

if TYPE_CHECKING:
    from lpwm.plan.mpc import MPC
    from lpwm.plan.solver import Solver


class _Bounded:
    """A solver's config: its numbers are checked, and `build` makes the solver."""

    bounds: ClassVar[dict[str, tuple[float, ...]]]  # least, and most if there is one

    def __post_init__(self) -> None:
        for name, ends in self.bounds.items():
            require(name, getattr(self, name), *ends)

    def build(self) -> "Solver":
        """The solver CEM of CEMConfig, and so on."""
        from lpwm import plan

        return getattr(plan, type(self).__name__.removesuffix("Config"))(self)


@dataclass(frozen=True)
class CEMConfig(_Bounded):
    samples: int = 300  # candidates
    elites: int = 30  # at least 2: the unbiased standard deviation of one does not exist
    iterations: int = 30  # of sampling and narrowing
    std: float = 1.0  # at the start of every plan

    bounds: ClassVar = {"samples": (2,), "elites": (2,), "iterations": (1,), "std": (1e-6,)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.samples:
            raise UserError(f"{self.elites} elites of {self.samples} samples: give at most as many elites as samples.")


@dataclass(frozen=True)
class ICEMConfig(CEMConfig):
    beta: float = 2.0  # exponent of the noise's spectrum over the blocks of a plan; 0 is white
    keep: float = 0.3  # the fraction of the elites that stays in the next population
    momentum: float = 0.1  # of the old mean and std
    decay: float = 1.0  # the population is divided by this at each iteration, down to 2·elites

    bounds: ClassVar = {**CEMConfig.bounds, "beta": (0,), "decay": (1,), "keep": (0, 1), "momentum": (0, 1)}

    @property
    def kept(self) -> int:
        return min(int(self.keep * self.elites), self.samples - 1)

    def at(self, iteration: int) -> "ICEMConfig":
        """The same with the population of a later iteration."""
        shrunk = int(self.samples * self.decay**-iteration)
        return replace(self, samples=min(self.samples, max(shrunk, 2 * self.elites)))


@dataclass(frozen=True)
class MPPIConfig(_Bounded):
    samples: int = 300  # candidates
    iterations: int = 30  # of sampling and narrowing
    std: float = 1.0  # of the noise at first
    temperature: float = 0.1  # in standard deviations of the candidates' costs
    decay: float = 0.9  # the noise is multiplied by this after each iteration

    bounds: ClassVar = {"samples": (2,), "iterations": (1,), "std": (1e-6,), "temperature": (1e-6,), "decay": (0, 1)}


@dataclass(frozen=True)
class GradientConfig(_Bounded):
    restarts: int = 8  # plans improved at once
    iterations: int = 100  # steps of Adam
    lr: float = 0.1  # Adam's
    std: float = 1.0  # of the random starts around the first
    beta1: float = 0.9  # Adam's
    beta2: float = 0.999  # Adam's

    bounds: ClassVar = {"restarts": (1,), "iterations": (1,), "lr": (1e-12,), "std": (0,)}
    bounds |= {"beta1": (0, 1 - 1e-9), "beta2": (0, 1 - 1e-9)}


@dataclass(frozen=True)
class LQRConfig(_Bounded):
    control: float = 0.0  # ρ; 0 is the planners' own cost, more keeps actions within what the world can do

    bounds: ClassVar = {"control": (0,)}


SolverConfig = CEMConfig | ICEMConfig | MPPIConfig | GradientConfig | LQRConfig

_CONFIGS: tuple[type[SolverConfig], ...] = (CEMConfig, ICEMConfig, MPPIConfig, GradientConfig, LQRConfig)
SOLVERS = {config.__name__.removesuffix("Config").lower(): config for config in _CONFIGS}


def solver_config(name: str, **options: Any) -> SolverConfig:
    """`solver_config("cem", samples=64)`, with one sentence for a wrong name, option or type."""
    return from_dict(choose("solver", name, SOLVERS), options, f"{name}.")


def make_solver(name: str, **options: Any) -> "Solver":
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
        require("horizon", self.horizon, 1)
        require("receding", self.receding, 1)
        require("context", self.context, 1)
        require("path_discount", self.path_discount, 0, 1)
        if self.receding > self.horizon:
            counts = f"{self.receding} blocks are to be executed of plans of {self.horizon}"
            raise UserError(f"{counts}: lengthen the horizon or execute fewer.")

    def build(self, solver: "Solver", compile: bool = False) -> "MPC":
        from lpwm.plan.mpc import MPC

        return MPC(solver, self, compile)
