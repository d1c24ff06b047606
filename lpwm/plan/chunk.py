"""Plans for as many environments at a time as memory holds."""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.plan.problem import Problem
from lpwm.plan.solver import Plan, Solver


def memory_budget(device: torch.device) -> int:
    """Bytes a plan may use: 60 % of what is free on the GPU; on the host a quarter of its memory, at most 4 GiB."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.6 * (free + cached))
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        total = 4 << 30
    return min(total // 4, 4 << 30)


def chunk_size(problem: Problem, solver: Solver, budget_bytes: int) -> int:
    """Environments per chunk; chunks of nearly equal size, since every new shape costs a compilation."""
    alive = (1 + problem.horizon) if solver.graph else 1  # gradients keep every step of the rollout
    need = max(1, solver.candidates * problem.candidate_bytes() * alive)
    most = max(1, min(problem.batch, budget_bytes // need))
    return math.ceil(problem.batch / math.ceil(problem.batch / most))


def chunked(
    problem: Problem,
    solver: Solver,
    budget_bytes: int | None = None,
    start: Tensor | None = None,
    seed: int = 0,
    compile: bool = False,
) -> Plan:
    """`solver.solve`, a few environments at a time; the plans are those of one solve.

    The estimate (`Problem.candidate_bytes`) may be wrong: when CUDA runs out of memory the chunk is halved.
    """
    if problem.batch == 0:
        raise UserError("there is no environment to plan for: give at least one.")
    if start is not None and start.shape[0] != problem.batch:
        raise UserError(f"the warm start is for {start.shape[0]} environments, the problem has {problem.batch}.")
    size = chunk_size(problem, solver, memory_budget(problem.device) if budget_bytes is None else budget_bytes)
    plans: list[Plan] = []
    at = 0
    while at < problem.batch:
        rows = slice(at, at + size)
        try:
            part = problem if size >= problem.batch else problem.select(rows)
            plans.append(solver.solve(part, None if start is None else start[rows], seed, compile))
        except torch.cuda.OutOfMemoryError as error:
            if size == 1:
                raise UserError("one environment's plan does not fit on the GPU: use fewer samples.") from error
            size = math.ceil(size / 2)
        else:
            at += size
            continue
        torch.cuda.empty_cache()  # outside the handler, where the traceback no longer holds the tensors
    if len(plans) == 1:
        return plans[0]
    info = {name: torch.cat([p.info[name] for p in plans]) for name in plans[0].info}
    return Plan(torch.cat([p.actions_BHA for p in plans]), torch.cat([p.costs_B for p in plans]), info)
