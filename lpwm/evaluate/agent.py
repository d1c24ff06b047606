"""A trained model as an actor: it sees rendered frames, plans in latent space, sends raw actions.

B episodes, R executed blocks, A block size (raw action size × frameskip), D latent width, S state entries.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data import ActionStats
from lpwm.data.normalize import from_blocks, to_blocks
from lpwm.evaluate.episodes import Actor
from lpwm.evaluate.goals import EpisodeSet
from lpwm.evaluate.results import EvaluatedRun, Provenance
from lpwm.plan import MPC, LatentProblem, MPCConfig, Problem, Solver
from lpwm.worlds.base import World, WorldSpec

FRAMES = 256  # rendered and encoded at a time


@dataclass(frozen=True, eq=False)
class Agent:
    """One checkpoint with what it takes to see and to act.

    model    has encode(frames) and rollout(z, actions, past_BPA=, last_only=), and is in eval mode
    image    the side of the frames that it reads
    seed     the training seed; method names what is the same but for it: runs of one method are its sample
    """

    name: str
    model: Any
    image: int
    stats: ActionStats
    frameskip: int
    seed: int | str = 0
    method: str = ""
    run_hash: str = ""
    step: int = 0
    path: str = ""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def history(self) -> int:
        """The longest context that the model reads."""
        return int(getattr(self.model, "history", 1))

    @cached_property
    def weights(self) -> str:
        """The digest of the weights: what a stored result of this agent depends on. "" if there are none."""
        entries = self.model.state_dict() if hasattr(self.model, "state_dict") else {}
        state = hashlib.sha256()
        for name, tensor in entries.items():
            state.update(name.encode())
            state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return state.hexdigest()[:16] if entries else ""

    def entry(self) -> EvaluatedRun:
        """As it stands in a result."""
        same = ("name", "method", "seed", "path", "run_hash", "step", "weights", "frameskip")
        return EvaluatedRun(
            **vars(self.provenance),
            **{field: getattr(self, field) for field in same},
            normalization=self.stats,
            images=(self.image,),
            vote=None,
        )

    @torch.no_grad()
    def see(self, world: World, state_BS: Tensor) -> Tensor:
        """The codes of what the world shows of these states, (B, D)."""
        if getattr(self.model, "proprio_dim", 0):
            raise UserError(f"{self.name} was trained with proprioception, which evaluation does not feed yet.")
        return torch.cat([self.model.encode(world.render(part, self.image)) for part in state_BS.split(FRAMES)])


@dataclass(frozen=True, eq=False)
class Projection:
    """Normalized blocks (…, frameskip·A) as they are executed: within the world's bounds, or one-hot."""

    spec: WorldSpec
    stats: ActionStats
    frameskip: int

    def __call__(self, blocks: Tensor) -> Tensor:
        raw = from_blocks(self.stats.denormalize(blocks)[..., None, :], self.frameskip)
        if self.spec.discrete:
            raw = torch.zeros_like(raw).scatter_(-1, raw.argmax(-1, keepdim=True), 1.0)
        else:
            low, high = (raw.new_tensor(bound) for bound in (self.spec.action_low, self.spec.action_high))
            raw = raw.clamp(low, high)
        return self.stats.normalize(to_blocks(raw, self.frameskip)[..., 0, :])


class PlanActor(Actor):
    """Receding-horizon planning as an Actor. A subclass says what a frame is and what is minimized."""

    def __init__(
        self, mpc: MPC, stats: ActionStats, frameskip: int, seed: int, on_plan: Callable[[], None] | None = None
    ) -> None:
        self.mpc, self.stats, self.frameskip, self.seed = mpc, stats, frameskip, seed
        self.on_plan = on_plan
        self.project: Projection | None = None
        self.blocks: int | None = None  # of an episode, where plans are to arrive at its end
        self._pending: list[Tensor] = []

    def see(self, state_BS: Tensor) -> Tensor:
        raise NotImplementedError

    def problem(self, frames_BC: Tensor, past_BPA: Tensor | None, horizon: int) -> Problem:
        raise NotImplementedError

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None:
        self.mpc.begin(self.see(state_BS), self.blocks)

    def act(self) -> Tensor:
        blocks_BRA = self.mpc.plan(self.problem, self.seed)
        if self.project is not None:
            blocks_BRA = self.project(blocks_BRA)
        self._pending = list(blocks_BRA.unbind(1))
        if self.on_plan is not None:
            self.on_plan()
        return from_blocks(self.stats.denormalize(blocks_BRA), self.frameskip)

    def observe(self, state_BS: Tensor) -> None:
        self.mpc.observe(self.see(state_BS), self._pending.pop(0))


class _Shown:
    """What live simulators show now, as a world whose states are their rows."""

    def __init__(self, live: Any) -> None:
        self.live = live
        self.frames: dict[int, Tensor] = {}

    def render(self, rows: Tensor, size: int) -> Tensor:
        if size not in self.frames:
            self.frames[size] = self.live.frames(size).to(rows.device)
        return self.frames[size][rows]


class LatentActor(PlanActor):
    """Plans with the agent's model. Traces, K blocks: `latent` (B, K + 1), the RMS distance ‖z − z_goal‖/√D of every
    frame seen, and `predicted` (B, K), what the plan in force had forecast for it."""

    def __init__(
        self,
        agent: Agent,
        world: World,
        solver: Solver,
        config: MPCConfig,
        seed: int = 0,
        *,
        compile: bool = False,
        autocast: torch.dtype | None = None,
        on_plan: Callable[[], None] | None = None,
    ) -> None:
        mpc = config.build(solver, compile=compile)
        super().__init__(mpc, agent.stats, agent.frameskip, seed, on_plan)
        self.agent, self.world, self.autocast = agent, world, autocast
        self.latent: list[Tensor] = []
        self.predicted: list[Tensor] = []
        self.live: Any = None
        if getattr(world, "live_frames", False):
            self.project = Projection(world.spec, agent.stats, agent.frameskip)

    def attach(self, live: Any) -> None:
        """Simulators that show more than their state draw themselves."""
        self.live = live if getattr(self.world, "live_frames", False) else None

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None:
        device = state_BS.device
        self.number_B = episodes.number_B.to(device)
        self.goal_BD = self.agent.see(self.world, episodes.goal_BS.to(device))
        self.latent, self.predicted = [], []
        super().begin(episodes, state_BS)

    def see(self, state_BS: Tensor) -> Tensor:
        if self.live is not None:
            rows = torch.arange(len(state_BS), device=state_BS.device)
            z_BD = self.agent.see(_Shown(self.live), rows)  # type: ignore[arg-type]
        else:
            z_BD = self.agent.see(self.world, state_BS)
        self.latent.append((z_BD - self.goal_BD).square().mean(-1).sqrt())
        return z_BD

    def problem(self, frames_BC: Tensor, past_BPA: Tensor | None, horizon: int) -> Problem:
        self._problem = LatentProblem(
            self.agent.model,
            frames_BC.contiguous(),
            self.goal_BD,
            past_BPA,
            horizon,
            action_dim=len(self.stats.mean) * self.frameskip,
            env_ids=self.number_B,
            autocast=self.autocast,
            path_discount=self.mpc.config.path_discount,
            project=self.project,
        )
        return self._problem

    def act(self) -> Tensor:
        raw = super().act()
        assert self.mpc.last is not None
        plan_B1HA = self.mpc.last.actions_BHA[:, None]
        if self.project is not None:
            plan_B1HA = self.project(plan_B1HA)
        p = self._problem
        z_BHD = p.model.rollout(p.z_BCD, plan_B1HA, past_BPA=p.past_BPA, last_only=False)[:, 0]
        expected_BH = (z_BHD - self.goal_BD[:, None]).square().mean(-1).sqrt()
        self.predicted += expected_BH[:, : self.mpc.config.receding].unbind(1)
        return raw

    def traces(self) -> Mapping[str, Tensor]:
        blocks = len(self.latent) - 1
        out = {"latent": torch.stack(self.latent, 1)}
        if self.predicted and blocks > 0:
            out["predicted"] = torch.stack(self.predicted[:blocks], 1)
        return out
