"""A trained model as an actor: it sees rendered frames, plans in latent space, sends raw actions.

B episodes, R executed blocks, A block size (raw action size × frameskip), D latent width, S state entries.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
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
from lpwm.plan import MPC, ConsensusProblem, LatentProblem, MPCConfig, Problem, Solver
from lpwm.worlds.base import World, WorldSpec

FRAMES = 256  # rendered and encoded at a time


@dataclass(frozen=True, eq=False)
class Agent:
    """One checkpoint (or several that vote) with what it takes to see and to act.

    models   each has encode(frames) and rollout(z, actions, past_BPA=, last_only=), and is in eval mode
    images   the side of the frames each of them reads
    seed     the training seed; method names what is the same but for it: runs of one method are its sample
    """

    name: str
    models: tuple[Any, ...]
    images: tuple[int, ...]
    stats: ActionStats
    frameskip: int
    seed: int | str = 0
    method: str = ""
    vote: str = "borda"
    run_hash: str = ""
    step: int = 0
    path: str = ""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def history(self) -> int:
        """The longest context a member reads."""
        return max(int(getattr(model, "history", 1)) for model in self.models)

    @cached_property
    def weights(self) -> str:
        """The digest of all weights: what a stored result of this agent depends on. "" if there are none."""
        state = hashlib.sha256()
        for model in self.models:
            entries = model.state_dict() if hasattr(model, "state_dict") else {}
            if not entries:
                return ""
            for name, tensor in entries.items():
                state.update(name.encode())
                state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return state.hexdigest()[:16]

    def entry(self) -> EvaluatedRun:
        """As it stands in a result."""
        same = ("name", "method", "seed", "path", "run_hash", "step", "weights", "frameskip", "images")
        return EvaluatedRun(
            **vars(self.provenance),
            **{field: getattr(self, field) for field in same},
            normalization=self.stats,
            vote=self.vote if len(self.models) > 1 else None,
        )

    @torch.no_grad()
    def codes(self, frames: Callable[[int], Tensor]) -> list[Tensor]:
        """One code (B, D) per member; `frames` gives uint8 (B, 3, h, w) for the size of a picture."""
        if any(getattr(model, "proprio_dim", 0) for model in self.models):
            raise UserError(f"{self.name} was trained with proprioception, which evaluation does not feed yet.")
        drawn = {image: frames(image) for image in set(self.images)}
        return [model.encode(drawn[image]) for model, image in zip(self.models, self.images, strict=True)]

    def see(self, world: World, state_BS: Tensor) -> Tensor:
        """The codes of the members next to one another, (B, ΣD)."""
        parts = state_BS.split(FRAMES)
        return torch.cat([torch.cat(self.codes(functools.partial(world.render, s)), -1) for s in parts])


def consensus(agents: Sequence[Agent], vote: str = "borda", name: str = "") -> Agent:
    """Several checkpoints as one agent: each ranks the candidates, the votes decide."""
    if len(agents) < 2:
        raise UserError("a consensus needs at least two runs.")
    first = agents[0]
    for other in agents[1:]:
        if other.frameskip != first.frameskip or other.stats != first.stats:
            raise UserError(
                f"{first.name} and {other.name} scale actions differently: a consensus needs runs on the same data "
                "with the same frameskip."
            )
    method = f"consensus of {len(agents)} ({vote})"
    return Agent(
        name=name or method,
        models=tuple(m for a in agents for m in a.models),
        images=tuple(i for a in agents for i in a.images),
        stats=first.stats,
        frameskip=first.frameskip,
        seed="+".join(str(a.seed) for a in agents),
        method=method,
        vote=vote,
        run_hash="+".join(a.run_hash for a in agents),
        step=max(a.step for a in agents),
    )


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
        one = functools.partial(self.world.render, state_BS[:1])
        self.widths = [z.shape[-1] for z in self.agent.codes(one)]
        self.latent, self.predicted = [], []
        super().begin(episodes, state_BS)

    def see(self, state_BS: Tensor) -> Tensor:
        if self.live is not None:
            rows = torch.arange(len(state_BS), device=state_BS.device)
            z_BD = self.agent.see(_Shown(self.live), rows)  # type: ignore[arg-type]
        else:
            z_BD = self.agent.see(self.world, state_BS)
        self.latent.append(self._distance(z_BD, self.goal_BD))
        return z_BD

    def _distance(self, z: Tensor, goal: Tensor) -> Tensor:
        """RMS distance, the mean over members."""
        pairs = zip(z.split(self.widths, -1), goal.split(self.widths, -1), strict=True)
        return torch.stack([(a - b).square().mean(-1).sqrt() for a, b in pairs]).mean(0)

    def problem(self, frames_BC: Tensor, past_BPA: Tensor | None, horizon: int) -> Problem:
        frames, goals = frames_BC.split(self.widths, -1), self.goal_BD.split(self.widths, -1)
        members = [
            LatentProblem(
                model,
                z.contiguous(),
                goal.contiguous(),
                past_BPA,
                horizon,
                action_dim=len(self.stats.mean) * self.frameskip,
                env_ids=self.number_B,
                autocast=self.autocast,
                path_discount=self.mpc.config.path_discount,
                project=self.project,
            )
            for model, z, goal in zip(self.agent.models, frames, goals, strict=True)
        ]
        self._members = members
        return members[0] if len(members) == 1 else ConsensusProblem(members, self.agent.vote)

    def act(self) -> Tensor:
        raw = super().act()
        assert self.mpc.last is not None
        plan_B1HA = self.mpc.last.actions_BHA[:, None]
        if self.project is not None:
            plan_B1HA = self.project(plan_B1HA)
        z = [m.model.rollout(m.z_BCD, plan_B1HA, past_BPA=m.past_BPA, last_only=False)[:, 0] for m in self._members]
        expected_BH = self._distance(torch.cat(z, -1), self.goal_BD[:, None])
        self.predicted += expected_BH[:, : self.mpc.config.receding].unbind(1)
        return raw

    def traces(self) -> Mapping[str, Tensor]:
        blocks = len(self.latent) - 1
        out = {"latent": torch.stack(self.latent, 1)}
        if self.predicted and blocks > 0:
            out["predicted"] = torch.stack(self.predicted[:blocks], 1)
        return out
