"""The temporal Jaccard loss: neighboring frames should use the same units."""

from __future__ import annotations

import torch
from torch import Tensor

from lpwm.core.errors import UserError


def temporal_jaccard(z_BTD: Tensor) -> Tensor:
    """mean over b, t of 1 − Σ_d min(z_t, z_{t+1}) / (Σ_d max(z_t, z_{t+1}) + 10⁻⁸), for z ≥ 0.

    0 for a clip that does not change, 1 for disjoint supports; also 1, not 0, for all-zero codes.
    """
    if z_BTD.shape[1] < 2:
        raise UserError("temporal Jaccard compares consecutive frames: give clips of at least 2 frames.")
    z_BTD = z_BTD if z_BTD.dtype == torch.float64 else z_BTD.float()
    before, after = z_BTD[:, :-1], z_BTD[:, 1:]
    shared = torch.minimum(before, after).sum(-1)
    either = torch.maximum(before, after).sum(-1)
    return (1 - shared / (either + 1e-8)).mean()
