"""Cells that differ in their seed alone, trained as one stack; everything around the step is that of ordinary runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpwm.core.config import to_dict
from lpwm.data import ResidentClips
from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.optim import build, factor
from lpwm.sweep.cells import finish_cell, run_cell
from lpwm.sweep.grid import Cell
from lpwm.sweep.stacked import StackedStepper, check_stackable
from lpwm.train import Run, RunConfig, half_precision
from lpwm.train.distributed import Ranks
from lpwm.train.health import Health
from lpwm.train.log import Logger
from lpwm.train.loop import Callbacks, Interrupted, Interrupts, measure_step
from lpwm.train.monitors import ActivityWindow, observe
from lpwm.train.step import Terms

Result = tuple[dict[str, Any], dict[str, str]]


@dataclass
class _Lane:
    """One seed of the stack: what an ordinary run has around its step."""

    job: Run
    model: WorldModel
    source: Any
    callbacks: Callbacks
    logger: Logger
    health: Health
    window: ActivityWindow
    metric: float | None = None
    dead: str = ""


@dataclass(frozen=True)
class _Watched:
    """What `measure_step` asks of a stepper, for one lane of the stack."""

    model: WorldModel
    activity: ActivityWindow
    autocast: Callable[[], torch.autocast]
    ranks: Ranks

    def monitors(self, actions: Tensor, out: Terms) -> Terms:
        with self.autocast():
            return observe(self.model, out["z"], actions)


def run_stack(
    cells: Sequence[Cell], root: Path, device: torch.device, report: Callable[[str], None] = lambda sentence: None
) -> list[Result]:
    """The results of cells that differ in their seed alone. Seeds at different steps are continued one by one."""
    base = cells[0].config
    check_stackable(base)
    assert all(_seeded(c.config, 0) == _seeded(base, 0) for c in cells)
    began = time.perf_counter()
    jobs = [Run.create(c.config, root / "runs", c.name) for c in cells]
    together = replace(base, train=replace(base.train, batch=base.train.batch * len(cells)))
    together.check_fits(device, Ranks(), jobs[0].data.actions.shape[1])
    models = [job.build_model(device) for job in jobs]
    options = {"fused": True, "capturable": True} if device.type == "cuda" else {}
    optimizers = [build(m, base.optim, **options) for m in models]
    start, *others = (job.restore(m, o, report) for job, m, o in zip(jobs, models, optimizers, strict=True))
    if any(other != start for other in others) or start >= base.train.steps:
        return [run_cell(c, root, device, report) for c in cells]
    half = half_precision(base.train.precision, device)
    stepper = StackedStepper(
        models,
        Objective(base.objective, base.model.sparse),
        optimizers,
        base.optim.clip,
        torch.bfloat16 if half else torch.float32,
        compiled=base.train.compile == "on",
        graphed=device.type == "cuda" and base.train.compile != "off",
    )
    lanes = _lanes(cells, jobs, models, optimizers, device, start)
    try:
        _train(lanes, stepper, base, start)
    finally:
        for lane in lanes:
            lane.logger.close()
    spent = (time.perf_counter() - began) / len(cells)
    return [finish_cell(c, lane.job, root, device, lane.dead, spent) for c, lane in zip(cells, lanes, strict=True)]


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, train=replace(config.train, seed=seed))


def _lanes(
    cells: Sequence[Cell],
    jobs: Sequence[Run],
    models: Sequence[WorldModel],
    optimizers: Sequence[torch.optim.Optimizer],
    device: torch.device,
    start: int,
) -> list[_Lane]:
    first = jobs[0].source(device)
    lanes = []
    for cell, job, model, optimizer in zip(cells, jobs, models, optimizers, strict=True):
        c, source = cell.config, first
        if job is not jobs[0]:  # the same clips in another order: the data stay in memory once
            source = first.reordered(c.train.seed) if isinstance(first, ResidentClips) else job.source(device)
        logger = Logger(job.folder, total_steps=c.train.steps, start_step=start, console=False, config=to_dict(c))
        callbacks = job.callbacks(model, optimizer, source, Ranks())
        window = ActivityWindow(c.model.latent, device)
        lanes.append(_Lane(job, model, source, callbacks, logger, Health(c.train.health), window))
    return lanes


def _train(lanes: Sequence[_Lane], stepper: StackedStepper, base: RunConfig, start: int) -> None:
    """The loop of `train.loop.train`, for all lanes at once. A dead seed stops being looked at; the others go on."""
    c, floor = base.train, lanes[0].job.regularizer_floor()
    for lane in lanes:
        lane.model.train()
    with Interrupts() as interrupts:
        for step in range(start, c.steps):
            clips = [lane.source.batch(step) for lane in lanes]
            draws = [
                stepper.objective.draw(
                    (lane.job.config.train.seed, step), c.batch, base.frames, base.model.latent, stepper.device
                )
                for lane in lanes
            ]
            rate = factor(base.optim.schedule, base.optim.warmup, step, c.steps)
            pixels, actions = torch.stack([x.pixels for x in clips]), torch.stack([x.actions for x in clips])
            outs = stepper(pixels, actions, draws, rate)
            if (step + 1) % c.checkpoint_every == 0 or step + 1 == c.steps or interrupts.asked or _log_due(c, step + 1):
                stepper.spread()
            asked = interrupts.asked
            for lane, clip, out in zip(lanes, clips, outs, strict=True):
                if not lane.dead:
                    _after(lane, clip.actions, out, step + 1, rate, stepper, floor, asked)
            if asked and step + 1 < c.steps:
                raise Interrupted
            if all(lane.dead for lane in lanes):
                return


def _log_due(c: Any, done: int) -> bool:
    return done % c.log_every == 0 or done == c.steps


def _after(
    lane: _Lane, actions: Tensor, out: Terms, done: int, rate: float, stepper: StackedStepper, floor: float, asked: bool
) -> None:
    """Log and look for signs of death, evaluate on held-out clips, checkpoint: as after any step."""
    config = lane.job.config
    c, last, verdict = config.train, done == config.train.steps, None
    lane.window.update(out["z"])
    if _log_due(c, done):
        watched: Any = _Watched(lane.model, lane.window, stepper.autocast, Ranks())
        record = measure_step(actions, out, watched)
        verdict = lane.health.check(done, c.steps, record)
        record |= {"learning_rate": rate * config.optim.lr, "regularizer_excess": record["regularizer"] - floor}
        lane.logger.log(done, record, "train")
        if verdict is not None:
            lane.logger.event(done, verdict.sentence)
    assert lane.callbacks.evaluate is not None and lane.callbacks.save is not None
    if last or (c.eval_every and done % c.eval_every == 0):
        found = lane.callbacks.evaluate(done)
        lane.logger.log(done, found, "val")
        lane.metric = lane.callbacks.metric(found)
    stops = verdict is not None and verdict.dead and c.stop_dead
    if last or asked or stops or done % c.checkpoint_every == 0:
        lane.callbacks.save(done, lane.metric)
    lane.dead = verdict.sentence if verdict is not None and stops else ""
