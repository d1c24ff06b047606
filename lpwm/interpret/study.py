"""Everything there is to read in a run, as one JSON-ready dictionary; several side by side.

The layout of a study (kind "lpwm interpretation", layout 1):

    run         name, hash, method, seed, step, sparse, link, latent, and `lpwm.evaluate.provenance.of_run`
    world       name, options (g, scale, visible: as drawn here), trained_visible
    settings    resolution, visible, frames, folds, resamples, shuffles, level, seed
    grid        resolution n, x[n], y[n] (cell centers, pixels), zones[n][n],
                supports {data, shape [n, n, D], bytes_per_row}: base64, one row of bits a cell, the cells row by row
                    from the top left, unit 0 the most significant bit of the first byte,
                references [{row, col, zone, jaccard[n][n]}]: the same numbers, to check a page's own against
    sharpness   sharpness {estimate, low, high, level, unit}, within, across,
                zones [{zone, cells, within, across, sharpness}],
                shuffled, translated, matched_translated {mean, low, high, copies, p or null}, matched
    probes      zone {code, support, magnitudes, position}, position {code, support, magnitudes},
                position_given_support: each {estimate, low, high, level, unit, converged, shuffled {estimate, low,
                high, …}, tally[E][columns] (sums of each trajectory)}; majority, frames, trajectories[E]
    supports    kind ("support" or "sign pattern"), active_fraction, activity[D], dead_units, always_on_units,
                distinct, frames, instability {estimate, low, high, …}, instability_between, unit_order[D]
    raster      episode, steps[T], supports {data, shape [T, D], bytes_per_row}, zones[T], positions[T][2],
                instability[T − 1]
    seconds     how long it took

J = |a ∧ b| / |a ∨ b| with J(∅, ∅) = 1. `unit_order` puts units beside those that prefer the same zone.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpwm.core import rng
from lpwm.core.config import digest, to_dict
from lpwm.core.errors import UserError
from lpwm.core.provenance import device_name, origin
from lpwm.core.version import __version__
from lpwm.data import EpisodeData, splits
from lpwm.evaluate.provenance import of_run
from lpwm.interpret.probes import Frames, ProbeConfig, Probes, Score, bootstrap, probe
from lpwm.interpret.sharpness import sharpness
from lpwm.interpret.supports import (
    Bools,
    Floats,
    Grid,
    Ints,
    check_cell,
    check_resolution,
    encode_states,
    grid,
    instability,
    pack,
    piecewise_of,
    support,
)
from lpwm.train import Loaded

KIND, LAYOUT = "lpwm interpretation", 1


@dataclass(frozen=True)
class StudyConfig:
    resolution: int = 20
    visible: bool | None = None  # zones drawn or not; None: as in the run's own world
    cells: tuple[tuple[int, int], ...] = ()  # reference cells (row, col); none: the middle of every zone
    frames: int = 3000  # at most, from held-out trajectories, one action block apart
    resamples: int = 200  # of units and of zone labels, for the sharpness
    probes: ProbeConfig = dataclasses.field(default_factory=ProbeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.frames < 1 or self.resamples < 20:
            raise UserError("a study needs at least 1 frame and 20 resamples.")


def study(loaded: Loaded, config: StudyConfig | None = None, data: EpisodeData | None = None) -> dict[str, Any]:
    """Supports on the grid, sharpness, probes and statistics of one run, ready for JSON.

    `data` spares reading the run's data set again when several runs share it.
    """
    config, begun = config or StudyConfig(), time.perf_counter()
    world = piecewise_of(loaded, config.visible)
    check_resolution(config.resolution, world.g)
    for row, col in config.cells:
        check_cell(row, col, config.resolution)
    data = loaded.episodes() if data is None else data
    frames = held_out_frames(loaded, data, config)
    cells = grid(loaded, config.resolution, config.visible)
    sharp = sharpness(cells.active_MD, cells.zones_nn, resamples=config.resamples, seed=config.seed)
    order = unit_order(cells)
    return {
        "kind": KIND,
        "layout": LAYOUT,
        "lpwm": __version__,
        **origin(),
        "device": device_name(next(loaded.model.parameters()).device),
        "run": describe(loaded),
        "world": {
            "name": loaded.spec.name,
            "options": dict(world.spec.options),
            "trained_visible": bool(loaded.spec.options.get("visible", False)),
        },
        "settings": to_dict(config) | {"visible": world.visible},
        "grid": _grid(cells, config.cells or zone_middles(cells)),
        "sharpness": to_dict(sharp),
        "probes": probes_dict(probe(frames, config.probes)),
        "supports": statistics(frames, config.probes) | {"unit_order": order.tolist()},
        "raster": raster(loaded, data, config),
        "seconds": round(time.perf_counter() - begun, 2),
    }


def describe(loaded: Loaded) -> dict[str, Any]:
    """Runs whose configs differ in the training seed alone are one method."""
    config = loaded.config
    name = Path(loaded.path).name
    return {
        "name": name,
        "hash": loaded.run_hash,
        "method": f"{name.removesuffix('-' + loaded.run_hash)} "
        f"{digest(replace(config, train=replace(config.train, seed=0)))[:4]}",
        "seed": config.train.seed,
        "step": loaded.step,
        "sparse": config.model.sparse,
        "link": config.model.link,
        "latent": config.model.latent,
        **of_run(loaded.path),
    }


def held_out(loaded: Loaded, data: EpisodeData) -> Ints:
    _, held = splits(data, loaded.holdout)
    return held.numpy()


def held_out_frames(loaded: Loaded, data: EpisodeData, config: StudyConfig) -> Frames:
    """Frames one action block apart of held-out trajectories, drawn by key, until there are `config.frames`."""
    world = piecewise_of(loaded, config.visible)
    episodes = held_out(loaded, data)
    draw = np.random.default_rng(rng.seed_of("held-out frames", config.seed))
    states: list[torch.Tensor] = []
    names: list[Ints] = []
    total = 0
    for e in draw.permutation(episodes):
        rows = data.episode(int(e))[0][:: loaded.frameskip]
        if states and total + len(rows) > config.frames:
            break
        states.append(rows)
        names.append(np.full(len(rows), e, dtype=np.int64))
        total += len(rows)
    together = torch.cat(states)
    return Frames(
        z_ND=encode_states(loaded, world, together).astype(np.float64),
        zone_N=world.zone(together).numpy(),
        position_NS=together.numpy().astype(np.float64),
        trajectory_N=np.concatenate(names),
        sparse=loaded.config.model.sparse,
    )


def zone_middles(cells: Grid) -> tuple[tuple[int, int], ...]:
    """The cell nearest to the middle of each zone."""
    found = []
    for zone in np.unique(cells.zones_nn):
        rows, cols = np.nonzero(cells.zones_nn == zone)
        near = np.argmin((rows - rows.mean()) ** 2 + (cols - cols.mean()) ** 2)
        found.append((int(rows[near]), int(cols[near])))
    return tuple(found)


def unit_order(cells: Grid) -> Ints:
    """Units by the zone in which they are on most often on the grid, then by how often; never-on units last."""
    zones = np.unique(cells.zones_M)
    rate_KD = np.stack([cells.active_MD[cells.zones_M == k].mean(0) for k in zones])
    best = np.where(rate_KD.max(0) > 0, rate_KD.argmax(0), len(zones))
    return np.lexsort((-rate_KD.max(0), best))


def _grid(cells: Grid, references: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    return {
        "resolution": cells.resolution,
        "x": _rounded(cells.x_n, 4),
        "y": _rounded(cells.y_n, 4),
        "zones": cells.zones_nn.tolist(),
        "supports": pack(cells.active_nnD),
        "references": [
            {"row": row, "col": col, "zone": int(cells.zones_nn[row, col]), "jaccard": _rounded(cells.map(row, col))}
            for row, col in references
        ],
    }


def statistics(frames: Frames, config: ProbeConfig) -> dict[str, Any]:
    """How many units are on, which never, and how fast supports change along held-out trajectories."""
    active, rows = frames.active_ND, _trajectories(frames.trajectory_N)
    changes = [instability(active[r]) for r in rows if len(r) > 1]
    if not changes:
        raise UserError("every held-out trajectory has a single frame: use longer episodes or a smaller frameskip.")
    tally = np.array([[len(c), c.sum()] for c in changes])
    activity = active.mean(0)
    return {
        "kind": "support" if frames.sparse else "sign pattern",
        "active_fraction": float(active.mean()),
        "activity": _rounded(activity, 5),
        "dead_units": int((activity == 0).sum()),
        "always_on_units": int((activity == 1).sum()),
        "distinct": len(np.unique(np.packbits(active, axis=1), axis=0)),
        "frames": len(active),
        "instability": dataclasses.asdict(bootstrap(tally, _mean, config, ("instability",))),
        "instability_between": _between(active, rows),
    }


def _mean(sums: Floats) -> Floats:
    return sums[..., 1] / sums[..., 0]


def _between(active_ND: Bools, rows: list[Ints]) -> float:
    """1 − J between frames of neighboring trajectories in the list, which have nothing to do with each other."""
    pairs = [active_ND[[a[0], b[0]]] for a, b in zip(rows, rows[1:], strict=False)]
    return float(np.mean([instability(p)[0] for p in pairs]))


def _trajectories(trajectory_N: Ints) -> list[Ints]:
    """The rows of each trajectory; they are contiguous."""
    return np.split(np.arange(len(trajectory_N)), np.flatnonzero(np.diff(trajectory_N)) + 1)


def raster(loaded: Loaded, data: EpisodeData, config: StudyConfig) -> dict[str, Any]:
    """Every raw step of one held-out episode: of those that visit most zones, the one that changes zone least."""
    world = piecewise_of(loaded, config.visible)
    episodes = held_out(loaded, data)[:500]
    paths = {int(e): world.zone(data.episode(int(e))[0]) for e in episodes}
    chosen = max(paths, key=lambda e: (len(paths[e].unique()), -int((paths[e].diff() != 0).sum())))
    states, _ = data.episode(chosen)
    active = support(encode_states(loaded, world, states), loaded.config.model.sparse)
    return {
        "episode": chosen,
        "steps": list(range(len(states))),
        "supports": pack(active),
        "zones": world.zone(states).tolist(),
        "positions": _rounded(states.numpy(), 2),
        "instability": _rounded(instability(active)),
    }


def probes_dict(found: Probes) -> dict[str, Any]:
    def one(score: Score) -> dict[str, Any]:
        return dataclasses.asdict(score.score) | {
            "shuffled": dataclasses.asdict(score.shuffled),
            "converged": score.converged,
            "tally": _rounded(score.tally_E, 3),
        }

    return {
        "zone": {name: one(s) for name, s in found.zone.items()},
        "position": {name: one(s) for name, s in found.position.items()},
        "position_given_support": one(found.position_given_support),
        "majority": found.majority,
        "frames": found.frames,
        "trajectories": list(found.trajectories),
    }


def _rounded(values: Any, digits: int = 6) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), digits).tolist()
