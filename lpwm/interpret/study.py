"""Supports in the arena, their sharpness, probes and statistics of one Piecewise run."""

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
from lpwm.evaluate.runs import method_of, of_run
from lpwm.interpret import results, supports
from lpwm.interpret.config import ProbeConfig, StudyConfig
from lpwm.interpret.probes import Frames, accuracy, bootstrap, probe
from lpwm.interpret.results import Bools, Ints, Packed, RunInfo, Study, WorldInfo, rounded
from lpwm.interpret.sharpness import sharpness
from lpwm.interpret.supports import encode_states, instability, jaccard_map, piecewise_of, support
from lpwm.interpret.units import atlas
from lpwm.train import Loaded


def study(loaded: Loaded, config: StudyConfig | None = None, data: EpisodeData | None = None) -> Study:
    """`data` spares loading the run's data set again when several runs share it."""
    config, begun = config or StudyConfig(), time.perf_counter()
    world, n, sparse = piecewise_of(loaded, config.visible), config.resolution, loaded.config.model.sparse
    supports.check_resolution(n, world.g)
    for row, col in config.cells:
        supports.check_cell(row, col, n)
    data = loaded.episodes() if data is None else data
    frames = held_out_frames(loaded, data, config)
    at, states, zones = supports.cells(world, n)
    active = support(encode_states(loaded, world, states), sparse)
    grid = results.GridMap(
        resolution=n,
        x=rounded(at, 4),
        y=rounded(at, 4),
        zones=tuple(map(tuple, zones.tolist())),
        supports=Packed.of(active.reshape(n, n, -1)),
        references=tuple(
            results.Reference(row, col, int(zones[row, col]), rounded(jaccard_map(active.reshape(n, n, -1), row, col)))
            for row, col in config.cells or zone_middles(zones)
        ),
    )
    return Study(
        **made(loaded),
        world=WorldInfo(loaded.spec.name, dict(world.spec.options), bool(loaded.spec.options.get("visible", False))),
        settings=replace(config, visible=world.visible),
        grid=grid,
        sharpness=sharpness(active, zones, resamples=config.resamples, seed=config.seed),
        probes=probe(frames, config.probes),
        supports=statistics(frames, config.probes, unit_order(active, zones.reshape(-1))),
        raster=raster(loaded, data, config),
        seconds=round(time.perf_counter() - begun, 2),
        units=atlas(frames.z_ND, dict(zip("xy", frames.position_NS.T, strict=True)), "x", "y", frames.zone_N),
    )


def made(loaded: Loaded) -> dict[str, Any]:
    """What made a result, as its keyword arguments."""
    device = device_name(next(loaded.model.parameters()).device)
    return {"lpwm": __version__, **origin(), "device": device, "run": describe(loaded)}


def describe(loaded: Loaded) -> RunInfo:
    model = loaded.config.model
    return RunInfo(
        **vars(of_run(loaded.path)),
        name=Path(loaded.path).name,
        hash=loaded.run_hash,
        method=method_of(loaded),
        seed=loaded.config.train.seed,
        step=loaded.step,
        sparse=model.sparse,
        link=model.link,
        latent=model.latent,
    )


def held_out_frames(loaded: Loaded, data: EpisodeData, config: StudyConfig) -> Frames:
    """Frames one action block apart of held-out trajectories, drawn by key, until there are `config.frames`."""
    world = piecewise_of(loaded, config.visible)
    chosen = supports.drawn(loaded, data, config.frames, config.seed)
    together = torch.cat([data.episode(e)[0][:: loaded.frameskip] for e, _ in chosen])
    return Frames(
        z_ND=encode_states(loaded, world, together).astype(np.float64),
        zone_N=world.zone(together).numpy(),
        position_NS=together.numpy().astype(np.float64),
        trajectory_N=np.repeat(*np.array(chosen, dtype=np.int64).T),
        sparse=loaded.config.model.sparse,
    )


def zone_middles(zones_nn: Ints) -> tuple[tuple[int, int], ...]:
    """The cell nearest to the middle of each zone."""
    middles = []
    for zone in np.unique(zones_nn):
        rows, cols = np.nonzero(zones_nn == zone)
        near = np.argmin((rows - rows.mean()) ** 2 + (cols - cols.mean()) ** 2)
        middles.append((int(rows[near]), int(cols[near])))
    return tuple(middles)


def unit_order(active_MD: Bools, zones_M: Ints) -> Ints:
    """Units by the zone in which they are on most often on the grid, then by how often; never-on units last."""
    zones = np.unique(zones_M)
    rate_KD = np.stack([active_MD[zones_M == k].mean(0) for k in zones])
    best = np.where(rate_KD.max(0) > 0, rate_KD.argmax(0), len(zones))
    return np.lexsort((-rate_KD.max(0), best))


def statistics(frames: Frames, config: ProbeConfig, order_D: Ints) -> results.Statistics:
    active = frames.active_ND
    rows = np.split(active, np.flatnonzero(np.diff(frames.trajectory_N)) + 1)  # trajectories are contiguous
    changes = [instability(r) for r in rows if len(r) > 1]
    if not changes:
        raise UserError("every held-out trajectory has a single frame: use longer episodes or a smaller frameskip.")
    tally = np.array([[len(c), c.sum()] for c in changes])
    activity = active.mean(0)
    # frames of neighbors in the list have nothing to do with each other
    between = [instability(np.stack((a[0], b[0])))[0] for a, b in pairwise(rows)]
    return results.Statistics(
        kind="support" if frames.sparse else "sign pattern",
        active_fraction=float(active.mean()),
        activity=rounded(activity, 5),
        dead_units=int((activity == 0).sum()),
        always_on_units=int((activity == 1).sum()),
        distinct=len(np.unique(np.packbits(active, axis=1), axis=0)),
        frames=len(active),
        instability=bootstrap(tally, accuracy, config, ("instability",)),
        instability_between=float(np.mean(between)),
        unit_order=tuple(order_D.tolist()),
    )


def raster(loaded: Loaded, data: EpisodeData, config: StudyConfig) -> results.Raster:
    """Of the held-out episodes that visit most zones, the one that changes zone least."""
    world = piecewise_of(loaded, config.visible)
    paths = {int(e): world.zone(data.episode(int(e))[0]) for e in supports.held_out(loaded, data)[:500]}
    chosen = max(paths, key=lambda e: (len(paths[e].unique()), -int((paths[e].diff() != 0).sum())))
    states, _ = data.episode(chosen)
    active = support(encode_states(loaded, world, states), loaded.config.model.sparse)
    return results.Raster(
        episode=chosen,
        steps=tuple(range(len(states))),
        supports=Packed.of(active),
        zones=tuple(world.zone(states).tolist()),
        positions=rounded(states.numpy(), 2),
        instability=rounded(instability(active)),
    )
