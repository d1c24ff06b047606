"""How long an evaluation will take, from timing a few of its parts."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from lpwm.evaluate.episodes import open_world
from lpwm.evaluate.evaluate import Evaluator, Job
from lpwm.plan import MPCConfig, make_solver
from lpwm.plan.solver import Sampler

FEW = 8  # environments of a calibration on the CPU, where time grows with their number
COMPILE = 30.0  # seconds to compile one kind of plan (Deep-AdaLN on an H200; simpler rungs 19)
GAIN = 4.0  # how much faster a compiled search is there (Deep-AdaLN 4.4, MLP∘LTI 7)


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
def _pace(runner: Evaluator, job: Job, solver: str, options: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds for all environments: to see a frame, of a raw step of live simulators, and of a plan, by one iteration
    of its search on a few of them."""
    actor: Any = job.actor(None)
    every = len(job.episodes)
    few = job.episodes.select(list(range(every if runner.device.type == "cuda" else min(FEW, every))))
    state = few.start_BS.to(runner.device)
    iterations = int(getattr(getattr(actor.mpc.solver, "config", None), "iterations", 1))
    actor.mpc.solver = make_solver(solver, **(options | ({"iterations": 1} if iterations > 1 else {})))
    live = open_world(runner.world, state, actor, job.workers)
    try:
        actor.begin(few, state)
        plan = iterations * _seconds(actor.act, runner.device)
        look = _seconds(lambda: actor.see(state), runner.device)
        still = torch.zeros(len(few), runner.world.spec.action_dim)
        step = _seconds(lambda: live.step(still), runner.device) if runner.live else 0.0
    finally:
        live.close()
    scale = every / len(few)
    return scale * look, scale * step, scale * plan


def times(runner: Evaluator) -> tuple[float, float]:
    """Seconds of planning with models, uncompiled, and of all the rest, for all jobs that are not stored. One
    calibration per agent and one for the oracle, scaled to every horizon; who does not plan counts as nothing."""
    models, rest, known = 0.0, 0.0, dict[str, tuple[Any, int]]()
    config = runner.config
    for job in runner.jobs():
        if job.plans == 0 or runner.stored(job):
            continue
        mpc, oracle = MPCConfig(**job.depends["mpc"]), "control" in job.depends
        who = "oracle" if oracle else str(job.depends["who"])
        if who not in known:
            solver, options = config.oracle_planner(runner.live) if oracle else (config.solver, config.options)
            known[who] = (_pace(runner, job, solver, dict(options)), mpc.horizon)
        (look, step, plan), horizon = known[who]
        search = job.plans * plan * mpc.horizon / horizon
        rest += job.plans * mpc.receding * look + runner.steps * step
        models, rest = (models, rest + search) if oracle else (models + search, rest)
    return models, rest


def compilations(runner: Evaluator) -> int:
    """How many kinds of plan there are to compile: by the shapes of the model, the horizon and the context's length,
    which grows from the first frame to the model's history."""
    kinds = set()
    for agent in runner.agents:
        predictor, link = getattr(agent.model, "predictor", agent.model), str(getattr(agent.model, "link", ""))
        shapes = str((link, [tuple(x.shape) for x in getattr(predictor, "parameters", list)()]))
        for horizon, receding in runner.config.pairs():
            context = runner.mpc(horizon, receding, agent).context
            plans = math.ceil(runner.steps / (receding * agent.frameskip))
            kinds |= {(shapes, horizon, min(context, 1 + n * receding)) for n in range(plans)}
    return len(kinds)


def worth_compiling(runner: Evaluator, models_s: float) -> bool:
    """Whether planning, `models_s` seconds uncompiled, takes more than twice what compiling costs; never on the CPU."""
    able = runner.device.type == "cuda" and isinstance(runner.solver, Sampler)
    return able and models_s > 2 * COMPILE * compilations(runner)
