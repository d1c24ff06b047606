"""The objective: prediction, regularity, and the two optional terms.

    loss = mean((ẑ−z)²) + λ·R(z) [+ w_TJ·L_TJ(z)] [+ w_n·mean over depths 2…n of mean((ẑ⁽ⁿ⁾−z)²)]

No stop-gradient on the targets, no EMA: the regularizer alone prevents collapse.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lpwm.core.errors import UserError, choose
from lpwm.losses.base import Draw, Gather, Key, Regularizer
from lpwm.losses.jaccard import temporal_jaccard
from lpwm.losses.rdmreg import RDMReg, RDMRegConfig
from lpwm.losses.sigreg import SIGReg, SIGRegConfig
from lpwm.losses.vicreg import VICReg, VICRegConfig


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
        choose("regularizer", self.regularizer, REGULARIZERS)
        for name in ("lam", "tj_weight", "rollout_weight"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} must not be negative: it is {getattr(self, name)}; 0 switches it off.")
        if self.rollout_steps < 1:
            raise UserError(f"rollout_steps must be at least 1, not {self.rollout_steps}: 1 is the paper.")

    def validate(self, nonnegative: bool, frames: int | None = None) -> None:
        """What depends on the model: its link, and the number of frames in a clip."""
        if self.tj_weight > 0 and not nonnegative:
            raise UserError("temporal Jaccard needs a non-negative link: use relu or reprelu, or tj_weight=0.")
        if frames is not None and self.rollout_steps > frames - 1:
            raise UserError(
                f"rollout_steps={self.rollout_steps} needs clips of {self.rollout_steps + 1} frames, not {frames}: "
                "lengthen the clips or lower rollout_steps."
            )


class NoRegularizer:
    """R = 0."""

    def draw(
        self,
        key: Key,
        batch: int,
        time: int,
        dim: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
    ) -> Draw:
        return ()

    def __call__(
        self, codes_BTD: Tensor, draw: Draw = (), gather: Gather | None = None, rank: int = 0, ranks: int = 1
    ) -> Tensor:
        wide = torch.float64 if codes_BTD.dtype == torch.float64 else torch.float32
        return torch.zeros((), device=codes_BTD.device, dtype=wide)


# (config, whether the link is non-negative) -> the regularizer.
REGULARIZERS: dict[str, Callable[[ObjectiveConfig, bool], Regularizer]] = {
    "rdmreg": lambda config, nonnegative: RDMReg(config.rdmreg, nonnegative),
    "sigreg": lambda config, nonnegative: SIGReg(config.sigreg),
    "vicreg": lambda config, nonnegative: VICReg(config.vicreg),
    "none": lambda config, nonnegative: NoRegularizer(),
}


class Objective:
    """The terms and their sum, as scalars in a dictionary. Terms are unweighted; `loss` is weighted."""

    def __init__(self, config: ObjectiveConfig, nonnegative: bool) -> None:
        config.validate(nonnegative)
        self.config = config
        self.regularizer = REGULARIZERS[config.regularizer](config, nonnegative)

    def without_regularizer(self) -> Objective:
        """The terms that are means over clips; gradient accumulation handles the regularizer on its own."""
        other = copy.copy(self)
        other.regularizer = NoRegularizer()
        return other

    def draw(
        self,
        key: Key,
        batch: int,
        time: int,
        dim: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
    ) -> Draw:
        """All randomness of one step; see `base.Regularizer.draw`."""
        return self.regularizer.draw(key, batch, time, dim, device, rank, ranks)

    def __call__(
        self,
        z_BTD: Tensor,
        zhat_BKD: Tensor,
        draw: Draw,
        multistep_BND: Tensor | None = None,
        gather: Gather | None = None,
        rank: int = 0,
        ranks: int = 1,
        share: float = 1.0,
    ) -> dict[str, Tensor]:
        """z: the encoded clip. ẑ_j predicts frame j+1 from frames ≤ j, j < K. `multistep_BND`: predictions of
        frames 1…N = `rollout_steps`, fed back from frame 0.

        With several ranks z, ẑ and the rollout are this rank's; the mean over ranks of each term is the term.
        `share` weighs this rank's own means where ranks have unequal numbers of clips: b·N/B.
        """
        c, T = self.config, z_BTD.shape[1]
        K = zhat_BKD.shape[1]
        if not 1 <= K < T:
            raise UserError(f"{K} one-step predictions do not fit a clip of {T} frames: give 1 to {T - 1}.")
        terms = {"prediction": share * _squared_error(zhat_BKD, z_BTD[:, 1 : K + 1])}
        terms["regularizer"] = self.regularizer(z_BTD, draw, gather, rank, ranks)
        loss = terms["prediction"] + c.lam * terms["regularizer"]
        if c.tj_weight > 0:
            terms["temporal_jaccard"] = share * temporal_jaccard(z_BTD)
            loss = loss + c.tj_weight * terms["temporal_jaccard"]
        if c.rollout_steps > 1:
            N = c.rollout_steps
            if multistep_BND is None or multistep_BND.shape[1] != N or T <= N:
                raise UserError(f"rollout_steps={N} needs {N} fed-back predictions and clips of {N + 1} frames.")
            # Depth 1 is already in the one-step term.
            terms["rollout"] = share * _squared_error(multistep_BND[:, 1:], z_BTD[:, 2 : N + 1])
            loss = loss + c.rollout_weight * terms["rollout"]
        return {"loss": loss, **terms}


def _squared_error(zhat: Tensor, z: Tensor) -> Tensor:
    """mean((ẑ−z)²) in float32, or float64 if either is; gradients flow into both."""
    wide = torch.promote_types(torch.promote_types(zhat.dtype, z.dtype), torch.float32)
    return (zhat.to(wide) - z.to(wide)).square().mean()
