"""A trained model that acts: frames in, raw actions out. Neither a world nor a data set is needed.

B environments, A size of a raw action, h and w sides of a frame.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data import ActionStats
from lpwm.data.clips import resize
from lpwm.evaluate.agent import Agent as Seer
from lpwm.evaluate.agent import LatentActor
from lpwm.evaluate.config import preset as find_preset
from lpwm.evaluate.goals import EpisodeSet
from lpwm.model import WorldModel
from lpwm.plan import MPCConfig, Plan, Solver, make_solver
from lpwm.train.run import spec_of


@runtime_checkable
class SolverConfig(Protocol):
    def build(self) -> Solver: ...


class _Camera:
    """What `LatentActor` takes for a world whose states are frames (B, 3, h, w)."""

    def render(self, frames: Tensor, size: int | None = None) -> Tensor:
        return frames if size is None else resize(frames, (size, size))


class Agent:
    """Plans in latent space towards a goal frame.

        agent = lpwm.load("runs/…")
        agent.reset(goal=goal_frame)
        while …:
            action = agent.act(frame)

    A frame is uint8 (h, w, 3), as gymnasium renders it, or a batch (B, h, w, 3); another size is resized. A plan is
    made of blocks of `frameskip` actions: every call returns one action, every `frameskip` calls the frame is encoded,
    and after `receding` blocks the next plan starts from the tail of the last one.

    plan      the last `Plan`: normalized actions, costs, and what the solver tells besides
    distance  RMS distance of the last encoded frame from the goal in latent space, (B,)
    """

    def __init__(
        self,
        model: WorldModel,
        stats: ActionStats,
        frameskip: int,
        low: tuple[float, ...],
        high: tuple[float, ...],
        *,
        name: str = "model",
        solver: Solver | None = None,
        config: MPCConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.model, self.name, self.frameskip = model, name, frameskip
        self.low, self.high = np.array(low, np.float32), np.array(high, np.float32)
        self.device = next(model.parameters()).device
        self.image_size = model.config.encoder.image_size
        self._actor = LatentActor(
            Seer(name, (model,), (self.image_size,), stats, frameskip),
            _Camera(),  # type: ignore[arg-type]
            solver or make_solver("cem"),
            config or MPCConfig(context=model.history),
            seed,
        )
        self._goal: Tensor | None = None
        self._single = True
        self._step = 0
        self._queue: list[Tensor] = []  # raw actions (B, A) to come

    @property
    def plan(self) -> Plan | None:
        return self._actor.mpc.last

    @property
    def distance(self) -> NDArray[np.float32] | None:
        return self._actor.latent[-1].cpu().numpy() if self._actor.latent else None

    def reset(self, goal: Any) -> None:
        """Begin an episode, or a batch of them: the frame to reach, uint8 (h, w, 3) or (B, h, w, 3)."""
        self._goal = self._frames(goal, "the goal")
        self._step, self._queue = 0, []

    @torch.no_grad()
    def act(self, frame: Any) -> NDArray[np.float32]:
        """The next raw action for this frame, (A,) or (B, A), within the bounds."""
        if self._goal is None:
            raise UserError("the agent has no goal: call reset(goal=frame) first.")
        frames = self._frames(frame, "the frame")
        self._single = np.ndim(frame) == 3
        if self._step == 0:
            self._begin(frames)
        elif self._step % self.frameskip == 0:
            self._actor.observe(frames)
        if not self._queue:
            self._queue = list(self._actor.act().unbind(1))
        self._step += 1
        action = self._queue.pop(0).float().cpu().numpy().clip(self.low, self.high)
        return action[0] if self._single else action

    def _begin(self, frames: Tensor) -> None:
        assert self._goal is not None
        batch = len(frames)
        if len(self._goal) not in (1, batch):
            raise UserError(f"there are {len(self._goal)} goals and {batch} frames: give one goal, or one per frame.")
        goal = self._goal.expand(batch, -1, -1, -1)
        ids = tuple(map(str, range(batch)))
        self._actor.begin(EpisodeSet("frames", frames, goal, torch.arange(batch), ids, "frames", 0), frames)

    def _frames(self, given: Any, what: str) -> Tensor:
        """(B, 3, size, size) uint8 on the model's device."""
        array = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
        if array.dtype != torch.uint8 or array.ndim not in (3, 4) or array.shape[-1] != 3 or 0 in array.shape:
            raise UserError(
                f"{what} is {str(array.dtype).removeprefix('torch.')} of shape {tuple(array.shape)}: give uint8 "
                "(height, width, 3), or a batch (B, height, width, 3)."
            )
        batch = array[None] if array.ndim == 3 else array
        frames = batch.to(self.device).permute(0, 3, 1, 2).contiguous()
        return resize(frames, (self.image_size, self.image_size))


def load(
    path: str | os.PathLike[str] | Any,
    device: str | torch.device = "cpu",
    *,
    preset: str = "quick",
    solver: str | SolverConfig | Solver | None = None,
    horizon: int | None = None,
    receding: int = 1,
    seed: int = 0,
    checkpoint: str = "latest",
) -> Agent:
    """An agent from a run, a checkpoint, a folder of `save_pretrained`, or owner/name on the Hugging Face Hub.

    preset    where the solver and the horizon come from: one of `lpwm eval`'s
    solver    another one: a name ("cem", "icem", "mppi", "gradient", "lqr") or a config (`lpwm.CEMConfig(samples=64)`)
    receding  blocks executed before planning again
    """
    path = getattr(path, "folder", path)
    settings = find_preset(preset)
    model = WorldModel.from_pretrained(path, device=device, checkpoint=checkpoint)
    if model.meta["normalization"] is None or model.meta["frameskip"] is None:
        raise UserError(
            f"{path} does not say how its actions are normalized: save it with meta={{'normalization': …, "
            "'frameskip': …}, or load the run it came from."
        )
    horizon = horizon or settings.horizons[0]
    config = MPCConfig(
        horizon, receding, settings.warm, settings.context or model.history, path_discount=settings.path_discount
    )
    if solver is None:
        solver = settings.build_solver()
    elif isinstance(solver, str):
        solver = make_solver(solver)
    elif not isinstance(solver, Solver):
        solver = solver.build()
    name = Path(path).name
    spec = spec_of(model.meta)
    return Agent(
        model,
        ActionStats.from_dict(model.meta["normalization"]),
        model.meta["frameskip"],
        spec.action_low,
        spec.action_high,
        name=name,
        solver=solver,
        config=config,
        seed=seed,
    )
