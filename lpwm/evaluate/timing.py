"""How long an evaluation will take, from a short look at what it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lpwm.evaluate.agent import LatentActor, PlanActor
from lpwm.evaluate.controls import Oracle
from lpwm.evaluate.episodes import open_world
from lpwm.evaluate.evaluate import Evaluator, Job
from lpwm.plan import MPCConfig, make_solver

FEW = 8  # environments of a calibration on the CPU, where time grows with their number
LONG = 2.0  # seconds: a longer iteration is extrapolated from a few environments


@dataclass(frozen=True)
class Pace:
    """Seconds, for all environments: one look (render, encode) and one iteration of the solver."""

    look: float
    iteration: float
    iterations: int


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """The shorter of two tries; one, if it is already long."""
    best = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
        if best > 1.0:
            break
    return best


@torch.no_grad()
def pace(runner: Evaluator, job: Job, actor: PlanActor, solver: str, options: dict[str, Any]) -> Pace:
    """Times one iteration: the whole of a solver that has none."""
    full = make_solver(solver, **options)
    iterations = int(getattr(getattr(full, "config", None), "iterations", 1))
    one = make_solver(solver, **{**options, "iterations": 1}) if iterations > 1 else full
    actor.mpc.solver = one

    def timed(n: int) -> Pace:
        few = job.episodes.select(list(range(n)))
        state = few.start_BS.to(runner.device)
        live = open_world(runner.world, state, actor, job.workers)
        try:
            actor.begin(few, state)
            look = _seconds(lambda: actor.see(state), runner.device)
            actor.begin(few, state)
            problem = actor.problem(actor.see(state)[:, None], None, actor.mpc.config.horizon)
            return Pace(look, _seconds(lambda: one.solve(problem), runner.device), iterations)
        finally:
            live.close()

    every = len(job.episodes)
    n = every if runner.device.type == "cuda" else min(FEW, every)
    found = timed(n)
    if (
        n < every and (found.look + found.iteration) * every / n < LONG
    ):  # overheads do not grow: time them all
        return timed(every)
    return Pace(found.look * every / n, found.iteration * every / n, iterations)


def predict(runner: Evaluator) -> float:
    """Seconds for all jobs that are not stored. One calibration per agent (and one for the oracle, on a few live
    simulators where it has them), scaled to every horizon; what is not planning is counted as nothing."""
    total, known = 0.0, {}
    config = runner.config
    for job in runner.jobs():
        if job.plans == 0 or runner.stored(job):
            continue
        mpc = MPCConfig(**job.depends["mpc"])
        oracle = job.depends.get("control") == "oracle"
        who = "oracle" if oracle else str(job.depends["who"])
        if who not in known:
            actor = job.actor(None)
            assert isinstance(actor, (LatentActor, Oracle))
            solver, options = (
                config.oracle_planner(runner.live) if oracle else (config.solver, config.options)
            )
            known[who] = (pace(runner, job, actor, solver, dict(options)), mpc.horizon)
        p, horizon = known[who]
        per_plan = p.iterations * p.iteration * mpc.horizon / horizon + mpc.receding * p.look
        total += job.plans * per_plan
    return total


def duration(seconds: float) -> str:
    """For people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
