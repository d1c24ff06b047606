"""VICReg's variance and covariance terms; its invariance term is the prediction loss.

    R(z) = w_v · mean_d relu(1 − √(Var z_d + 10⁻⁴)) + w_c · Σ_{d≠e} Cov(z)²_de / (D(D−1))

Statistics are unbiased and pooled over the N = B·T codes of the batch. The weights the paper used are
unpublished; 1 and 1 are ours, and λ multiplies both.
"""

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.losses.base import ALONE, Draw, Group, Key, Shape, no_autocast, whole_batch
from lpwm.losses.config import VICRegConfig


class VICReg:
    def __init__(self, config: VICRegConfig, nonnegative: bool = False) -> None:
        self.config = config

    def draw(self, key: Key, shape: Shape, device: torch.device | str = "cpu", group: Group = ALONE) -> Draw:
        """Nothing is random."""
        return ()

    def __call__(self, codes_BTD: Tensor, draw: Draw = (), group: Group = ALONE) -> Tensor:
        """Every rank computes the whole: one D×D product is cheaper than sharing it."""
        with no_autocast(codes_BTD):
            z_ND = whole_batch(codes_BTD, group).flatten(0, 1)
            N, D = z_ND.shape
            if N < 2:
                raise UserError("VICReg needs at least two codes for a variance: raise the batch.")
            z_ND = z_ND - z_ND.mean(0)
            variance_D = z_ND.square().sum(0) / (N - 1)
            hinge = torch.relu(1 - torch.sqrt(variance_D + 1e-4)).mean()
            covariance_DD = z_ND.T @ z_ND / (N - 1)
            off_diagonal = covariance_DD - torch.diag_embed(covariance_DD.diagonal())
            correlation = off_diagonal.square().sum() / max(D * (D - 1), 1)
            return self.config.variance * hinge + self.config.covariance * correlation
