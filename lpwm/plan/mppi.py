"""Model-predictive path integral control (Williams et al. 2017): every candidate counts, by its cost."""

import torch
from torch import Tensor

from lpwm.plan.config import MPPIConfig
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Sampler, State, finite_or_inf, noise


class MPPI(Sampler):
    """mean ← Σ w_s a_s with w ∝ exp(−(c_s − min c)/(λ·sd(c))); a_0 is the mean, a_s = mean + σ·ε_s. Latent costs have
    no natural unit, so the temperature λ is relative to their spread."""

    settings = MPPIConfig

    def first(self, problem: Problem, mean_BHA: Tensor) -> State:
        alive_B = torch.zeros_like(problem.env_ids, dtype=torch.bool)
        return alive_B, mean_BHA, mean_BHA.new_full((), self.config.std), mean_BHA.new_zeros(problem.batch)

    @staticmethod
    def iterate(config: MPPIConfig, problem: Problem, state: State, key_B: Tensor, iteration: Tensor) -> State:
        alive_B, mean_BHA, std, _ = state
        eps_BSHA = noise(problem, key_B, iteration, config.samples)
        eps_BSHA[:, 0] = 0
        actions_BSHA = torch.addcmul(mean_BHA[:, None], std, eps_BSHA)
        cost_BS = finite_or_inf(problem.cost(actions_BSHA))
        w_BS = weights(cost_BS, config.temperature)
        fine_B = cost_BS.isfinite().any(1)
        moved = torch.einsum("bs,bsha->bha", w_BS, actions_BSHA)
        mean_BHA = torch.where(fine_B[:, None, None], moved, mean_BHA)
        return alive_B | fine_B, mean_BHA, std * config.decay, cost_BS.amin(1)

    def last(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted mean; info: the cheapest cost of the last iteration (B,)."""
        return state[1], {"best": state[3]}


def weights(cost_BS: Tensor, temperature: float) -> Tensor:
    """softmax(−c / (λ·sd(c))) over the finite costs; +inf weighs nothing."""
    finite = cost_BS.isfinite()
    n = finite.sum(1, keepdim=True).clamp(min=1)
    least = cost_BS.amin(1, keepdim=True)
    gap = torch.where(finite, cost_BS - least, 0)
    centered = torch.where(finite, gap - gap.sum(1, keepdim=True) / n, 0)
    spread = (centered.square().sum(1, keepdim=True) / n).sqrt()
    tiny = torch.finfo(cost_BS.dtype).tiny
    logit = torch.where(finite, -gap / (temperature * spread).clamp(min=tiny), -torch.inf)
    return torch.nan_to_num(logit.softmax(1))  # a row without a finite cost is all NaN: it weighs nothing
