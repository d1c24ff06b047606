"""iCEM (Pinneri et al. 2020): colored noise, elites that stay, a population that may shrink."""

import functools
import math

import torch
from torch import Tensor

from lpwm.plan.cem import refit
from lpwm.plan.config import ICEMConfig
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Plan, Sampler, State, finite_or_inf, noise, take


@functools.cache
def color(horizon: int, beta: float, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix L (H, H) for which L·white has spectral density ∝ f^−β and unit variance at every step.

    A real Fourier basis: columns √2·cos(2πft/H), √2·sin(2πft/H) for 0 < f < H/2, and one column each for
    f = 0 (with the amplitude of f = 1/H, so that the mean stays finite) and f = H/2.
    Made once, so that no copy from the host is needed while a plan is being captured.
    """
    t = torch.arange(horizon, dtype=torch.float64)
    columns = [torch.ones(horizon, dtype=torch.float64)]
    for f in range(1, horizon // 2 + 1):
        angle, amplitude = 2 * math.pi * f * t / horizon, f ** (-beta / 2)
        if 2 * f == horizon:
            columns.append(amplitude * torch.cos(angle))
        else:
            columns += [amplitude * math.sqrt(2) * torch.cos(angle), amplitude * math.sqrt(2) * torch.sin(angle)]
    basis = torch.stack(columns, 1)
    return (basis / basis.norm(dim=1, keepdim=True)).to(device, dtype)


class ICEM(Sampler):
    """CEM whose candidates are colored noise and the best of the last elites; the best candidate is the plan. The kept
    elites are scored again with the new candidates, so the best one is never lost, and costs that are only ranks work
    too."""

    settings = ICEMConfig

    def solve(self, problem: Problem, start: Tensor | None = None, seed: int = 0, compile: bool = False) -> Plan:
        # A population that shrinks has new shapes at every iteration: compiling each would cost more.
        return super().solve(problem, start, seed, compile and self.config.decay == 1)

    def config_at(self, iteration: int) -> ICEMConfig:
        return self.config.at(iteration)

    def first(self, problem: Problem, mean_BHA: Tensor) -> State:
        std_BHA = torch.full_like(mean_BHA, self.config.std)
        kept_BEHA = mean_BHA[:, None].expand(-1, self.config.kept, -1, -1).contiguous()
        color_HH = color(problem.horizon, self.config.beta, problem.device, problem.dtype)
        alive_B = torch.zeros_like(problem.env_ids, dtype=torch.bool)
        return alive_B, mean_BHA, std_BHA, mean_BHA.clone(), kept_BEHA, color_HH

    @staticmethod
    def iterate(config: ICEMConfig, problem: Problem, state: State, key_B: Tensor, iteration: Tensor) -> State:
        alive_B, mean_BHA, std_BHA, best_BHA, kept_BEHA, color_HH = state
        eps_BSHA = color_HH @ noise(problem, key_B, iteration, config.samples)
        eps_BSHA[:, 0] = 0
        actions_BSHA = torch.addcmul(mean_BHA[:, None], std_BHA[:, None], eps_BSHA)
        if config.kept:
            new = actions_BSHA[:, -config.kept :]
            actions_BSHA[:, -config.kept :] = torch.where(iteration > 0, kept_BEHA, new)
        cost_BS = finite_or_inf(problem.cost(actions_BSHA))
        cost_BK, index_BK = cost_BS.topk(config.elites, dim=1, largest=False)
        elites_BKHA = take(actions_BSHA, index_BK)
        mean, std, fine_B = refit(elites_BKHA, cost_BK, mean_BHA, std_BHA)
        best_BHA = torch.where(fine_B[:, None, None], elites_BKHA[:, 0], best_BHA)
        mean_BHA = torch.lerp(mean, mean_BHA, config.momentum)
        std_BHA = torch.lerp(std, std_BHA, config.momentum)
        kept_BEHA = elites_BKHA[:, : config.kept].contiguous()  # the strides it had: no second compilation
        return alive_B | fine_B, mean_BHA, std_BHA, best_BHA, kept_BEHA, color_HH

    def last(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        return state[3], {"mean": state[1], "std": state[2]}
