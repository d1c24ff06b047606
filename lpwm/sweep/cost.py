"""What a cell will cost: training from its config, planning from its evaluations. Estimates, called so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from lpwm.evaluate.config import EvalConfig
from lpwm.model import ModelConfig
from lpwm.sweep.grid import Cell, Grid
from lpwm.train import DataConfig, RunConfig
from lpwm.train.cost import RATES, estimate


@dataclass(frozen=True)
class CellCost:
    steps: int
    parameters: int
    gpu_minutes: float
    cpu_minutes: float
    gpu_bytes: float
    cpu_bytes: float

    def bytes(self, device: str) -> float:
        return self.gpu_bytes if device == "cuda" else self.cpu_bytes

    def minutes(self, device: str) -> float:
        return self.gpu_minutes if device == "cuda" else self.cpu_minutes


@cache
def _action_dim(data: DataConfig) -> int:
    return data.build_world().spec.action_dim


_train_cost = cache(estimate)


def cost_of(cell: Cell) -> CellCost:
    c = cell.config
    action = (2 if c.data.file else _action_dim(c.data)) * c.data.frameskip
    plain = replace(c.objective, lam=1.0, tj_weight=0.0)  # neither changes the cost: fewer models to count
    gpu, cpu = (_train_cost(c.model, plain, action, c.frames, c.train.batch, half) for half in (True, False))
    planning = sum(planning_flops(e, c) for e in cell.evals.values())
    local = -(-c.train.batch // c.train.accumulate)
    return CellCost(
        c.train.steps,
        gpu.parameters,
        gpu.minutes(c.train.steps, "cuda") + planning / RATES["cuda"] / 60,
        cpu.minutes(c.train.steps, "cpu") + planning / RATES["cpu"] / 60,
        gpu.bytes(local),
        cpu.bytes(local),
    )


def planning_flops(e: EvalConfig, run: RunConfig) -> float:
    """Samples × horizon through the predictor and the action encoder, for every plan of every method (not the oracle).

    At the rates of training steps: planning small models reaches less.
    """
    config = getattr(e.build_solver(), "config", None)
    tries = int(getattr(config, "samples", 1)) * int(getattr(config, "iterations", 1))
    D, k = run.model.latent, run.model.predictor.history
    per_step = 2.0 * (_predictor_size(run.model) / max(1, k) + 8 * D * D)
    plans = sum(h * math.ceil(max(e.budgets) / (r * run.data.frameskip)) for h, r in e.pairs())
    return len(e.goals) * e.episodes * e.planner_seeds * tries * plans * per_step


@cache
def _predictor_size(model: ModelConfig) -> int:
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in model.predictor.build(model.latent).parameters())


def check_fits(grid: Grid, cells: Sequence[Cell], costs: Sequence[CellCost], free: float, device: str) -> None:
    """Refuse a width (or batch) that cannot fit, naming its line."""
    for cell, cost in zip(cells, costs, strict=True):
        need = cost.bytes(device)
        if need > free:
            axis = next((a.key for a in grid.axes for f in a.fields if f == "model.latent"), "")
            section = "axes" if axis else "fixed" if "model.latent" in grid.fixed else ""
            grid.refuse(
                section,
                axis or ("model.latent" if section else "recipe"),
                f"{cell.label} needs about {need / 2**30:.1f} GiB and a cell has {free / 2**30:.1f} GiB on "
                f"{device}: use a smaller model.latent or train.batch, or train.accumulate.",
            )
