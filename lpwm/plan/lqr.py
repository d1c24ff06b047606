"""The exact plan when the learned dynamics are linear (method §8).

    z_{t+1} = Σ_{i<k} A_i z_{t−i} + B a_t + b,      J(a) = Σ_h w_h ‖z_h − z_goal‖²/D + ρ Σ_t ‖a_t‖²

holds for LTI with the identity link and a linear action encoder; w_H = 1 and the others 0 unless the path counts
(`block_weights`). Two solutions of the same problem:
  dense     z_h = f_h + G_h·(a_0 … a_{H−1}) is a least-squares problem, solved by one SVD for all environments;
  riccati   dynamic programming on x_t = (z_t, …, z_{t−k+1}, 1, z_goal): the constant carries b, and the goal is a
            part of the state that stays. Its gains are also a feedback law, the same for every environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.plan.config import LQRConfig
from lpwm.plan.problem import LatentProblem, Problem, block_weights
from lpwm.plan.solver import Plan, Solver, raise_if_dead, start_mean


@dataclass(frozen=True)
class LinearDynamics:
    """A: k matrices (D, D), A[0] acting on the newest latent; B (D, A) on the z-scored block; bias (D,)."""

    A: tuple[Tensor, ...]
    B: Tensor
    bias: Tensor

    @classmethod
    @torch.no_grad()
    def from_model(cls, model: Any) -> LinearDynamics:
        """The composite maps of a WorldModel, found by probing its rollout with zero and the basis vectors.

        An affine map is known exactly from these, the action encoder's matrix and bias included.
        """
        config = model.config
        rung = config.predictor.rung
        if config.link != "identity" or rung not in ("lti", "lti1") or config.action_encoder != "linear":
            raise UserError(
                f"LQR needs linear dynamics, not link {config.link!r}, rung {rung!r} and action encoder "
                f"{config.action_encoder!r}: train with link 'identity', rung 'lti' or 'lti1' and "
                "action_encoder 'linear', or plan with CEM."
            )
        like = next(model.parameters())
        D, width, lags = config.latent, model.action_dim, model.history

        def probe(z_BCD: Tensor, actions_BA: Tensor) -> Tensor:
            past = z_BCD.new_zeros(z_BCD.shape[0], z_BCD.shape[1] - 1, width)
            return model.rollout(
                z_BCD, actions_BA[:, None, None], past_BPA=past if past.shape[1] else None, last_only=True
            )[:, 0].double()

        bias = probe(like.new_zeros(1, 1, D), like.new_zeros(1, width))[0]
        basis, actions = torch.eye(D).to(like), torch.eye(width).to(like)
        A = []
        for lag in range(lags):  # the basis vector `lag` frames ago, zeros since, nothing before
            z = F.pad(basis[:, None], (0, 0, 0, lag))
            A.append((probe(z, like.new_zeros(D, width)) - bias).T.contiguous())
        B = (probe(like.new_zeros(width, 1, D), actions) - bias).T.contiguous()
        return cls(tuple(A), B, bias)

    def history(self, z_BCD: Tensor) -> list[Tensor]:
        """[z_t, z_{t−1}, …], k of them in float64; lags before the first frame are zero."""
        frames = [z.to(self.B) for z in reversed(z_BCD.unbind(1))][: len(self.A)]
        return frames + [torch.zeros_like(frames[0])] * (len(self.A) - len(frames))

    def free(self, z_BCD: Tensor, horizon: int) -> list[Tensor]:
        """f_1 … f_H, where no action leads, (B, D) each."""
        past, out = self.history(z_BCD), []
        for _ in range(horizon):
            out.append(sum((z @ A.T for z, A in zip(past, self.A, strict=True)), start=self.bias))
            past = [out[-1], *past[:-1]]
        return out

    def responses(self, horizon: int) -> list[Tensor]:
        """G_1 … G_H, (D, H·A) each: G_h = [M_{h−1} … M_0 0 …], with M_0 = B and M_j = Σ_i A_i M_{j−1−i}."""
        M = [self.B]
        for j in range(1, horizon):
            M.append(sum((A @ M[j - 1 - i] for i, A in enumerate(self.A[:j])), start=torch.zeros_like(self.B)))
        zero = torch.zeros_like(self.B)
        return [torch.cat([*M[:h][::-1], *[zero] * (horizon - h)], 1) for h in range(1, horizon + 1)]

    def reach(self, horizon: int, path_discount: float) -> Tensor:
        """√w_h G_h of the blocks that count, below each other."""
        counted = zip(block_weights(horizon, path_discount), self.responses(horizon), strict=True)
        return torch.cat([w**0.5 * G for w, G in counted if w])


def _rounding(reach: Tensor) -> float:
    """Singular values below this share of the largest are 0."""
    return max(reach.shape) * torch.finfo(reach.dtype).eps


def dense_plan(
    dynamics: LinearDynamics,
    z_BCD: Tensor,
    z_goal_BD: Tensor,
    horizon: int,
    control: float = 0.0,
    path_discount: float = 0.0,
) -> Tensor:
    """argmin J by the SVD of all G_h that count, (B, H, A); of several minimizers the shortest."""
    D, width = dynamics.B.shape
    goal_BD, free = z_goal_BD.to(dynamics.B), dynamics.free(z_BCD, horizon)
    counted = zip(block_weights(horizon, path_discount), free, strict=True)
    gap_Bn = torch.cat([w**0.5 * (goal_BD - f) for w, f in counted if w], 1)
    reach = dynamics.reach(horizon, path_discount)
    U, s, Vh = torch.linalg.svd(reach, full_matrices=False)
    cut = s[0] * _rounding(reach)
    inverse = torch.where(s > cut, s / (s.square() + control * D).clamp(min=torch.finfo(s.dtype).tiny), 0)
    return ((gap_Bn @ U) * inverse @ Vh).view(-1, horizon, width)


def augmented(dynamics: LinearDynamics) -> tuple[Tensor, Tensor]:
    """x' = Φ x + Γ a on x = (z_t, …, z_{t−k+1}, 1, z_goal): Φ (n, n), Γ (n, A)."""
    D, past = dynamics.B.shape[0], len(dynamics.A) * dynamics.B.shape[0]
    phi = torch.eye(past + 1 + D).to(dynamics.B)
    phi[:past, :past] = 0
    phi[:D, : past + 1] = torch.cat((*dynamics.A, dynamics.bias[:, None]), 1)
    phi[D:past, : past - D] = torch.eye(past - D).to(phi)
    return phi, F.pad(dynamics.B, (0, 0, 0, phi.shape[0] - D))


def riccati(dynamics: LinearDynamics, horizon: int, control: float = 0.0, path_discount: float = 0.0) -> list[Tensor]:
    """The gains K_t (A, n), first step first: a_t = −K_t x_t.

    What is left to pay is ‖L x‖², from ‖z_H − z_goal‖²/D back. One action may take of it, with LΓ = U s Vᵀ,

        K = V s/(s² + ρ) Uᵀ LΦ   and leaves   L ← (I − U (1 − √(ρ/(s² + ρ))) Uᵀ) LΦ,

    below which what the block before costs is written, if it counts (and L made square again by a QR).
    L and not LᵀL is carried, whose square would drown in rounding what an action can hardly reach. What the actions
    after it reach is gone from L but for rounding, so a singular value is 0 by the measure of all that is ever reached.
    """
    phi, gamma = augmented(dynamics)
    D = len(dynamics.B)
    block, unit = phi.new_zeros(D, len(phi)), torch.eye(D).to(phi) / D**0.5
    block[:, :D], block[:, -D:] = unit, -unit
    reach = dynamics.reach(horizon, path_discount)
    cut = torch.linalg.matrix_norm(reach, 2) / D**0.5 * _rounding(reach)
    gains, cost = [], block[:0]
    for share in reversed(block_weights(horizon, path_discount)):
        if share:
            cost = torch.cat((cost, share**0.5 * block))
            cost = cost if len(cost) <= len(phi) else torch.linalg.qr(cost, mode="r").R
        U, s, Vh = torch.linalg.svd(cost @ gamma, full_matrices=False)
        cost = cost @ phi
        weight = (s.square() + control).clamp(min=torch.finfo(s.dtype).tiny)
        taken = U.T @ cost
        gains.append((Vh.T * torch.where(s > cut, s / weight, 0)) @ taken)
        cost = cost - (U * torch.where(s > cut, 1 - (control / weight).sqrt(), 0)) @ taken
    return gains[::-1]


def riccati_plan(
    dynamics: LinearDynamics,
    z_BCD: Tensor,
    z_goal_BD: Tensor,
    horizon: int,
    control: float = 0.0,
    path_discount: float = 0.0,
) -> Tensor:
    """The same argmin, by the gains."""
    phi, gamma = augmented(dynamics)
    one = phi.new_ones(z_BCD.shape[0], 1)
    x_Bn = torch.cat((*dynamics.history(z_BCD), one, z_goal_BD.to(phi)), 1)
    actions = []
    for gain in riccati(dynamics, horizon, control, path_discount):
        actions.append(-x_Bn @ gain.T)
        x_Bn = x_Bn @ phi.T + actions[-1] @ gamma.T
    return torch.stack(actions, 1)


METHODS = {"dense": dense_plan, "riccati": riccati_plan}


class LQR(Solver):
    """Linear algebra instead of search, in float64. It needs no start, no seed and no compilation."""

    def __init__(self, config: LQRConfig | None = None) -> None:
        self.config = config or LQRConfig()

    @torch.no_grad()
    def solve(self, problem: Problem, start: Tensor | None = None, seed: int = 0, compile: bool = False) -> Plan:
        if not isinstance(problem, LatentProblem):
            raise UserError("LQR plans in the latent space of one linear model: use CEM for this problem.")
        start_mean(problem, start)  # a wrong shape is a mistake here too
        dynamics = LinearDynamics.from_model(problem.model)
        solve = METHODS[self.config.method]
        about = (dynamics, problem.z_BCD, problem.z_goal_BD, problem.horizon)
        actions = solve(*about, self.config.control, problem.path_discount)
        actions_BHA = actions.to(problem.dtype)
        costs_B = problem.value(actions_BHA[:, None])[:, 0]
        raise_if_dead(costs_B.isfinite(), problem)
        return Plan(actions_BHA, costs_B)
