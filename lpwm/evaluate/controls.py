"""Controls on the same episodes, through the same loop: no action, random actions, planning in the true simulator."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.data import ActionStats
from lpwm.evaluate.agent import PlanActor
from lpwm.evaluate.episodes import Actor
from lpwm.evaluate.goals import EpisodeSet
from lpwm.plan import LiveOracleProblem, MPCConfig, OracleProblem, Problem, Solver
from lpwm.worlds.base import Live, World
from lpwm.worlds.policies import Random


class Nothing(Actor):
    """The zero action, or the nearest the world allows."""

    def __init__(self, world: World, frameskip: int) -> None:
        self.world, self.frameskip = world, frameskip

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None:
        spec = self.world.spec
        low, high = (state_BS.new_tensor(x) for x in (spec.action_low, spec.action_high))
        still = state_BS.new_tensor(getattr(self.world, "still", (0.0,) * spec.action_dim)).clamp(low, high)
        self.block = still.expand(len(episodes), self.frameskip, spec.action_dim)

    def act(self) -> Tensor:
        return self.block


class RandomActions(Nothing):
    """Uniform within the world's bounds; episode e's action at step t is a function of (seed, e, t)."""

    def __init__(self, world: World, frameskip: int, seed: int = 0) -> None:
        super().__init__(world, frameskip)
        self.policy, self.seed = Random(world), seed

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None:
        self.keys = rng.fold(rng.seed_of(self.seed, "random control"), episodes.number_B.to(state_BS.device))
        self.state, self.t = state_BS, 0

    def act(self) -> Tensor:
        steps = range(self.t, self.t + self.frameskip)
        self.t += self.frameskip
        empty = self.state[:, :0]
        return torch.stack([self.policy.act(self.state, self.state, empty, self.keys, t)[0] for t in steps], 1)


class Oracle(PlanActor):
    """The same planner with the true simulator as its model: the ceiling of this planner, not of all of them. In a
    world of live simulators its candidates branch off the episodes' own, hidden state included."""

    def __init__(
        self,
        world: World,
        stats: ActionStats,
        frameskip: int,
        solver: Solver,
        config: MPCConfig,
        seed: int = 0,
        on_plan: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config.build(solver), stats, frameskip, seed, on_plan)
        self.world = world
        self.live: Live | None = None

    def attach(self, live: Live) -> None:
        """The simulators of the episodes to come; the loop calls it where there are any."""
        self.live = live

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None:
        self.number_B = episodes.number_B.to(state_BS.device)
        self.goal_BS = episodes.goal_BS.to(state_BS.device)
        super().begin(episodes, state_BS)

    def see(self, state_BS: Tensor) -> Tensor:
        return state_BS

    def problem(self, frames_BC: Tensor, past_BPA: Tensor | None, horizon: int) -> Problem:
        about = (self.world, frames_BC[:, -1], self.goal_BS, horizon, self.frameskip)
        scale = (self.stats.mean, self.stats.std)
        options: dict[str, Any] = {"env_ids": self.number_B, "path_discount": self.mpc.config.path_discount}
        if self.live is not None:
            return LiveOracleProblem(self.live, *about, *scale, **options)
        return OracleProblem(*about, *scale, **options)
