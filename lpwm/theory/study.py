"""The proposition measured: error against the number of cells, and what jumps in the map do to it.

`converge` takes a smooth System. `borders` takes a map that is Lipschitz only within pieces, told apart by `label`: a
state whose cell has its center in another piece may be wrong by the height of the jump however small the cells are,
and only the share of such states shrinks. Over several steps more and more states part from their codes, whatever
the grid: a path that passes a border within its error of it may be decoded on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.theory.bounds import ROUNDING, Errors, measure, slope
from lpwm.theory.one_hot import Map, OneHot
from lpwm.theory.quantize import Floats, Grid
from lpwm.theory.systems import System

Label = Callable[[Floats], NDArray[np.integer]]  # states (M, d) -> pieces (M,)

# Cells a side by dimension: each several doublings, the largest a few times 10⁵ cells.
SIZES: dict[int, tuple[int, ...]] = {
    1: (16, 32, 64, 128, 256, 512, 1024, 2048),
    2: (8, 16, 32, 64, 128, 256, 512),
    3: (6, 9, 14, 21, 32, 48, 64),
}


@dataclass(frozen=True)
class StudyConfig:
    states: int = 20_000  # uniform on the box
    horizon: int = 5
    sequences: int = 8  # random action sequences of that length
    seed: int = 0

    def __post_init__(self) -> None:
        if self.states < 100 or self.horizon < 1 or self.sequences < 1:
            raise UserError("a theory study needs at least 100 states, 1 step and 1 action sequence.")


@dataclass(frozen=True)
class GridErrors:
    """One grid: errors after one step (worst, mean) and after H ("far"), and their bounds."""

    cells: int
    epsilon: float
    worst: float
    mean: float
    bound: float
    far_worst: float
    far_mean: float
    far_bound: float
    far_beyond: float  # share of states above the bound
    holds: bool
    bytes: int


@dataclass(frozen=True)
class Convergence:
    """A smooth system over grids of growing N."""

    name: str
    d: int
    lipschitz: float
    horizon: int
    states: int
    rows: tuple[GridErrors, ...]
    slope_worst: float
    slope_mean: float
    slope_far: float

    @property
    def holds(self) -> bool:
        return all(r.holds for r in self.rows)


@dataclass(frozen=True)
class BorderErrors(GridErrors):
    """The same with states whose center lies in another piece ("cut") and the rest ("whole") apart."""

    n: int
    cut: float  # share of states
    worst_cut: float | None
    worst_whole: float
    parted: float  # share of states that lie in another piece than their decoded codes within H steps
    beyond: float
    cut_cells: float  # share of cells


@dataclass(frozen=True)
class Borders:
    """A map with jumps over grids of growing N."""

    name: str
    d: int
    lipschitz: float
    horizon: int
    states: int
    rows: tuple[BorderErrors, ...]
    slope_whole: float


@dataclass(frozen=True)
class ErrorMap:
    """One-step errors on points × points states of a square, the worst action of each."""

    n: int
    epsilon: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    error: tuple[tuple[float, ...], ...]


def converge(system: System, sizes: Sequence[int] = (), config: StudyConfig | None = None) -> Convergence:
    """One-step and H-step errors of a smooth system on [0, 1]^d over grids of growing N, next to their bounds."""
    config = config or StudyConfig()
    x_Md, sequences = _draws(config, (0.0,) * system.d, (1.0,) * system.d, len(system.actions_AK))
    rows = []
    for n in sizes or SIZES[system.d]:
        model = OneHot.of(system.f, Grid.unit(system.d, n), system.actions_AK)
        one = _one_step(model, system.f, x_Md, system.lipschitz)
        far = [measure(model, system.f, x_Md, s, system.lipschitz) for s in sequences]
        rows.append(GridErrors(**_errors(model, one, far)))
    cells = [r.cells for r in rows]
    return Convergence(
        name=system.name,
        d=system.d,
        lipschitz=system.lipschitz,
        horizon=config.horizon,
        states=config.states,
        rows=tuple(rows),
        slope_worst=slope(cells, [r.worst for r in rows]),
        slope_mean=slope(cells, [r.mean for r in rows]),
        slope_far=slope(cells, [r.far_mean for r in rows]),
    )


def borders(
    name: str,
    f: Map,
    label: Label,
    low: tuple[float, ...],
    high: tuple[float, ...],
    actions_AK: Floats,
    sizes: Sequence[int],
    *,
    lipschitz: float = 1.0,
    config: StudyConfig | None = None,
) -> Borders:
    """The same for a map that is Lipschitz only within the pieces that `label` tells apart."""
    config = config or StudyConfig()
    actions_AK = np.asarray(actions_AK, dtype=np.float64)
    x_Md, sequences = _draws(config, low, high, len(actions_AK))
    rows = []
    for n in sizes:
        model = OneHot.of(f, Grid(low, high, n), actions_AK)
        one = _one_step(model, f, x_Md, lipschitz)
        far = [measure(model, f, x_Md, s, lipschitz) for s in sequences]
        cut = label(x_Md) != label(model.decode(model.encode(x_Md)))
        error = one.error_HM[1].reshape(len(actions_AK), -1).max(0)  # the worst action of each state
        rows.append(
            BorderErrors(
                **_errors(model, one, far),
                n=n,
                cut=float(cut.mean()),
                worst_cut=float(error[cut].max()) if cut.any() else None,
                worst_whole=float(error[~cut].max()),
                parted=float(np.mean([_parted(model, f, label, x_Md, s) for s in sequences])),
                beyond=float((error > one.bound_H[1] * (1 + ROUNDING)).mean()),
                cut_cells=_cut_cells(model, label),
            )
        )
    whole = slope([r.cells for r in rows], [r.worst_whole for r in rows])
    return Borders(name, len(low), lipschitz, config.horizon, config.states, tuple(rows), whole)


def _parted(model: OneHot, f: Map, label: Label, x_Md: Floats, actions_H: NDArray[np.int64]) -> float:
    """The share of states that, before some step, lie in another piece than their decoded codes."""
    cells, parted = model.rollout(model.encode(x_Md), actions_H), np.zeros(len(x_Md), dtype=np.bool_)
    for h, action in enumerate(actions_H):
        parted |= label(x_Md) != label(model.decode(cells[h]))
        x_Md = f(x_Md, model.actions_AK[action])
    return float(parted.mean())


def error_map(f: Map, grid: Grid, actions_AK: Floats, points: int) -> ErrorMap:
    if grid.d != 2:
        raise UserError(f"an error map is drawn in 2 dimensions, not {grid.d}.")
    model = OneHot.of(f, grid, actions_AK)
    side = (np.arange(points) + 0.5) / points
    y, x = np.meshgrid(side, side, indexing="ij")
    states = grid.low + np.stack((x, y), -1).reshape(-1, 2) * grid.side
    errors = [measure(model, f, states, [a], 1.0).error_HM[1] for a in range(len(model.actions_AK))]
    worst = np.max(errors, axis=0).reshape(points, points)
    return ErrorMap(grid.n, grid.epsilon, grid.low, grid.high, tuple(map(tuple, np.round(worst, 2).tolist())))


def _draws(config: StudyConfig, low: Any, high: Any, actions: int) -> tuple[Floats, NDArray[np.int64]]:
    draw = np.random.default_rng(rng.seed_of("theory study", len(low), config.seed))
    x_Md = draw.uniform(low, high, (config.states, len(low)))
    return x_Md, draw.integers(0, actions, (config.sequences, config.horizon))


def _one_step(model: OneHot, f: Map, x_Md: Floats, lipschitz: float) -> Errors:
    """Every state under every action, after one step: errors (2, A·M), actions first."""
    each = [measure(model, f, x_Md, [a], lipschitz) for a in range(len(model.actions_AK))]
    return Errors(np.concatenate([e.error_HM for e in each], axis=1), each[0].bound_H)


def _errors(model: OneHot, one: Errors, far: list[Errors]) -> dict[str, Any]:
    """The fields of `GridErrors`."""
    return {
        "cells": model.cells,
        "epsilon": model.quantizer.epsilon,
        "worst": float(one.worst_H[1]),
        "mean": float(one.mean_H[1]),
        "bound": float(one.bound_H[1]),
        "far_worst": float(max(e.worst_H[-1] for e in far)),
        "far_mean": float(np.mean([e.mean_H[-1] for e in far])),
        "far_bound": float(far[0].bound_H[-1]),
        "far_beyond": float(np.mean([e.beyond_H[-1] for e in far])),
        "holds": one.holds and all(e.holds for e in far),
        "bytes": model.bytes,
    }


def _cut_cells(model: OneHot, label: Label) -> float:
    """The share of cells with a corner (drawn in by a millionth) in another piece than their center."""
    grid = model.quantizer
    assert isinstance(grid, Grid)
    center = grid.decode(np.arange(grid.cells))
    own, cut = label(center), np.zeros(grid.cells, dtype=np.bool_)
    half = grid.side / (2 * grid.n) * (1 - 1e-6)
    for signs in np.ndindex(*(2,) * grid.d):
        cut |= label(center + (2 * np.array(signs) - 1) * half) != own
    return float(cut.mean())
