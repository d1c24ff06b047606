"""The objective of a run. Nothing here imports torch."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lpwm.core.errors import UserError, at_least
from lpwm.core.registry import Registry
from lpwm.losses.distribution import RectifiedGeneralizedGaussian

if TYPE_CHECKING:
    from lpwm.losses.base import Regularizer

# (its own config, whether the link is non-negative) -> the regularizer.
REGULARIZERS: Registry[Any] = Registry(
    "regularizer",
    {
        "rdmreg": "lpwm.losses.rdmreg:RDMReg",
        "sigreg": "lpwm.losses.sigreg:SIGReg",
        "vicreg": "lpwm.losses.vicreg:VICReg",
        "none": "lpwm.losses.base:NoRegularizer",
    },
)


def _check_slices(config: Any, where: str) -> None:
    at_least(1, config, where, "slices")
    if not 0 <= config.axis_fraction <= 1:
        raise UserError(f"{where}.axis_fraction must lie in [0, 1], not {config.axis_fraction}: 0 is the paper.")


@dataclass(frozen=True)
class RDMRegConfig:
    slices: int = 8192  # the ladder's; 1024 in the support pipeline
    p: float = 1.0  # shape of the target: 1 Laplace, 2 Gaussian
    mu: float = 0.0  # location before rectification: lower is sparser
    rms_norm: bool = False  # divide the target by √E[y²]
    axis_fraction: float = 0.0  # share of coordinate slices; 0 is the paper

    def __post_init__(self) -> None:
        _check_slices(self, "rdmreg")
        self.target(rectify=True)

    def target(self, rectify: bool) -> RectifiedGeneralizedGaussian:
        return RectifiedGeneralizedGaussian(self.p, self.mu, rectify, self.rms_norm)


@dataclass(frozen=True)
class SIGRegConfig:
    slices: int = 1024  # random directions
    knots: int = 17  # of the integral over frequencies
    reach: float = 3.0  # the largest knot
    axis_fraction: float = 0.0  # share of coordinate slices

    def __post_init__(self) -> None:
        _check_slices(self, "sigreg")
        at_least(2, self, "sigreg", "knots")
        if not self.reach > 0:
            raise UserError(f"SIGReg's reach must be above 0, not {self.reach}: LeWM uses 3.")


@dataclass(frozen=True)
class VICRegConfig:
    variance: float = 1.0  # weight
    covariance: float = 1.0  # weight

    def __post_init__(self) -> None:
        at_least(0, self, "vicreg", "variance", "covariance")


@dataclass(frozen=True)
class ObjectiveConfig:
    regularizer: str = "rdmreg"  # a name in REGULARIZERS
    lam: float = 1.0  # weight of the regularizer, λ
    tj_weight: float = 0.0  # temporal Jaccard; 0 leaves it out
    rollout_steps: int = 1  # predictions fed back to this depth; 1 is the paper
    rollout_weight: float = 1.0  # weight of depths 2…rollout_steps
    rdmreg: RDMRegConfig = field(default_factory=RDMRegConfig)
    sigreg: SIGRegConfig = field(default_factory=SIGRegConfig)
    vicreg: VICRegConfig = field(default_factory=VICRegConfig)

    def __post_init__(self) -> None:
        REGULARIZERS.check(self.regularizer)
        at_least(0, self, "objective", "lam", "tj_weight", "rollout_weight")
        at_least(1, self, "objective", "rollout_steps")

    def build_regularizer(self, nonnegative: bool) -> "Regularizer":
        own = {"rdmreg": self.rdmreg, "sigreg": self.sigreg, "vicreg": self.vicreg}.get(self.regularizer)
        return REGULARIZERS.get(self.regularizer)(own, nonnegative)

    def validate(self, nonnegative: bool, frames: int | None = None) -> None:
        """What depends on the model: its link, and the number of frames in a clip."""
        if self.tj_weight > 0 and not nonnegative:
            raise UserError("temporal Jaccard needs a non-negative link: use relu or reprelu, or tj_weight=0.")
        if frames is not None and self.rollout_steps > frames - 1:
            raise UserError(
                f"rollout_steps={self.rollout_steps} needs clips of {self.rollout_steps + 1} frames, not {frames}: "
                "lengthen the clips or lower rollout_steps."
            )
