"""Codes with a known answer. Positions walk in the arena [14, 210)²; four zones; 64 units."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lpwm import cli
from lpwm.interpret import Frames
from lpwm.model import ModelConfig, PredictorConfig
from lpwm.model.encoder import EncoderConfig, ProjectorConfig
from lpwm.optim import build
from lpwm.train import DataConfig, Run, RunConfig

UNITS = 64


def zones_of(position):
    return ((position[..., 1] >= 112) * 2 + (position[..., 0] >= 112)).astype(np.int64)


def walk(draw, trajectories=60, steps=12):
    start = draw.uniform(14, 210, (trajectories, 1, 2))
    path = start + np.cumsum(draw.normal(0, 12, (trajectories, steps, 2)), 1)
    path = 14 + np.abs((path - 14) % 392 - 196) * 0.999  # reflected at the walls
    return path.reshape(-1, 2), np.repeat(np.arange(trajectories), steps)


def zone_coded(position, draw):
    """Supports say the zone and nothing else; magnitudes say the position, linearly, and nothing else."""
    on = zones_of(position)[..., None] == np.arange(UNITS) % 4
    direction = draw.uniform(-0.5, 0.5, (2, UNITS))
    return on * (1.5 + (position - 112) / 98 @ direction)


def zone_in_magnitudes(position, _):
    """The reverse: which units are on says where in its zone the dot is, how strongly says in which zone."""
    inside = ((position - 14) % 98) / 98
    center = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2) / 3
    on = np.linalg.norm(inside[..., None, :] - center, axis=-1) < 0.4
    own = zones_of(position)[..., None, None] == np.arange(4)[:, None]  # four units share a field, one is louder
    return (on[..., None, :] * (0.5 + own)).reshape(*position.shape[:-1], UNITS)


def nothing_coded(position, draw):
    shape = (*position.shape[:-1], UNITS)
    return (draw.random(shape) < 0.4) * draw.uniform(0.5, 1.5, shape)


KINDS = {"zone": zone_coded, "reverse": zone_in_magnitudes, "nothing": nothing_coded}


@pytest.fixture(scope="session")
def synthetic():
    """synthetic(kind) -> .frames of held-out walks and .grid_z (20, 20, D), made by one and the same code."""

    def make(kind, seed=0):
        draw = np.random.default_rng(seed)
        position, trajectory = walk(draw)
        at = 14 + (np.arange(20) + 0.5) * 9.8
        cells = np.stack(np.meshgrid(at, at), -1)
        both = np.concatenate((position, cells.reshape(-1, 2)))
        z = KINDS[kind](both, draw)
        frames = Frames(z[: len(position)], zones_of(position), position, trajectory, True)
        return SimpleNamespace(frames=frames, grid_z=z[len(position) :].reshape(20, 20, -1), zones=zones_of(cells))

    return make


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def call(capsys):
    """call(words) -> status, output and errors of `lpwm interpret`."""

    def run(*argv):
        try:
            status = cli.main(["interpret", *map(str, argv)])
        except SystemExit as stop:  # tyro's own refusals
            status = stop.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def fresh_run():
    """fresh_run(root, name) -> the folder of a run with fresh weights, which no test needs to be good."""

    def make(root, name, link="reprelu", seed=0, **data):
        vit = EncoderConfig(image_size=28, patch=14, width=16, depth=1, heads=1, head_dim=16, mlp=16)
        model = ModelConfig(
            latent=12,
            link=link,
            encoder=vit,
            projector=ProjectorConfig(hidden=16),
            predictor=PredictorConfig(rung="mlp-lti", history=2),
        )
        config = RunConfig(data=DataConfig(**{"episodes": 40, "steps": 20, "holdout": 0.3, **data}), model=model)
        run = Run.create(replace(config, train=replace(config.train, seed=seed, batch=4)), root, name)
        fresh = run.build_model(torch.device("cpu"))
        fresh.eval()
        with torch.no_grad():  # centered over the arena, so that supports of fresh weights vary
            world = run.config.data.build_world()
            frames = world.render(world.sample_state(64, (seed, "center")), 28)
            bias = [p for p in fresh.encoder.parameters() if p.shape == (12,)][-1]
            bias.sub_(fresh.encoder(frames).mean(0))
        run.save(fresh, build(fresh, run.config.optim), 7, run.source(torch.device("cpu")).stats)
        return run.folder

    return make
