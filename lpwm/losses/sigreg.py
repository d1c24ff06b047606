"""SIGReg: the codes' projections against N(0, 1) by the Epps–Pulley statistic (LeJEPA, LeWM).

    R(z) = mean over t, slices w of  B Σ_k c_k e^{−τ_k²/2} |φ̂_w(τ_k) − e^{−τ_k²/2}|²,  φ̂_w(τ) = mean_b e^{iτ⟨w, z_b⟩}

with 17 knots τ on [0, 3] and c twice the trapezoid's weights (2Δ inside, Δ at both ends): the integrand is
even, so this is the integral over [−3, 3]. LeWM's λ = 0.09 presumes this scale. For the identity link: no
non-negative code can match N(0, I).

Legend: B batch (of all ranks together), T frames, D latent width, P slices, K knots.
"""

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses.base import ALONE, Draw, Group, Key, Shape, no_autocast, whole_batch
from lpwm.losses.config import SIGRegConfig
from lpwm.losses.slicing import draw_slices, project, share


class SIGReg:
    def __init__(self, config: SIGRegConfig, nonnegative: bool = False) -> None:
        self.config = config

    @torch.no_grad()
    def draw(self, key: Key, shape: Shape, device: torch.device | str = "cpu", group: Group = ALONE) -> Draw:
        g = generator("sigreg", *key, device=device)
        slices_PD = draw_slices(self.config.slices, shape[-1], self.config.axis_fraction, g)
        return (share(slices_PD, self.config.slices, group).contiguous(),)

    def _quadrature(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Knots and weights, (K,) each; made on the device, so that a captured graph copies nothing."""
        K, reach = self.config.knots, self.config.reach
        step = reach / (K - 1)
        tau_K = torch.linspace(0, reach, K, device=like.device, dtype=like.dtype)
        weight_K = torch.full_like(tau_K, 2 * step)
        weight_K[:1].fill_(step)  # `weight_K[0] = step` would wait for the device
        weight_K[-1:].fill_(step)
        return tau_K, weight_K

    def __call__(self, codes_BTD: Tensor, draw: Draw, group: Group = ALONE) -> Tensor:
        with no_autocast(codes_BTD):
            z_BTD = whole_batch(codes_BTD, group)
            slices_PD = share(draw[0], self.config.slices, group).to(z_BTD.dtype)
            B, T, D = z_BTD.shape
            if slices_PD.shape[1] != D:
                raise UserError(f"the draw is for width {slices_PD.shape[1]}, the codes have {D}: draw again.")
            projected_TPB = project(slices_PD, z_BTD)
            tau_K, weight_K = self._quadrature(z_BTD)
            phase_KTPB = tau_K[:, None, None, None] * projected_TPB
            normal_K = torch.exp(-0.5 * tau_K.square())  # N(0,1)'s characteristic function, and the window
            real_KTP = phase_KTPB.cos().mean(-1) - normal_K[:, None, None]
            imag_KTP = phase_KTPB.sin().mean(-1)
            error_K = (real_KTP.square() + imag_KTP.square()).sum((1, 2))
            return (error_K * weight_K * normal_K).sum() * (B * group.ranks / (self.config.slices * T))
