"""Running a protocol: every cell, every method, every control, each distinct run of the loop once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.data import EpisodeData
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.controls import Store
from lpwm.evaluate.curve import Curve, distance_curve
from lpwm.evaluate.evaluator import Evaluator, check_agents
from lpwm.evaluate.goals import EpisodeSet, dataset_goals, random_goals
from lpwm.evaluate.outcome import Evaluation
from lpwm.evaluate.protocol import EvalConfig


def episode_sets(
    world: Any, config: EvalConfig, data: EpisodeData | None, holdout: float, frameskip: int
) -> dict[str, EpisodeSet]:
    sets = {}
    for kind in config.goals:
        if kind == "random":
            sets[kind] = random_goals(world, config.episodes, seed=config.seed)
        else:
            if data is None:
                raise UserError("dataset goals need the data set: give it, or ask for random goals.")
            sets[kind] = dataset_goals(
                data,
                config.episodes,
                seed=config.seed,
                offset=config.offset,
                holdout=holdout,
                horizon_steps=max(config.horizons) * frameskip,
            )
    return sets


def evaluate(
    agents: Sequence[Agent],
    world: Any,
    config: EvalConfig | None = None,
    *,
    data: EpisodeData | None = None,
    holdout: float = 0.1,
    sets: Mapping[str, EpisodeSet] | None = None,
    device: torch.device | str = "cpu",
    store: Store | None = None,
    compile: bool = False,
    either: bool = False,
    workers: int | None = 1,
    progress: Callable[[int], None] | None = None,
    predicted_s: float | None = None,
    finished_only: bool = False,
) -> Evaluation:
    """All cells of `config` for these agents, beside their controls.

    workers: processes for live simulators; None is one per core for the oracle's, which branch, and one for the others.
    Nothing depends on it.
    sets: the episodes, if they are not to be drawn from `config` (a picture as the goal, or a selection).
    progress: called with the number of plans made; `Evaluator.jobs` tells how many there will be.
    either, finished_only: see `Evaluator`.
    """
    config = config or EvalConfig()
    began = time.perf_counter()
    check_agents(agents, config)
    if sets is None:
        sets = episode_sets(world, config, data, holdout, max(a.frameskip for a in agents))
    runner = Evaluator(
        agents,
        world,
        config,
        sets,
        device=device,
        store=store,
        compile=compile,
        either=either,
        workers=workers,
        progress=progress,
        finished_only=finished_only,
    )
    every = [runner.cell(kind, H, R) for kind in sets for H, R in config.ways()]
    cells = tuple(cell for cell in every if cell is not None)
    if not cells:
        raise UserError("nothing of this evaluation is finished: run it without --finished-only.")
    curves: dict[str, Curve] = {}
    if config.curve:
        for agent in agents:
            see = functools.partial(agent.see, world)
            curves[agent.name] = distance_curve(see, world, states=config.curve, seed=config.seed, device=device)
    return Evaluation(
        config=config,
        world=world,
        sets=sets,
        cells=cells,
        agents=tuple(agents),
        curves=curves,
        groups={kind: _groups(world, s) for kind, s in sets.items() if s.image is None},
        device=_device_name(torch.device(device)),
        holdout=holdout,
        predicted_s=predicted_s,
        missing=tuple(runner.missing),
        wall_s=time.perf_counter() - began,
    )


def _groups(world: Any, episodes: EpisodeSet) -> dict[str, np.ndarray]:
    """Episodes to report apart, where the world names some: PushT's goals that need the block to move."""
    if not hasattr(world, "goal_groups"):
        return {}
    found = world.goal_groups(episodes.start_BS, episodes.goal_BS)
    return {name: np.asarray(which, dtype=bool) for name, which in found.items()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
