"""The cross-entropy method, as in the paper (method §5)."""

import torch
from torch import Tensor

from lpwm.plan.config import CEMConfig
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Sampler, State, finite_or_inf, noise, take


def refit(elites_BKHA: Tensor, cost_BK: Tensor, mean_BHA: Tensor, std_BHA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and unbiased standard deviation of the elites with a finite cost, and whether there is one. An environment
    without a finite elite keeps its mean; one with fewer than two keeps its std."""
    w_BK11 = cost_BK.isfinite().to(elites_BKHA.dtype)[:, :, None, None]
    n_B11 = w_BK11.sum(1)
    mean = (w_BK11 * elites_BKHA).sum(1) / n_B11.clamp(min=1)
    var = (w_BK11 * (elites_BKHA - mean[:, None]).square()).sum(1) / (n_B11 - 1).clamp(min=1)
    alive_B = n_B11[:, 0, 0] >= 1
    return torch.where(n_B11 >= 1, mean, mean_BHA), torch.where(n_B11 >= 2, var.sqrt(), std_BHA), alive_B


class CEM(Sampler):
    """Repeat: a_0 = mean, a_s = mean + std·ε_s; keep the K cheapest; mean, std ← theirs. Return the mean."""

    settings = CEMConfig

    def first(self, problem: Problem, mean_BHA: Tensor) -> State:
        alive_B = torch.zeros_like(problem.env_ids, dtype=torch.bool)
        return alive_B, mean_BHA, torch.full_like(mean_BHA, self.config.std), mean_BHA.new_zeros(problem.batch)

    @staticmethod
    def iterate(config: CEMConfig, problem: Problem, state: State, key_B: Tensor, iteration: Tensor) -> State:
        alive_B, mean_BHA, std_BHA, _ = state
        eps_BSHA = noise(problem, key_B, iteration, config.samples)
        eps_BSHA[:, 0] = 0
        actions_BSHA = torch.addcmul(mean_BHA[:, None], std_BHA[:, None], eps_BSHA)
        cost_BS = finite_or_inf(problem.cost(actions_BSHA))
        cost_BK, index_BK = cost_BS.topk(config.elites, dim=1, largest=False)
        mean_BHA, std_BHA, fine_B = refit(take(actions_BSHA, index_BK), cost_BK, mean_BHA, std_BHA)
        return alive_B | fine_B, mean_BHA, std_BHA, cost_BK[:, 0]

    def last(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """The elite mean; info: the final std (B, H, A) and the cheapest cost of the last iteration (B,)."""
        _, mean_BHA, std_BHA, best_B = state
        return mean_BHA, {"std": std_BHA, "best": best_B}
