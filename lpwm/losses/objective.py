"""The objective: prediction, regularity, and the two optional terms.

    loss = mean((ẑ−z)²) + λ·R(z) [+ w_TJ·L_TJ(z)] [+ w_n·mean over depths 2…n of mean((ẑ⁽ⁿ⁾−z)²)]

No stop-gradient on the targets, no EMA: the regularizer alone prevents collapse.
"""

import copy

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.losses.base import ALONE, Draw, Group, Key, NoRegularizer, Regularizer, Shape
from lpwm.losses.config import ObjectiveConfig


class Objective:
    """The terms and their sum, as scalars in a dictionary. Terms are unweighted; `loss` is weighted."""

    def __init__(self, config: ObjectiveConfig, nonnegative: bool) -> None:
        config.validate(nonnegative)
        self.config = config
        self.regularizer: Regularizer = config.build_regularizer(nonnegative)

    def without_regularizer(self) -> "Objective":
        """The terms that are means over clips; gradient accumulation handles the regularizer on its own."""
        other = copy.copy(self)
        other.regularizer = NoRegularizer()
        return other

    def draw(self, key: Key, shape: Shape, device: torch.device | str = "cpu", group: Group = ALONE) -> Draw:
        """All randomness of one step; see `base.Regularizer.draw`."""
        return self.regularizer.draw(key, shape, device, group)

    def __call__(
        self,
        z_BTD: Tensor,
        zhat_BKD: Tensor,
        draw: Draw,
        multistep_BND: Tensor | None = None,
        group: Group = ALONE,
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
        terms["regularizer"] = self.regularizer(z_BTD, draw, group)
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


def temporal_jaccard(z_BTD: Tensor) -> Tensor:
    """mean over b, t of 1 − Σ_d min(z_t, z_{t+1}) / (Σ_d max(z_t, z_{t+1}) + 10⁻⁸), for z ≥ 0. 0 for a clip that does
    not change, 1 for disjoint supports; also 1, not 0, for all-zero codes."""
    if z_BTD.shape[1] < 2:
        raise UserError("temporal Jaccard compares consecutive frames: give clips of at least 2 frames.")
    z_BTD = z_BTD if z_BTD.dtype == torch.float64 else z_BTD.float()
    before, after = z_BTD[:, :-1], z_BTD[:, 1:]
    shared = torch.minimum(before, after).sum(-1)
    either = torch.maximum(before, after).sum(-1)
    return (1 - shared / (either + 1e-8)).mean()
