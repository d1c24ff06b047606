"""Supports in the arena, their sharpness, probes and statistics of one Piecewise run."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.core.provenance import device_name, origin
from lpwm.core.version import __version__
from lpwm.data import EpisodeData
from lpwm.evaluate.runs import of_run
from lpwm.interpret.codes import drawn, held_out
from lpwm.interpret.config import ProbeConfig, StudyConfig
from lpwm.interpret.probes import Frames, accuracy, bootstrap, probe
from lpwm.interpret.results import (
    GridMap,
    Ints,
    Packed,
    Raster,
    Reference,
    RunInfo,
    Statistics,
    Study,
    WorldInfo,
    rounded,
)
from lpwm.interpret.sharpness import sharpness
from lpwm.interpret.supports import (
    Grid,
    check_cell,
    check_resolution,
    encode_states,
    grid,
    instability,
    piecewise_of,
    support,
)
from lpwm.train import Loaded
from lpwm.train.run_config import method_digest


def study(loaded: Loaded, config: StudyConfig | None = None, data: EpisodeData | None = None) -> Study:
    """`data` spares loading the run's data set again when several runs share it."""
    config, begun = config or StudyConfig(), time.perf_counter()
    world = piecewise_of(loaded, config.visible)
    check_resolution(config.resolution, world.g)
    for row, col in config.cells:
        check_cell(row, col, config.resolution)
    data = loaded.episodes() if data is None else data
    frames = held_out_frames(loaded, data, config)
    cells = grid(loaded, config.resolution, config.visible)
    sharp = sharpness(cells.active_MD, cells.zones_nn, resamples=config.resamples, seed=config.seed)
    trained_visible = bool(loaded.spec.options.get("visible", False))
    return Study(
        **made(loaded),
        world=WorldInfo(loaded.spec.name, dict(world.spec.options), trained_visible),
        settings=replace(config, visible=world.visible),
        grid=_grid(cells, config.cells or zone_middles(cells)),
        sharpness=sharp,
        probes=probe(frames, config.probes),
        supports=replace(statistics(frames, config.probes), unit_order=tuple(unit_order(cells).tolist())),
        raster=raster(loaded, data, config),
        seconds=round(time.perf_counter() - begun, 2),
    )


def made(loaded: Loaded) -> dict[str, Any]:
    """What made a result, as its keyword arguments."""
    device = device_name(next(loaded.model.parameters()).device)
    return {"lpwm": __version__, **origin(), "device": device, "run": describe(loaded)}


def describe(loaded: Loaded) -> RunInfo:
    config, name = loaded.config, Path(loaded.path).name
    return RunInfo(
        **vars(of_run(loaded.path)),
        name=name,
        hash=loaded.run_hash,
        method=f"{name.removesuffix('-' + loaded.run_hash)} {method_digest(config)[:4]}",
        seed=config.train.seed,
        step=loaded.step,
        sparse=config.model.sparse,
        link=config.model.link,
        latent=config.model.latent,
    )


def held_out_frames(loaded: Loaded, data: EpisodeData, config: StudyConfig) -> Frames:
    """Frames one action block apart of held-out trajectories, drawn by key, until there are `config.frames`."""
    world = piecewise_of(loaded, config.visible)
    chosen = drawn(loaded, data, config.frames, config.seed)
    together = torch.cat([data.episode(e)[0][:: loaded.frameskip] for e, _ in chosen])
    return Frames(
        z_ND=encode_states(loaded, world, together).astype(np.float64),
        zone_N=world.zone(together).numpy(),
        position_NS=together.numpy().astype(np.float64),
        trajectory_N=np.repeat(*np.array(chosen, dtype=np.int64).T),
        sparse=loaded.config.model.sparse,
    )


def zone_middles(cells: Grid) -> tuple[tuple[int, int], ...]:
    """The cell nearest to the middle of each zone."""
    middles = []
    for zone in np.unique(cells.zones_nn):
        rows, cols = np.nonzero(cells.zones_nn == zone)
        near = np.argmin((rows - rows.mean()) ** 2 + (cols - cols.mean()) ** 2)
        middles.append((int(rows[near]), int(cols[near])))
    return tuple(middles)


def unit_order(cells: Grid) -> Ints:
    """Units by the zone in which they are on most often on the grid, then by how often; never-on units last."""
    zones = np.unique(cells.zones_M)
    rate_KD = np.stack([cells.active_MD[cells.zones_M == k].mean(0) for k in zones])
    best = np.where(rate_KD.max(0) > 0, rate_KD.argmax(0), len(zones))
    return np.lexsort((-rate_KD.max(0), best))


def _grid(cells: Grid, references: tuple[tuple[int, int], ...]) -> GridMap:
    return GridMap(
        resolution=cells.resolution,
        x=rounded(cells.x_n, 4),
        y=rounded(cells.y_n, 4),
        zones=tuple(map(tuple, cells.zones_nn.tolist())),
        supports=Packed.of(cells.active_nnD),
        references=tuple(
            Reference(row, col, int(cells.zones_nn[row, col]), rounded(cells.map(row, col))) for row, col in references
        ),
    )


def statistics(frames: Frames, config: ProbeConfig) -> Statistics:
    active = frames.active_ND
    rows = np.split(active, np.flatnonzero(np.diff(frames.trajectory_N)) + 1)  # trajectories are contiguous
    changes = [instability(r) for r in rows if len(r) > 1]
    if not changes:
        raise UserError("every held-out trajectory has a single frame: use longer episodes or a smaller frameskip.")
    tally = np.array([[len(c), c.sum()] for c in changes])
    activity = active.mean(0)
    # frames of neighbors in the list have nothing to do with each other
    between = [instability(np.stack((a[0], b[0])))[0] for a, b in pairwise(rows)]
    return Statistics(
        kind="support" if frames.sparse else "sign pattern",
        active_fraction=float(active.mean()),
        activity=rounded(activity, 5),
        dead_units=int((activity == 0).sum()),
        always_on_units=int((activity == 1).sum()),
        distinct=len(np.unique(np.packbits(active, axis=1), axis=0)),
        frames=len(active),
        instability=bootstrap(tally, accuracy, config, ("instability",)),
        instability_between=float(np.mean(between)),
    )


def raster(loaded: Loaded, data: EpisodeData, config: StudyConfig) -> Raster:
    """Of the held-out episodes that visit most zones, the one that changes zone least."""
    world = piecewise_of(loaded, config.visible)
    paths = {int(e): world.zone(data.episode(int(e))[0]) for e in held_out(loaded, data)[:500]}
    chosen = max(paths, key=lambda e: (len(paths[e].unique()), -int((paths[e].diff() != 0).sum())))
    states, _ = data.episode(chosen)
    active = support(encode_states(loaded, world, states), loaded.config.model.sparse)
    return Raster(
        episode=chosen,
        steps=tuple(range(len(states))),
        supports=Packed.of(active),
        zones=tuple(world.zone(states).tolist()),
        positions=rounded(states.numpy(), 2),
        instability=rounded(instability(active)),
    )
