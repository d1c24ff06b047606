"""How long an evaluation will take, from timing a few of its parts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lpwm.evaluate.agent import LatentActor, PlanActor
from lpwm.evaluate.controls import Oracle
from lpwm.evaluate.episodes import open_world
from lpwm.evaluate.evaluator import Evaluator, Job
from lpwm.plan import MPCConfig, Problem, make_solver
from lpwm.plan.solver import Sampler

FEW = 8  # environments of a calibration on the CPU, where time grows with their number
COMPILE = 30.0  # seconds to compile one kind of plan (Deep-AdaLN on an H200; simpler rungs 19)
GAIN = 4.0  # how much faster a compiled search is there (Deep-AdaLN 4.4, MLP∘LTI 7)
LONG = 2.0  # seconds: a longer iteration is extrapolated from a few environments


@dataclass(frozen=True)
class Pace:
    """Seconds, for all environments: one look (render, encode), one raw step of live simulators, what a plan costs
    however long it searches, and one iteration of the solver."""

    look: float
    step: float
    plan: float
    iteration: float
    iterations: int

    def scaled(self, by: float) -> Pace:
        return Pace(self.look * by, self.step * by, self.plan * by, self.iteration * by, self.iterations)


@dataclass(frozen=True)
class Times:
    """Seconds of an evaluation: planning with models, uncompiled; all the rest."""

    models: float
    rest: float

    @property
    def total(self) -> float:
        return self.models + self.rest


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
    """Times searches of one and of three iterations: what they share is the plan's. The whole of a solver that has
    none."""
    full = make_solver(solver, **options)
    iterations = int(getattr(getattr(full, "config", None), "iterations", 1))

    def search(problem: Problem, n: int) -> float:
        one = make_solver(solver, **{**options, "iterations": n}) if iterations > 1 else full
        return _seconds(lambda: one.solve(problem), runner.device)

    few_iterations = min(3, iterations)

    def timed(n: int) -> Pace:
        few = job.episodes.select(list(range(n)))
        state = few.start_BS.to(runner.device)
        live = open_world(runner.world, state, actor, job.workers)
        try:
            actor.begin(few, state)
            look = _seconds(lambda: actor.see(state), runner.device)
            actor.begin(few, state)
            problem = actor.problem(actor.see(state)[:, None], None, actor.mpc.config.horizon)
            one, more = search(problem, 1), search(problem, few_iterations)
            still = torch.zeros(n, runner.world.spec.action_dim)
            step = _seconds(lambda: live.step(still), runner.device) if runner.live else 0.0
        finally:
            live.close()
        slope = max(0.0, more - one) / (few_iterations - 1) if few_iterations > 1 else 0.0
        slope = max(slope, 0.1 * one)  # two short tries are noisy, and an iteration is never free
        return Pace(look, step, max(0.0, one - slope), slope, iterations)

    every = len(job.episodes)
    n = every if runner.device.type == "cuda" else min(FEW, every)
    short = timed(n)
    # Overheads do not grow with the environments: time them all.
    if n < every and (short.look + short.plan + short.iteration) * every / n < LONG:
        return timed(every)
    return short.scaled(every / n)


def times(runner: Evaluator) -> Times:
    """For all jobs that are not stored. One calibration per agent (and one for the oracle, on a few live simulators
    where it has them), scaled to every horizon; controls that do not plan are counted as nothing."""
    models, rest, known = 0.0, 0.0, dict[str, tuple[Pace, int]]()
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
            solver, options = config.oracle_planner(runner.live) if oracle else (config.solver, config.options)
            known[who] = (pace(runner, job, actor, solver, dict(options)), mpc.horizon)
        p, horizon = known[who]
        search = job.plans * (p.plan + p.iterations * p.iteration * mpc.horizon / horizon)
        rest += job.plans * mpc.receding * p.look + runner.steps * p.step
        models, rest = (models, rest + search) if oracle else (models + search, rest)
    return Times(models, rest)


def compilations(runner: Evaluator) -> int:
    """How many kinds of plan there are to compile: by the shapes of the model, the horizon and the context's length,
    which grows from the first frame to the model's history."""
    kinds = set()
    for agent in runner.agents:
        shapes = tuple(str([tuple(p.shape) for p in _predictor(m)]) + str(getattr(m, "link", "")) for m in agent.models)
        for horizon, receding in runner.config.pairs():
            context = runner.mpc(horizon, receding, agent).context
            plans = math.ceil(runner.steps / (receding * agent.frameskip))
            kinds |= {(shapes, horizon, min(context, 1 + n * receding)) for n in range(plans)}
    return len(kinds)


def _predictor(model: Any) -> list[Any]:
    part = getattr(model, "predictor", model)
    return list(part.parameters()) if hasattr(part, "parameters") else []


def worth_compiling(runner: Evaluator, models_s: float) -> bool:
    """Whether planning, `models_s` seconds uncompiled, takes more than twice what compiling costs; never on the CPU."""
    able = runner.device.type == "cuda" and isinstance(runner.solver, Sampler)
    return able and models_s > 2 * COMPILE * compilations(runner)


def duration(seconds: float) -> str:
    """For people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
