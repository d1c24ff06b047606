"""The four lower rungs: linear maps over lags, gated and passed through one hidden layer or not.

Legend: B batch (any leading shape), K positions, D latent width, k lags, r rank.
u_t is the code before the link; z_{t−i} with t−i < 0 counts as zero.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpwm.model.config import PredictorConfig
from lpwm.model.frozen import FrozenLTI
from lpwm.model.layers import linear


class LTI(nn.Module):
    """u_t = Σ_{i<k} A_i z_{t−i} + B e_t + b. Starts at the identity: A_0 = I, the rest 0. The cache is the part of the
    coming sums that is already known: entry j holds Σ_{i>j} A_i z_{t+j−i}, so a step multiplies each z once by each A_i
    and stores nothing else."""

    def __init__(self, latent: int, lags: int) -> None:
        super().__init__()
        self.lags = lags
        self.A = nn.ModuleList(linear(latent, latent, bias=i == 0) for i in range(lags))
        self.B = linear(latent, latent, bias=False)

    @torch.no_grad()
    def deliberate_init(self) -> None:
        for p in self.parameters():
            p.zero_()
        torch.nn.init.eye_(cast(nn.Linear, self.A[0]).weight)

    def forward(self, z_BKD: Tensor, e_BKD: Tensor) -> Tensor:
        u = self.B(e_BKD)
        for i, A in enumerate(self.A):
            u = u + A(_lag(z_BKD, i))
        return u

    def start(self) -> list[Tensor]:
        return []

    def step(self, cache: list[Tensor], z: Tensor, e: Tensor, keep: int | None = None) -> tuple[Tensor, list[Tensor]]:
        """One position, any leading shapes that broadcast. `keep`: how many more steps will follow."""
        keep = self.lags - 1 if keep is None else min(keep, self.lags - 1)
        u = self.A[0](z) + self.B(e)
        if cache:
            u = u + cache[0]
        ahead = [self.A[i](z) for i in range(1, keep + 1)]
        for j, known in enumerate(cache[1 : keep + 1]):
            ahead[j] = ahead[j] + known
        return u, ahead

    def freeze(self, model: Any, dtype: torch.dtype) -> FrozenLTI:
        return FrozenLTI(model, dtype)


class MLPLTI(LTI):
    """u_t = W relu(Σ A_i z_{t−i} + B e_t + b) + c."""

    def __init__(self, latent: int, lags: int) -> None:
        super().__init__(latent, lags)
        self.W = linear(latent, latent)

    def deliberate_init(self) -> None:
        """Nothing deliberate: the hidden layer needs random weights to break its symmetry."""

    def forward(self, z_BKD: Tensor, e_BKD: Tensor) -> Tensor:
        return self.W(torch.relu(super().forward(z_BKD, e_BKD)))

    def step(self, cache: list[Tensor], z: Tensor, e: Tensor, keep: int | None = None) -> tuple[Tensor, list[Tensor]]:
        u, cache = super().step(cache, z, e, keep)
        return self.W(torch.relu(u)), cache

    def freeze(self, model: Any, dtype: torch.dtype) -> FrozenLTI:
        return FrozenLTI(model, dtype, self.W)


class MLPLTV(nn.Module):
    """u_t = W relu(Σ A_i(z_t) z_{t−i} + B(z_t) e_t), A_i(z) = A_i + U_i diag(g_i(z)) V_iᵀ, g = sigmoid(G z_t). The maps
    vary with the state through a rank-r gate. U = 0 at the start, so that it begins as MLP∘LTI. The gate reads z_t but
    multiplies older codes, so the cache keeps V_iᵀ z of the last lags, not their sums."""

    def __init__(self, latent: int, lags: int, rank: int) -> None:
        super().__init__()
        self.base = MLPLTI(latent, lags)
        self.lags, self.rank = lags, rank
        self.V = nn.ModuleList(linear(latent, rank, bias=False) for _ in range(lags + 1))  # the last one reads e_t
        self.U = nn.ModuleList(linear(rank, latent, bias=False, problem=True) for _ in range(lags + 1))
        self.G = linear(latent, (lags + 1) * rank)

    @torch.no_grad()
    def deliberate_init(self) -> None:
        for p in self.U.parameters():
            p.zero_()

    def _gated(self, z: Tensor, read: list[Tensor | None], e: Tensor) -> Tensor:
        """Σ U_i (g_i(z) ∘ V_iᵀ z_{t−i}) + U_B (g_B(z) ∘ V_Bᵀ e); read[i] = V_iᵀ z_{t−i}, None before the start."""
        gate = torch.sigmoid(self.G(z)).chunk(self.lags + 1, dim=-1)
        total = self.U[-1](gate[-1] * self.V[-1](e))
        for U, g, x in zip(self.U, gate, read, strict=False):
            if x is not None:
                total = total + U(g * x)
        return total

    def forward(self, z_BKD: Tensor, e_BKD: Tensor) -> Tensor:
        read: list[Tensor | None] = [self.V[i](_lag(z_BKD, i)) for i in range(self.lags)]
        h = LTI.forward(self.base, z_BKD, e_BKD) + self._gated(z_BKD, read, e_BKD)
        return self.base.W(torch.relu(h))

    def start(self) -> tuple[list[Tensor], list[list[Tensor]]]:
        return [], []

    def step(
        self, cache: tuple[list[Tensor], list[list[Tensor]]], z: Tensor, e: Tensor, keep: int | None = None
    ) -> tuple[Tensor, tuple[list[Tensor], list[list[Tensor]]]]:
        sums, past = cache  # past[j][i] = V_i z_{t−1−j}
        h, sums = LTI.step(self.base, sums, z, e, keep)
        now = [self.V[i](z) for i in range(self.lags)]
        read: list[Tensor | None] = [now[0]] + [past[i - 1][i] if i <= len(past) else None for i in range(1, self.lags)]
        h = h + self._gated(z, read, e)
        return self.base.W(torch.relu(h)), (sums, [now, *past][: self.lags - 1])


def _lag(z_BKD: Tensor, i: int) -> Tensor:
    """z delayed by i positions, zeros in front."""
    if i == 0:
        return z_BKD
    return F.pad(z_BKD, (0, 0, i, 0))[..., : z_BKD.shape[-2], :]


def mlp_ltv(config: PredictorConfig, latent: int) -> MLPLTV:
    return MLPLTV(latent, config.history, config.rank)


def mlp_lti(config: PredictorConfig, latent: int) -> MLPLTI:
    return MLPLTI(latent, config.history)


def lti(config: PredictorConfig, latent: int) -> LTI:
    return LTI(latent, config.history)


def lti1(config: PredictorConfig, latent: int) -> LTI:
    return LTI(latent, 1)
