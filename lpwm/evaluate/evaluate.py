"""Running a protocol: every cell, every method, every control, each distinct run of the loop once."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.core.provenance import origin
from lpwm.core.version import __version__
from lpwm.data import EpisodeData
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.curve import distance_curve
from lpwm.evaluate.evaluator import Evaluator, check_agents
from lpwm.evaluate.goals import EpisodeSet, episode_sets
from lpwm.evaluate.played import Played
from lpwm.evaluate.results import VERSION, Evaluation, WorldName


def evaluate(
    agents: Sequence[Agent],
    world: Any,
    config: EvalConfig | None = None,
    *,
    data: EpisodeData | None = None,
    holdout: float = 0.1,
    sets: Mapping[str, EpisodeSet] | None = None,
    **options: Any,
) -> Evaluation:
    """All cells of `config` for these agents and their controls.

    sets: the episodes, if they are not to be drawn from `config` (a picture as the goal, or a selection).
    options: of `Evaluator`: device, store, compile, workers, progress, …
    """
    config = config or EvalConfig()
    check_agents(agents, config)
    if sets is None:
        sets = episode_sets(world, config, data, holdout, max(a.frameskip for a in agents))
    return run(Evaluator(agents, world, config, sets, **options), holdout)


def run(runner: Evaluator, holdout: float, predicted_s: float | None = None) -> Evaluation:
    """Every cell of an evaluator, measured."""
    began = time.perf_counter()
    config, world, sets = runner.config, runner.world, runner.sets
    every = [runner.cell(kind, H, R) for kind in sets for H, R in config.pairs()]
    cells = tuple(cell for cell in every if cell is not None)
    if not cells:
        raise UserError("nothing of this evaluation is finished: run it without --finished-only.")
    curves = {}
    for agent in runner.agents if config.curve else ():
        see = functools.partial(agent.see, world)
        curves[agent.name] = distance_curve(see, world, states=config.curve, seed=config.seed, device=runner.device)
    groups = {kind: _groups(world, s) for kind, s in sets.items()}
    code = origin()
    return Evaluation(
        version=VERSION,
        versions=versions(),
        commit=code["commit"],
        source=code["source"],
        device=_device_name(runner.device),
        threads=torch.get_num_threads(),
        settings=config,
        world=WorldName(world.spec.name, dict(world.spec.options)),
        holdout=holdout,
        runs=tuple(a.entry() for a in runner.agents),
        episode_sets={kind: s.entry() for kind, s in sets.items()},
        cells=tuple(cell.measured(config.budgets, groups[cell.goals]) for cell in cells),
        curves=curves,
        predicted_s=predicted_s,
        wall_s=time.perf_counter() - began,
        missing=tuple(runner.missing),
        played=Played(world, sets, cells),
    )


def _groups(world: Any, episodes: EpisodeSet) -> dict[str, np.ndarray]:
    """Episodes to report apart, where the world names some: PushT's goals that need the block to move."""
    if episodes.image is not None or not hasattr(world, "goal_groups"):
        return {}
    groups = world.goal_groups(episodes.start_BS, episodes.goal_BS)
    return {name: np.asarray(which, dtype=bool) for name, which in groups.items()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def versions() -> dict[str, str]:
    return {
        "lpwm": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
