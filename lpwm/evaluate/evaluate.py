"""Running a protocol: every cell, every method, every control, each distinct run of the loop once."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.core.provenance import origin, versions
from lpwm.data import EpisodeData
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.curve import distance_curve
from lpwm.evaluate.evaluator import Evaluator, check_agents
from lpwm.evaluate.goals import EpisodeSet, episode_sets
from lpwm.evaluate.measure import Played
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
    config, world, sets, device = runner.config, runner.world, runner.sets, runner.device
    every = [runner.cell(kind, H, R) for kind in sets for H, R in config.pairs()]
    cells = [cell for cell in every if cell is not None]
    if not cells:
        raise UserError("nothing of this evaluation is finished: run it without --finished-only.")
    curves = {}
    for agent in runner.agents if config.curve else ():
        see = functools.partial(agent.see, world)
        curves[agent.name] = distance_curve(see, world, states=config.curve, seed=config.seed, device=device)
    code = origin()
    return Evaluation(
        version=VERSION,
        versions={**versions(), "numpy": np.__version__},
        commit=code["commit"],
        source=code["source"],
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        threads=torch.get_num_threads(),
        settings=config,
        world=WorldName(world.spec.name, dict(world.spec.options)),
        holdout=holdout,
        runs=tuple(a.entry() for a in runner.agents),
        episode_sets={kind: s.entry() for kind, s in sets.items()},
        cells=tuple(cell for cell, _ in cells),
        curves=curves,
        predicted_s=predicted_s,
        wall_s=time.perf_counter() - began,
        missing=tuple(runner.missing),
        played=Played(world, sets, tuple(records for _, records in cells)),
    )
