"""The study: does realized activity follow the target, and what does it cost? Plain slices against coordinate slices.

For every cell (p, μ, axis_fraction) and training seed a small Piecewise model is trained, inspected and planned with.
Uniform slices see little more of the target than its mean and covariance (method §2), so that p and the share of zeros
should be inert; with some slices along the coordinates they should not. Everything is paired on seeds.

`study` trains what is not there yet: every reading is kept in the folder as soon as it is made, so a study that
stopped continues, and one that is not whole can be tabulated.

A run that its monitors call dead goes on to the end: that a target kills a code is an outcome, and its activity, its
probes and its planning are numbers like any other's, after as many steps. They count, and the table says how many were
called dead. One whose codes are not finite has no numbers and counts as dead without them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lpwm.core.config import digest, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import to_json
from lpwm.core.provenance import device_name, origin, versions
from lpwm.core.rng import generator
from lpwm.core.version import __version__
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.results import Cell
from lpwm.evaluate.runs import agent_of
from lpwm.interpret.probes import ProbeConfig, probe
from lpwm.interpret.study import StudyConfig, held_out_frames
from lpwm.losses.distribution import RectifiedGeneralizedGaussian
from lpwm.train import Loaded, Run, RunConfig, load, pick_device, prepare_data, run_hash
from lpwm.train.log import read_log
from lpwm.train.monitors import effective_dimension

from .read import TARGETS
from .study_cells import CELLS, MEASURES, PLANNING, Job, TargetCell
from .study_summary import summary

# Runs the work on every job: (number, reading, or anything else with a sentence in `.why`), as they come.
Each = Callable[[Sequence[Job | None], "Work"], Iterator[tuple[int, Any]]]


def one_after_another(jobs: Sequence[Job | None], work: Work) -> Iterator[tuple[int, Any]]:
    for number, job in enumerate(jobs):
        yield number, work(job)


def study(
    base: RunConfig,
    root: str | Path,
    *,
    cells: Sequence[TargetCell] = CELLS,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    device: str = "auto",
    compile: Literal["auto", "on", "graph", "off"] = "off",
    planning: EvalConfig = PLANNING,
    frames: int = 3000,
    each: Each | None = one_after_another,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Train, inspect and plan with every cell × seed; the whole study as one JSON-ready dictionary.

    base      a sparse Piecewise run, of which only the target, the seed and the number of steps are changed
    compile   of the training step; small models are soonest done with "graph" on a GPU, else without
    each      how jobs are run (`pool.each`: in processes that share the device); None: none, only the readings that
              are there already
    progress  called with (runs done, runs, a sentence where one failed)
    """
    base = _checked(base, cells, seeds, steps, compile)
    root, begun = Path(root), time.perf_counter()
    make_folder(root)
    data = prepare_data(base.data, root / "data")  # once, before many ask for them
    work = Work(base, root, str(pick_device(device)), planning, frames, data.digest)
    jobs: list[Job | None] = [None, *((cell, seed) for cell in cells for seed in seeds)]
    made = {job: kept for job in jobs if (kept := work.kept(job)) is not None}
    failed: dict[Job | None, str] = {}
    todo = [job for job in jobs if job not in made]
    todo.sort(key=lambda job: -1 if job is None else job[1])  # stopped early, whole seeds are there
    for number, result in each(todo, work) if each is not None and todo else ():
        job = todo[number]
        if isinstance(result, dict):
            made[job] = result
        else:
            failed[job] = str(result.why)
        if progress is not None:
            done = sum(j is not None for j in (*made, *failed))
            progress(done, len(jobs) - 1, f"{_name(job)}: {failed[job]}" if job in failed else "")
    readings = [made[job] for job in jobs if job is not None and job in made]
    if not readings:
        why = next(iter(failed.values()), "none has been made yet: run the study")
        raise UserError(f"the study in {root} has no reading ({why.rstrip('.')}).")
    return to_json(
        {
            "kind": TARGETS,
            "lpwm": __version__,
            **origin(),
            "versions": {**versions(), "numpy": np.__version__},
            "device": readings[0]["device"],
            "base": to_dict(base),
            "planning": to_dict(planning),
            "frames": frames,
            "data": data.digest,
            "seeds": list(seeds),
            "expected": len(jobs) - 1,
            "missing": [_name(j) for j in jobs if j is not None and j not in made and j not in failed],
            "failed": [{"run": _name(j), "why": why} for j, why in failed.items()],
            "controls": made.get(None, {}),
            "runs": readings,
            **summary(readings, seeds),
            "seconds": round(time.perf_counter() - begun, 1),
        }
    )


def _name(job: Job | None) -> str:
    return "controls" if job is None else f"{job[0].name} seed {job[1]}"


def _checked(
    base: RunConfig, cells: Sequence[TargetCell], seeds: Sequence[int], steps: int | None, compile: Any
) -> RunConfig:
    if not cells or len(set(cells)) != len(cells) or len(set(seeds)) != len(seeds):
        raise UserError("a target study needs at least one cell, and no cell or seed twice.")
    if len(seeds) < 2:
        raise UserError("a target study needs at least 2 training seeds: its intervals are over them.")
    if not base.model.sparse or base.objective.regularizer != "rdmreg":
        raise UserError("a target study needs a sparse base with regularizer rdmreg: only it has a target.")
    if base.data.world != "piecewise":
        raise UserError(f"a target study probes the zones of piecewise, and its base is {base.data.world}.")
    train = replace(base.train, steps=steps or base.train.steps, compile=compile, stop_dead=False)
    # One checkpoint and one evaluation, at the end: nothing in between is read. What is learned does not change.
    train = replace(train, eval_every=0, checkpoint_every=train.steps, log_every=max(train.log_every, 100))
    return replace(base, train=train)


# One run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What makes a reading, given its job (None: the controls). Pickled for every process."""

    base: RunConfig
    root: Path
    device: str
    planning: EvalConfig
    frames: int
    data: str  # digest

    def path(self, job: Job | None) -> Path:
        """Where its reading is kept: a function of all it depends on."""
        key: dict[str, Any] = {"planning": to_dict(self.planning), "version": __version__}
        if job is None:
            return self.root / "readings" / f"controls-{digest(key | {'data': self.data})}.json"
        cell, seed = job
        name = run_hash(cell.config(self.base, seed), self.data)
        return self.root / "readings" / f"{name}-{digest(key | {'frames': self.frames})}.json"

    def kept(self, job: Job | None) -> dict[str, Any] | None:
        path = self.path(job)
        return json.loads(path.read_text()) if path.exists() else None

    def __call__(self, job: Job | None) -> dict[str, Any]:
        made, path = to_json(self.controls() if job is None else self.reading(*job)), self.path(job)
        make_folder(path.parent)
        write_whole(path, json.dumps(made, allow_nan=False))
        return made

    def reading(self, cell: TargetCell, seed: int) -> dict[str, Any]:
        """Train one run, or take the one that is there, and inspect it."""
        times, device = [time.perf_counter()], torch.device(self.device)
        run = Run.create(cell.config(self.base, seed), self.root, cell.name)
        run.train(device, console=False)
        times.append(time.perf_counter())
        loaded = load(run.folder, device=device)
        target = run.config.objective.rdmreg.target(rectify=True)
        events = [r.message for r in read_log(run.folder, "event")]
        made: dict[str, Any] = {}
        try:
            made["measures"] = measures(run, loaded, target, self.frames)
            times.append(time.perf_counter())
            agent, settings = agent_of(loaded), replace(self.planning, controls=(), curve=0)
            evaluation = evaluate([agent], loaded.world, settings, device=self.device, data=self._episodes(run))
            made["planning"] = {setting(c): rates(c, 0, max(settings.budgets)) for c in evaluation.cells}
        except UserError as error:  # of a run that diverged nothing but the sentence that says so
            times.append(time.perf_counter())
            made = nothing(self.planning) | {"failed": str(error)}
        times.append(time.perf_counter())
        return {
            "cell": dataclasses.asdict(cell),
            "seed": seed,
            "hash": run.hash,
            "device": device_name(device),
            "target": {"active": target.activity, "at_least": target.mean**2 / target.second_moment},
            **made,
            "dead": events[-1] if events else "",
            "train_s": round(times[1] - times[0], 2),
            "read_s": round(times[2] - times[1], 2),
            "plan_s": round(times[-1] - times[2], 2),
        }

    def controls(self) -> dict[str, Any]:
        """Do nothing, random actions and the oracle on the same episodes, once: no run differs in them.

        They need a run's normalization of actions and none of its weights.
        """
        run, device = Run.create(self.base, self.root, "controls"), torch.device(self.device)
        agent = Agent(
            name="untrained",
            model=run.build_model(device).eval(),
            image=self.base.model.encoder.image_size,
            stats=run.source(device).stats,
            frameskip=self.base.data.frameskip,
        )
        world, settings = self.base.data.build_world(), replace(self.planning, curve=0)
        evaluation = evaluate([agent], world, settings, device=device, data=self._episodes(run))
        budget = max(self.planning.budgets)
        return {
            setting(c): {row.name: rates(c, i, budget) for i, row in enumerate(c.rows) if row.control}
            for c in evaluation.cells
        }

    def _episodes(self, run: Run) -> Any:
        return run.data if "dataset" in self.planning.goals else None


def nothing(planning: EvalConfig) -> dict[str, Any]:
    settings = [f"{goals} H={H} R={R}" for goals in planning.goals for H, R in planning.pairs()]
    rates = dict.fromkeys(("terminal", "latched"))
    return {"measures": dict.fromkeys(MEASURES), "planning": dict.fromkeys(settings, rates)}


def setting(cell: Cell) -> str:
    return f"{cell.goals} H={cell.horizon} R={cell.receding}"


def rates(cell: Cell, row: int, budget: int) -> dict[str, float]:
    return {what: float(cell.rows[row].success(what, budget).mean()) for what in ("terminal", "latched")}


def measures(run: Run, loaded: Loaded, target: RectifiedGeneralizedGaussian, frames: int) -> dict[str, float | None]:
    """The numbers of MEASURES, all on the same frames of held-out trajectories, encoded once."""
    seen = held_out_frames(loaded, run.data, StudyConfig(frames=frames))
    if not np.isfinite(seen.z_ND).all():
        raise UserError("the codes are not finite: the run has diverged, so there is nothing to inspect in it.")
    z_ND = seen.z_ND.astype(np.float32)
    active, square = float((z_ND > 0).mean()), float(np.square(z_ND, dtype=np.float64).mean())
    held = run.result().held_out
    ratio = [
        e / max(c, 1e-12) if math.isfinite(e) and math.isfinite(c) else None
        for e, c in zip(held.by_depth("error_depth"), held.by_depth("copy_error_depth"), strict=True)
    ]
    out = {
        "active": active,
        "gap": active - target.activity,
        "off": abs(active - target.activity),
        "at_least": float(z_ND.mean(dtype=np.float64) ** 2 / square) if square > 0 else 0.0,
        "law": law_distance(z_ND, target),
        "dead": float((z_ND <= 0).all(0).mean()),
        "dimension": float(effective_dimension(torch.from_numpy(z_ND))),
        "ratio": ratio[0],
        "ratio_deep": ratio[-1],
    }
    probes = probe(seen, ProbeConfig(resamples=100))
    for name in ("code", "support"):
        out[f"zone_{name}"] = probes.zone[name].estimate
        out[f"position_{name}"] = probes.position[name].estimate
    assert out.keys() == MEASURES.keys()
    return out


def law_distance(z_ND: Any, target: RectifiedGeneralizedGaussian) -> float:
    """√ of the mean over units of the squared Wasserstein distance between a unit's values and the target."""
    N = len(z_ND)
    y = target.sample((64 * N,), generator("law distance", N)).numpy()
    y_N = np.sort(y)[32::64]  # N quantiles
    return float(np.sqrt(np.square(np.sort(np.asarray(z_ND, dtype=np.float64), axis=0) - y_N[:, None]).mean()))
