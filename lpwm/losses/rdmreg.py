"""RDMReg: sliced two-sample matching of the codes to the rectified generalized Gaussian.

    R(z) = mean over t, slices w, ranks i of (⟨w, z_t⟩_(i) − ⟨w, y_t⟩_(i))²

where (i) is the i-th smallest of the batch and y_t are fresh target samples. Every frame of the clip is
matched; the slices are common to all frames.

Legend: B batch (of all ranks together), T frames, D latent width, P slices.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses.base import ALONE, Draw, Group, Key, Shape, no_autocast, whole_batch
from lpwm.losses.config import RDMRegConfig
from lpwm.losses.slicing import draw_slices, match_rows, project, share, sort_rows


class RDMRegDraw(NamedTuple):
    slices_PD: Tensor
    target_TPB: Tensor  # projected, then sorted along the batch


class RDMReg:
    def __init__(self, config: RDMRegConfig, nonnegative: bool = True) -> None:
        """`nonnegative`: whether the link is; the target goes through the same link as the codes."""
        self.config = config
        self.target = config.target(rectify=nonnegative)

    @torch.no_grad()
    def draw(self, key: Key, shape: Shape, device: torch.device | str = "cpu", group: Group = ALONE) -> RDMRegDraw:
        """Fresh slices, and the order statistics of B fresh target samples per frame on each of them."""
        g = generator("rdmreg", *key, device=device)
        with torch.autocast(device_type=g.device.type, enabled=False):
            slices_PD = draw_slices(self.config.slices, shape[-1], self.config.axis_fraction, g)
            slices_PD = share(slices_PD, self.config.slices, group).contiguous()
            y_BTD = self.target.sample(shape, g)
            return RDMRegDraw(slices_PD, sort_rows(project(slices_PD, y_BTD)))

    def __call__(self, codes_BTD: Tensor, draw: Draw, group: Group = ALONE) -> Tensor:
        with no_autocast(codes_BTD):
            z_BTD = whole_batch(codes_BTD, group)
            slices_PD = share(draw[0], self.config.slices, group).to(z_BTD.dtype)
            target_TPB = share(draw[1], self.config.slices, group, dim=1).to(z_BTD.dtype)
            B, T, D = z_BTD.shape
            if (target_TPB.shape[0], target_TPB.shape[2], slices_PD.shape[1]) != (T, B, D):
                raise UserError(f"the draw is for other codes than (B, T, D) = {(B, T, D)}: draw for the global batch.")
            projected_TPB = project(slices_PD, z_BTD)
            # In one dimension the optimal pairing is by rank, and it is locally constant: the gradient of the
            # sorted difference is that of each code to its partner. So order the target like the codes, once
            # and without gradient, rather than differentiate through a sort.
            with torch.no_grad():
                partner_TPB = match_rows(projected_TPB.detach(), target_TPB)
            total = mse_loss(projected_TPB, partner_TPB, reduction="sum")
            return total * (group.ranks / (self.config.slices * T * B))


def floor(config: RDMRegConfig, batch: int, dim: int, key: Key, nonnegative: bool = True, repeats: int = 32) -> float:
    """The statistic when codes and target have the same law: two finite samples of it differ. Estimated on the CPU by
    regularizing target samples, `repeats` clips of 4 frames with at most 256 slices each. The other end of the scale,
    the statistic of a code that is always 0, is E⟨w, y⟩² = E[y²], the target's second moment."""
    regularizer = RDMReg(replace(config, slices=min(config.slices, 256)), nonnegative)
    values = []
    for i in range(repeats):
        y_BTD = regularizer.target.sample((batch, 4, dim), generator("floor", *key, i))
        values.append(float(regularizer(y_BTD, regularizer.draw((*key, i), (batch, 4, dim)))))
    return float(np.mean(values))
