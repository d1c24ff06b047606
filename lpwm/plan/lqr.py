"""The exact plan when the learned dynamics are linear (method §8).

    z_{t+1} = Σ_{i<k} A_i z_{t−i} + B a_t + b,      J(a) = Σ_h w_h ‖z_h − z_goal‖²/D + ρ Σ_t ‖a_t‖²

holds for LTI, and any predictor as linear, with the identity link and a linear action encoder; w_H = 1 and the others 0
unless the path counts (`block_weights`). z_h = f_h + G_h·(a_0 … a_{H−1}), so this is a least-squares problem, solved by
one SVD for all environments.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
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
    def from_model(cls, model: Any) -> "LinearDynamics":
        """The composite maps of a model, action encoder included, by its rollouts of zero and basis vectors. One that
        is not their sum at random codes and actions is refused."""
        like, D, width, k = next(model.parameters()), model.config.latent, model.action_dim, model.history

        def probe(z_BCD: Tensor, actions_BA: Tensor) -> Tensor:
            past = z_BCD.new_zeros(len(z_BCD), z_BCD.shape[1] - 1, width) if z_BCD.shape[1] > 1 else None
            z_B1D: Tensor = model.rollout(z_BCD, actions_BA[:, None, None], past_BPA=past, last_only=True)
            return z_B1D[:, 0].double()

        bias = probe(like.new_zeros(1, 1, D), like.new_zeros(1, width))[0]
        A = []
        for lag in range(k):  # the basis vector `lag` frames ago, zeros since, nothing before
            z = F.pad(torch.eye(D).to(like)[:, None], (0, 0, 0, lag))
            A.append((probe(z, like.new_zeros(D, width)) - bias).T.contiguous())
        B = (probe(like.new_zeros(width, 1, D), torch.eye(width).to(like)) - bias).T.contiguous()
        made, g = cls(tuple(A), B, bias), generator("linear dynamics")
        z, a = (10 * torch.randn(shape, generator=g).to(like) for shape in ((8, k, D), (8, width)))
        truth, linear = probe(z, a), made.free(z, 1)[0] + a.double() @ B.T
        if not (truth - linear).abs().max() <= 1e-2 * (1 + truth.abs().max()):  # TF32 rounds by a tenth of it
            about = f"link {model.config.link!r}, rung {model.config.predictor.rung!r} and action encoder"
            remedy = "train with link 'identity', rung 'lti' or 'lti1' and action_encoder 'linear', or plan with CEM"
            raise UserError(f"LQR needs linear dynamics, not {about} {model.config.action_encoder!r}: {remedy}.")
        return made

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


def dense_plan(
    dynamics: LinearDynamics,
    z_BCD: Tensor,
    z_goal_BD: Tensor,
    horizon: int,
    control: float = 0,
    path_discount: float = 0,
) -> Tensor:
    """argmin J by the SVD of all G_h that count, (B, H, A); of several minimizers the shortest."""
    D, width = dynamics.B.shape
    goal_BD, free = z_goal_BD.to(dynamics.B), dynamics.free(z_BCD, horizon)
    weights = block_weights(horizon, path_discount)
    gap_Bn = torch.cat([w**0.5 * (goal_BD - f) for w, f in zip(weights, free, strict=True) if w], 1)
    reach = torch.cat([w**0.5 * G for w, G in zip(weights, dynamics.responses(horizon), strict=True) if w])
    U, s, Vh = torch.linalg.svd(reach, full_matrices=False)
    cut = s[0] * (max(reach.shape) * torch.finfo(reach.dtype).eps)  # singular values below it are 0
    inverse = torch.where(s > cut, s / (s.square() + control * D).clamp(min=torch.finfo(s.dtype).tiny), 0)
    return ((gap_Bn @ U) * inverse @ Vh).view(-1, horizon, width)


class LQR(Solver):
    """Linear algebra instead of search, in float64. It needs no start, no seed and no compilation."""

    def __init__(self, config: LQRConfig | None = None) -> None:
        self.config = config or LQRConfig()

    @torch.no_grad()
    def solve(self, problem: Problem, start: Tensor | None = None, seed: int = 0, compile: bool = False) -> Plan:
        if not isinstance(problem, LatentProblem) or problem.metric is not None or problem.project is not None:
            raise UserError("LQR plans to a code in the latent space of one linear model: use CEM for this problem.")
        start_mean(problem, start)  # a wrong shape is a mistake here too
        about = LinearDynamics.from_model(problem.model), problem.z_BCD, problem.z_goal_BD, problem.horizon
        actions_BHA = dense_plan(*about, self.config.control, problem.path_discount).to(problem.dtype)
        costs_B = problem.value(actions_BHA[:, None])[:, 0]
        raise_if_dead(costs_B.isfinite(), problem)
        return Plan(actions_BHA, costs_B)
