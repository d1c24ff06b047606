"""The objective of a run. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lpwm.core.errors import UserError
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


def _check_slices(slices: int, axis_fraction: float) -> None:
    if slices < 1:
        raise UserError(f"slices must be at least 1, not {slices}: the paper uses 8192 or 1024.")
    if not 0 <= axis_fraction <= 1:
        raise UserError(f"axis_fraction must lie in [0, 1], not {axis_fraction}: 0 is the paper.")


@dataclass(frozen=True)
class RDMRegConfig:
    slices: int = 8192  # the ladder's; 1024 in the support pipeline
    p: float = 1.0  # shape of the target: 1 Laplace, 2 Gaussian
    mu: float = 0.0  # location before rectification: lower is sparser
    rms_norm: bool = False  # divide the target by √E[y²]
    axis_fraction: float = 0.0  # share of coordinate slices; 0 is the paper

    def __post_init__(self) -> None:
        _check_slices(self.slices, self.axis_fraction)
        self.target(rectify=True)

    def target(self, rectify: bool) -> RectifiedGeneralizedGaussian:
        return RectifiedGeneralizedGaussian(self.p, self.mu, rectify, self.rms_norm)


@dataclass(frozen=True)
class SIGRegConfig:
    slices: int = 1024
    knots: int = 17
    reach: float = 3.0  # the largest knot
    axis_fraction: float = 0.0

    def __post_init__(self) -> None:
        _check_slices(self.slices, self.axis_fraction)
        if self.knots < 2:
            raise UserError(f"SIGReg needs at least 2 knots, not {self.knots}: LeWM uses 17.")
        if not self.reach > 0:
            raise UserError(f"SIGReg's reach must be above 0, not {self.reach}: LeWM uses 3.")


@dataclass(frozen=True)
class VICRegConfig:
    variance: float = 1.0
    covariance: float = 1.0

    def __post_init__(self) -> None:
        for name in ("variance", "covariance"):
            if not getattr(self, name) >= 0:
                raise UserError(f"VICReg's {name} weight must not be negative: it is {getattr(self, name)}.")


@dataclass(frozen=True)
class ObjectiveConfig:
    regularizer: str = "rdmreg"  # a name in REGULARIZERS
    lam: float = 1.0  # λ
    tj_weight: float = 0.0  # temporal Jaccard; 0 leaves it out
    rollout_steps: int = 1  # predictions fed back to this depth; 1 is the paper
    rollout_weight: float = 1.0  # weight of depths 2…rollout_steps
    rdmreg: RDMRegConfig = field(default_factory=RDMRegConfig)
    sigreg: SIGRegConfig = field(default_factory=SIGRegConfig)
    vicreg: VICRegConfig = field(default_factory=VICRegConfig)

    def __post_init__(self) -> None:
        REGULARIZERS.check(self.regularizer)
        for name in ("lam", "tj_weight", "rollout_weight"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} must not be negative: it is {getattr(self, name)}; 0 switches it off.")
        if self.rollout_steps < 1:
            raise UserError(f"rollout_steps must be at least 1, not {self.rollout_steps}: 1 is the paper.")

    def build_regularizer(self, nonnegative: bool) -> Regularizer:
        return REGULARIZERS.get(self.regularizer)(getattr(self, self.regularizer, None), nonnegative)

    def validate(self, nonnegative: bool, frames: int | None = None) -> None:
        """What depends on the model: its link, and the number of frames in a clip."""
        if self.tj_weight > 0 and not nonnegative:
            raise UserError("temporal Jaccard needs a non-negative link: use relu or reprelu, or tj_weight=0.")
        if frames is not None and self.rollout_steps > frames - 1:
            raise UserError(
                f"rollout_steps={self.rollout_steps} needs clips of {self.rollout_steps + 1} frames, not {frames}: "
                "lengthen the clips or lower rollout_steps."
            )
