"""Adam through the rollout, from several starts; the best plan seen is kept."""

import torch
from torch import Tensor

from lpwm.core.rng import fold
from lpwm.plan.config import GradientConfig
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Plan, Solver, finite_or_inf, noise, raise_if_dead, start_mean


class Gradient(Solver):
    """a ← a − lr·m̂/(√v̂ + 1e−8) on ∇_a value(a), for R starts per environment; start 0 is the mean itself. It follows
    `Problem.value`, which must have a gradient."""

    graph = True

    def __init__(self, config: GradientConfig | None = None) -> None:
        self.config = config or GradientConfig()
        self.candidates = self.config.restarts

    def solve(self, problem: Problem, start: Tensor | None = None, seed: int = 0, compile: bool = False) -> Plan:
        c = self.config
        mean_BHA = start_mean(problem, start)
        eps_BRHA = noise(problem, fold(seed, problem.env_ids), torch.tensor(0, device=problem.device), c.restarts)
        eps_BRHA[:, 0] = 0
        a = mean_BHA[:, None] + c.std * eps_BRHA
        m, v = torch.zeros_like(a), torch.zeros_like(a)
        best, best_BR = a, a.new_full(a.shape[:2], torch.inf)
        for i in self.rounds(c.iterations + 1, problem.device):
            cost_BR, gradient = _descend(problem, a)
            better_BR = cost_BR < best_BR
            best = torch.where(better_BR[:, :, None, None], a, best)
            best_BR = torch.where(better_BR, cost_BR, best_BR)
            m = torch.lerp(gradient, m, c.beta1)
            v = torch.lerp(gradient.square(), v, c.beta2)
            scale = (1 - c.beta2 ** (i + 1)) ** 0.5
            a = a - (c.lr / (1 - c.beta1 ** (i + 1))) * m / (v.sqrt() / scale + 1e-8)
        raise_if_dead(best_BR.isfinite().any(1), problem)
        cost_B, index_B = best_BR.min(1)
        row_B = torch.arange(problem.batch, device=problem.device)
        info = {"restart_costs": best_BR}
        if self.seconds is not None:
            info["iterations"] = torch.full_like(problem.env_ids, i + 1)
        return Plan(best[row_B, index_B], cost_B, info)


def _descend(problem: Problem, actions_BRHA: Tensor) -> tuple[Tensor, Tensor]:
    """Costs (non-finite as +inf) and their gradient (non-finite entries as 0), both detached."""
    with torch.enable_grad():
        a = actions_BRHA.detach().requires_grad_()
        cost_BR = problem.value(a)
        (gradient,) = torch.autograd.grad(cost_BR.sum(), a)
    return finite_or_inf(cost_BR.detach()), torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
