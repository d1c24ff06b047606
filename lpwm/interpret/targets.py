"""The study: does realised activity follow the target, and what does it cost? Plain slices against coordinate slices.

For every cell (p, μ, axis_fraction) and training seed a small Piecewise model is trained, read and planned with.
Uniform slices see little more of the target than its mean and covariance (method §2), so that p and the share of zeros
should be inert; with some slices along the coordinates they should not. Everything is paired on seeds.

`study` trains what is not there yet: run folders are found again, and every reading is kept beside them, so a study
that stopped continues. Intervals are t intervals over training seeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lpwm.config import digest, to_dict
from lpwm.data.files import make_folder, write_whole
from lpwm.errors import UserError
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.outcome import Cell, plain
from lpwm.evaluate.protocol import EvalConfig, solo
from lpwm.evaluate.runs import agent_of
from lpwm.evaluate.stats import t_interval
from lpwm.interpret.codes import held_out_episodes
from lpwm.interpret.probes import ProbeConfig, probe
from lpwm.interpret.sparsity import numbers
from lpwm.interpret.study import StudyConfig, held_out_frames
from lpwm.losses.targets import RectifiedGeneralisedGaussian
from lpwm.rng import generator
from lpwm.run import Loaded, Run, RunConfig, load, pick_device
from lpwm.version import __version__

KIND = "lpwm target study"


@dataclass(frozen=True, order=True)
class TargetCell:
    p: float
    mu: float
    axis_fraction: float

    @property
    def name(self) -> str:
        return f"target-p{self.p:g}-mu{self.mu:g}-axis{self.axis_fraction:g}"

    def config(self, base: RunConfig, seed: int) -> RunConfig:
        target = replace(base.objective.rdmreg, p=self.p, mu=self.mu, axis_fraction=self.axis_fraction)
        return replace(
            base, objective=replace(base.objective, rdmreg=target), train=replace(base.train, seed=seed)
        )


Job = tuple[TargetCell, int]  # and its training seed
CELLS = tuple(
    TargetCell(p, mu, axis)
    for axis, p, mu in itertools.product((0.0, 0.25), (0.5, 1.0, 2.0), (0.0, -1.0, -2.0))
)
# The paper's planner on random goals, one planner seed a checkpoint: checkpoints are the sample.
PLANNING = EvalConfig(goals=("random",), episodes=50, budgets=(50,), planner_seeds=1, curve=0)

# Measures of a run, in the order of the table; `path` into its reading.
MEASURES: dict[str, str] = {
    "active": "active fraction",
    "gap": "active − target",
    "at_least": "E[z]²/E[z²]",
    "law": "distance of a unit's law to the target's",
    "dead": "share of dead units",
    "dimension": "effective dimension",
    "ratio": "error / copying, 1 block",
    "ratio_deep": "error / copying, deepest",
    "zone_code": "zone from code",
    "zone_support": "zone from support",
    "position_code": "position R² from code",
    "position_support": "position R² from support",
}


def study(
    base: RunConfig,
    root: str | Path,
    *,
    cells: Sequence[TargetCell] = CELLS,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    device: str = "auto",
    compile: Literal["auto", "on", "off"] = "off",
    planning: EvalConfig = PLANNING,
    frames: int = 3000,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train, read and plan with every cell × seed; the whole study as one JSON-ready dictionary.

    base      a sparse Piecewise run, of which only the target, the seed and the number of steps are changed
    compile   of the training step; small models are sooner done without
    workers   processes that share the device, each with a run at a time
    progress  called with (runs done, runs)
    """
    base = _checked(base, cells, seeds, steps, compile)
    root, begun = Path(root), time.perf_counter()
    make_folder(root)
    where = str(pick_device(device))
    jobs = [(cell, seed) for cell in cells for seed in seeds]
    Run.create(
        jobs[0][0].config(base, jobs[0][1]), root, jobs[0][0].name
    )  # the data, before many ask for them
    found: dict[tuple[TargetCell, int], dict[str, Any]] = {}
    for job, reading in _each(jobs, partial(read_one, base, root, where, planning, frames), workers):
        found[job] = reading
        if progress is not None:
            progress(len(found), len(jobs))
    readings = [found[job] for job in jobs]
    return plain(
        {
            "kind": KIND,
            "lpwm": __version__,
            "device": torch.cuda.get_device_name(where) if where.startswith("cuda") else where,
            "base": to_dict(base),
            "planning": to_dict(planning),
            "seeds": list(seeds),
            "controls": controls(readings[0]["folder"], root, where, planning),
            "runs": [{k: v for k, v in r.items() if k != "folder"} for r in readings],
            **summary(readings),
            "seconds": round(time.perf_counter() - begun, 1),
        }
    )


def _checked(
    base: RunConfig, cells: Sequence[TargetCell], seeds: Sequence[int], steps: int | None, compile: Any
) -> RunConfig:
    if not cells or len(set(cells)) != len(cells) or len(set(seeds)) != len(seeds):
        raise UserError("a target study needs at least one cell, and no cell or seed twice.")
    if len(seeds) < 2:
        raise UserError("a target study needs at least 2 training seeds: its intervals are over them.")
    if not base.model.sparse or base.objective.regulariser != "rdmreg":
        raise UserError("a target study needs a sparse base with regulariser rdmreg: only it has a target.")
    if base.data.world != "piecewise":
        raise UserError(f"a target study probes the zones of piecewise, and its base is {base.data.world}.")
    train = replace(base.train, steps=steps or base.train.steps, compile=compile, stop_dead=False)
    # One checkpoint and one evaluation, at the end: nothing in between is read.
    train = replace(train, eval_every=0, checkpoint_every=train.steps)
    return replace(base, train=train)


def _each(
    jobs: Sequence[Job], work: Callable[[TargetCell, int], Any], workers: int
) -> Iterator[tuple[Job, Any]]:
    """Jobs and their results as they come: here one after another, or in processes that share the device."""
    if workers < 1:
        raise UserError(f"{workers} workers do nothing: give at least 1.")
    if workers == 1:
        for job in jobs:
            yield job, work(*job)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {pool.submit(work, *job): job for job in jobs}
        for done in as_completed(asked):
            yield asked[done], done.result()


# One run ----------------------------------------------------------------------------------------------------


def read_one(
    base: RunConfig, root: Path, device: str, planning: EvalConfig, frames: int, cell: TargetCell, seed: int
) -> dict[str, Any]:
    """Train one run, or find it, and read it, or find its reading."""
    run = Run.create(cell.config(base, seed), root, cell.name)
    key = digest({"planning": to_dict(planning), "frames": frames, "version": __version__})
    kept = root / "readings" / f"{run.hash}-{key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    begun = time.perf_counter()
    run.train(torch.device(device), console=False)
    trained = time.perf_counter() - begun
    loaded = load(run.folder, device=device)
    target = run.config.objective.rdmreg.target(rectify=True)
    reading = plain(
        {
            "cell": dataclasses.asdict(cell),
            "seed": seed,
            "hash": run.hash,
            "folder": str(run.folder),
            "target": {"active": target.activity, "at_least": target.mean**2 / target.second_moment},
            **_read(run, loaded, target, planning, device, frames),
            "train_s": round(trained, 2),
            "read_s": round(time.perf_counter() - begun - trained, 2),
        }
    )
    make_folder(kept.parent)
    write_whole(kept, json.dumps(reading, allow_nan=False))
    return reading


def _read(
    run: Run,
    loaded: Loaded,
    target: RectifiedGeneralisedGaussian,
    planning: EvalConfig,
    device: str,
    frames: int,
) -> dict[str, Any]:
    """Measures and planning; of a run that diverged nothing but the sentence that says so."""
    try:
        return {
            "measures": measures(run, loaded, target, frames),
            "planning": success(loaded, planning, device),
        }
    except UserError as error:
        nothing = dict.fromkeys(("terminal", "latched"))
        ways = [f"{goals} H={H} R={R}" for goals in planning.goals for H, R in planning.ways()]
        return {
            "measures": dict.fromkeys(MEASURES),
            "planning": dict.fromkeys(ways, nothing),
            "failed": str(error),
        }


def measures(run: Run, loaded: Loaded, target: RectifiedGeneralisedGaussian, frames: int) -> dict[str, float]:
    """The numbers of MEASURES, all on held-out trajectories."""
    episodes = held_out_episodes(loaded, run.data, frames)
    sparse = numbers(episodes)
    z_ND = np.concatenate([e.z_TD for e in episodes])
    depth = run.result()["held_out"]
    ratio = [e / max(c, 1e-12) for e, c in zip(depth["error_depth"], depth["copy_error_depth"], strict=True)]
    found = {
        "active": sparse["active_fraction"]["estimate"],
        "gap": sparse["active_fraction"]["estimate"] - target.activity,
        "at_least": sparse["at_least"],
        "law": law_distance(z_ND, target),
        "dead": sparse["dead_units"] / z_ND.shape[1],
        "dimension": sparse["effective_dimension"],
        "ratio": ratio[0],
        "ratio_deep": ratio[-1],
    }
    probes = probe(held_out_frames(loaded, run.data, StudyConfig(frames=frames)), ProbeConfig(resamples=100))
    for name in ("code", "support"):
        found[f"zone_{name}"] = probes.zone[name].score.estimate
        found[f"position_{name}"] = probes.position[name].score.estimate
    assert found.keys() == MEASURES.keys()
    return found


def law_distance(z_ND: Any, target: RectifiedGeneralisedGaussian) -> float:
    """√ of the mean over units of the squared Wasserstein distance between a unit's values and the target."""
    N = len(z_ND)
    y = target.sample((64 * N,), generator("law distance", N)).numpy()
    y_N = np.sort(y)[32::64]  # N quantiles
    return float(
        np.sqrt(np.square(np.sort(np.asarray(z_ND, dtype=np.float64), axis=0) - y_N[:, None]).mean())
    )


def success(loaded: Loaded, planning: EvalConfig, device: str) -> dict[str, dict[str, float]]:
    """{"H=5 R=1": {"terminal": rate, "latched": rate}} on the largest budget, this one checkpoint."""
    found = evaluate(
        [agent_of(loaded)], loaded.world, solo(planning), device=device, data=_data(loaded, planning)
    )
    return {way(c): rates(c, 0, max(planning.budgets)) for c in found.cells}


def controls(folder: str, root: Path, device: str, planning: EvalConfig) -> dict[str, Any]:
    """Do nothing, random actions and the oracle on the same episodes, once: no run differs in them."""
    kept = (
        root / "readings" / f"controls-{digest({'planning': to_dict(planning), 'version': __version__})}.json"
    )
    if kept.exists():
        return json.loads(kept.read_text())
    loaded = load(folder, device=device)
    found = evaluate([agent_of(loaded)], loaded.world, replace(planning, curve=0), device=device,
                     data=_data(loaded, planning))  # fmt: skip
    out = {
        way(c): {r.name: rates(c, i, max(planning.budgets)) for i, r in enumerate(c.rows) if r.control}
        for c in found.cells
    }
    write_whole(kept, json.dumps(plain(out), allow_nan=False))
    return out


def _data(loaded: Loaded, planning: EvalConfig) -> Any:
    return loaded.episodes() if "dataset" in planning.goals else None


def way(cell: Cell) -> str:
    return f"{cell.goals} H={cell.horizon} R={cell.receding}"


def rates(cell: Cell, row: int, budget: int) -> dict[str, float]:
    return {what: float(cell.rows[row].success(what, budget).mean()) for what in ("terminal", "latched")}


# Over seeds -------------------------------------------------------------------------------------------------


def flat(reading: dict[str, Any]) -> dict[str, float | None]:
    """A run's measures and its success rates under one name each."""
    out = dict(reading["measures"])
    for name, found in reading["planning"].items():
        out |= {f"{what} success, {name}": value for what, value in found.items()}
    return out


def summary(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each cell's means, coordinate − plain for each (p, μ), and how activity follows the target over all cells."""
    cells = list(dict.fromkeys(TargetCell(**r["cell"]) for r in readings))
    by = {(TargetCell(**r["cell"]), r["seed"]): r for r in readings}
    seeds = sorted({s for _, s in by})
    names = list(flat(readings[0]))
    rows, gaps = [], []
    for cell in cells:
        each = [flat(by[cell, s]) for s in seeds]
        rows.append(
            {
                "cell": dataclasses.asdict(cell),
                "target": by[cell, seeds[0]]["target"],
                "measures": {n: interval([e[n] for e in each]) for n in names},
            }
        )
        plain_cell = replace(cell, axis_fraction=0.0)
        if cell.axis_fraction and plain_cell in cells:
            base = [flat(by[plain_cell, s]) for s in seeds]
            difference = {
                n: interval([minus(e[n], b[n]) for e, b in zip(each, base, strict=True)]) for n in names
            }
            gaps.append({"cell": dataclasses.asdict(cell), "measures": difference})
    axes = sorted({c.axis_fraction for c in cells})
    follow = [_follows(a, [c for c in cells if c.axis_fraction == a], by, seeds) for a in axes]
    return {
        "cells": rows,
        "differences": gaps,
        "follow": follow,
        "overall": _overall(cells, by, seeds, names),
    }


def minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def interval(values: Sequence[float | None]) -> dict[str, Any] | None:
    """None where a run has no such number (its codes were dead or not finite)."""
    if any(v is None for v in values):
        return None
    return dataclasses.asdict(t_interval(values)) | {"values": list(values)}


def _follows(axis: float, cells: Sequence[TargetCell], by: Any, seeds: Sequence[int]) -> dict[str, Any]:
    """Mean |active − target| over the cells, and the slope of realised on target activity: 1 would be obedience."""
    off: list[float | None] = []
    slope: list[float | None] = []
    for s in seeds:
        want = np.array([by[c, s]["target"]["active"] for c in cells])
        found = [by[c, s]["measures"]["active"] for c in cells]
        if any(v is None for v in found):
            off, slope = [*off, None], [*slope, None]
            continue
        got = np.array(found)
        off.append(float(np.abs(got - want).mean()))
        slope.append(float(np.polyfit(want, got, 1)[0]) if np.ptp(want) > 1e-9 else None)
    return {"axis_fraction": axis, "off": interval(off), "slope": interval(slope)}


def _overall(
    cells: Sequence[TargetCell], by: Any, seeds: Sequence[int], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Coordinate − plain averaged over the (p, μ) both have, paired on seeds."""
    out = []
    for axis in sorted({c.axis_fraction for c in cells} - {0.0}):
        pairs = [c for c in cells if c.axis_fraction == axis and replace(c, axis_fraction=0.0) in cells]
        if not pairs:
            continue
        found = {}
        for n in names:
            values: list[float | None] = []
            for s in seeds:
                gaps = [
                    minus(flat(by[c, s])[n], flat(by[replace(c, axis_fraction=0.0), s])[n]) for c in pairs
                ]
                known = [g for g in gaps if g is not None]
                values.append(float(np.mean(known)) if len(known) == len(gaps) else None)
            found[n] = interval(values)
        out.append({"axis_fraction": axis, "cells": len(pairs), "measures": found})
    return out
