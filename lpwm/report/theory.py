"""The proposition measured on smooth systems and on the true Piecewise dynamics: `lpwm paper theory`.

Piecewise is Lipschitz only within its zones: a state whose cell has its center in another zone may be wrong by the
height of the jump however small the cells are, and only the share of such states shrinks. Over several steps more
states part from their codes, whatever the grid: a path near a border may be decoded on its other side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.core.json import fields_json, from_json
from lpwm.core.version import __version__
from lpwm.theory import SMOOTH, Errors, Grid, Map, OneHot, System, measure, slope
from lpwm.theory.bounds import ROUNDING
from lpwm.worlds.piecewise import BORDER, FRAME, RADIUS, Piecewise

KIND = "lpwm theory"
Floats = NDArray[np.float64]

# Cells a side by dimension: each several doublings, the largest a few times 10⁵ cells.
SIZES: dict[int, tuple[int, ...]] = {
    1: (16, 32, 64, 128, 256, 512, 1024, 2048),
    2: (8, 16, 32, 64, 128, 256, 512),
    3: (6, 9, 14, 21, 32, 48, 64),
}
# Where the dot can be after its first step. The border between two zones a side, 112, is its very middle, so an even
# number of cells puts an edge there and an odd number a row of centers.
LOW, HIGH = float(BORDER + RADIUS), float(FRAME - BORDER - RADIUS)
ACTIONS = np.array([(0.0, 0.0), *((np.cos(a), np.sin(a)) for a in np.arange(8) * np.pi / 4)])
ODD, EVEN = (9, 17, 33, 65, 129, 257, 513), SIZES[2]
CASES = (("2×2 zones, odd grids", 2, ODD), ("2×2 zones, even grids", 2, EVEN), ("3×3 zones", 3, EVEN))
MAP_CELLS, MAP_POINTS = 33, 165  # five points a cell and side


@dataclass(frozen=True)
class StudyConfig:
    states: int = 20_000  # uniform on the box
    horizon: int = 5
    sequences: int = 8  # random action sequences of that length
    seed: int = 0

    def __post_init__(self) -> None:
        if self.states < 100 or self.horizon < 1 or self.sequences < 1:
            raise UserError("a theory study needs at least 100 states, 1 step and 1 action sequence.")

    def draws(self, low: Sequence[float], high: Sequence[float], actions: int) -> tuple[Floats, NDArray[np.int64]]:
        """States (M, d) and action sequences (sequences, H)."""
        draw = np.random.default_rng(rng.seed_of("theory study", len(low), self.seed))
        x_Md = draw.uniform(low, high, (self.states, len(low)))
        return x_Md, draw.integers(0, actions, (self.sequences, self.horizon))


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
class OfSystem:
    name: str
    d: int
    lipschitz: float
    horizon: int
    states: int


@dataclass(frozen=True)
class Convergence(OfSystem):
    """A smooth system over grids of growing N."""

    rows: tuple[GridErrors, ...]
    slope_worst: float
    slope_mean: float
    slope_far: float

    @property
    def holds(self) -> bool:
        return all(r.holds for r in self.rows)


@dataclass(frozen=True)
class BorderErrors(GridErrors):
    """The same with states whose center lies in another zone ("cut") and the rest ("whole") apart."""

    n: int
    cut: float  # share of states
    worst_cut: float | None
    worst_whole: float
    parted: float  # share of states that lie in another zone than their decoded codes within H steps
    beyond: float
    cut_cells: float  # share of cells


@dataclass(frozen=True)
class PiecewiseBorders(OfSystem):
    """Piecewise over grids of growing N."""

    rows: tuple[BorderErrors, ...]
    slope_whole: float
    g: int  # zones a side
    jump: float  # the largest difference between the pushes of two zones


@dataclass(frozen=True)
class PiecewiseMap:
    """One-step errors on points × points states of the arena, the worst action of each."""

    n: int
    epsilon: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    error: tuple[tuple[float, ...], ...]
    g: int
    bound: float


@dataclass(frozen=True)
class TheoryStudy:
    """Everything `lpwm paper theory` writes."""

    systems: tuple[Convergence, ...]
    piecewise: tuple[PiecewiseBorders, ...]
    map: PiecewiseMap
    lpwm: str = __version__
    version: int = 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, **fields_json(self)}

    @classmethod
    def from_json(cls, record: Any, where: str = KIND) -> "TheoryStudy":
        return from_json(cls, record, where)

    def problems(self, tolerance: float = 0.1) -> list[str]:
        """What does not come out as the proposition says, in sentences; [] when all does."""
        out = []
        for s in self.systems:
            for what, value in (("slope_worst", s.slope_worst), ("slope_mean", s.slope_mean)):
                if abs(s.d * value + 1) > tolerance:
                    out.append(f"{s.name}: {what} is {value:.3f}, not within 10 % of −1/{s.d}.")
            if not s.holds:
                out.append(f"{s.name}: an error is above its bound.")
        return out

    def tables(self) -> list[str]:
        """Two tables of text."""
        from lpwm.interpret.compare import columns

        smooth = []
        for s in self.systems:
            last, slopes = s.rows[-1], [f"{s.d * value:+.3f}" for value in (s.slope_worst, s.slope_mean)]
            error = f"{last.worst:.5f} / {last.bound:.5f}"
            smooth.append([s.name, *slopes, "hold" if s.holds else "BROKEN", f"{last.cells:,}", error])
        jumps = []
        for p in self.piecewise:
            for r in (p.rows[0], p.rows[-1]):
                shares = [f"{100 * share:.2f} %" for share in (r.cut_cells, r.cut, r.parted)]
                cut = "–" if r.worst_cut is None else f"{r.worst_cut:.3f}"
                jumps.append([p.name, str(r.n), *shares, f"{r.worst_whole:.3f}", cut])
        heads = ["system", "slope × d, worst", "mean", "bounds", "largest N", "worst error / bound"]
        of_jumps = ["Piecewise", "n", "cells cut", "states cut", "within H steps", "worst error, whole (px)", "cut"]
        return [columns(heads, smooth), columns(of_jumps, jumps)]


def theory(sizes: int = 0, config: StudyConfig | None = None) -> TheoryStudy:
    """`sizes` > 1: only the first so many grids of each study."""
    config, kept = config or StudyConfig(), slice(None, sizes or None)
    return TheoryStudy(
        tuple(converge(s, SIZES[s.d][kept], config) for s in SMOOTH.values()),
        tuple(borders(name, Piecewise(g=g), n[kept], config) for name, g, n in CASES),
        error_map(Piecewise(), MAP_CELLS, MAP_POINTS),
    )


def converge(system: System, sizes: Sequence[int], config: StudyConfig) -> Convergence:
    """One-step and H-step errors of a smooth system on [0, 1]^d over grids of growing N, next to their bounds."""
    x_Md, sequences = config.draws((0.0,) * system.d, (1.0,) * system.d, len(system.actions_AK))
    rows = []
    for n in sizes:
        model = OneHot.of(system.f, Grid.unit(system.d, n), system.actions_AK)
        one = _one_step(model, system.f, x_Md, system.lipschitz)
        rows.append(GridErrors(**_errors(model, system.f, x_Md, sequences, one, system.lipschitz)))
    slopes = [slope([r.cells for r in rows], [getattr(r, of) for r in rows]) for of in ("worst", "mean", "far_mean")]
    return Convergence(system.name, system.d, system.lipschitz, config.horizon, config.states, tuple(rows), *slopes)


def borders(name: str, world: Piecewise, sizes: Sequence[int], config: StudyConfig) -> PiecewiseBorders:
    """The same for Piecewise, whose step is 1-Lipschitz within a zone."""
    f, low, high = step_of(world), (LOW, LOW), (HIGH, HIGH)
    x_Md, sequences = config.draws(low, high, len(ACTIONS))
    rows = []
    for n in sizes:
        model = OneHot.of(f, Grid(low, high, n), ACTIONS)
        one = _one_step(model, f, x_Md, 1.0)
        cut = _zone(world, x_Md) != _zone(world, model.decode(model.encode(x_Md)))
        error = one.error_HM[1].reshape(len(ACTIONS), -1).max(0)  # the worst action of each state
        rows.append(
            BorderErrors(
                **_errors(model, f, x_Md, sequences, one, 1.0),
                n=n,
                cut=float(cut.mean()),
                worst_cut=float(error[cut].max()) if cut.any() else None,
                worst_whole=float(error[~cut].max()),
                parted=float(np.mean([_parted(model, world, x_Md, s) for s in sequences])),
                beyond=float((error > one.bound_H[1] * (1 + ROUNDING)).mean()),
                cut_cells=_cut_cells(Grid(low, high, n), world),
            )
        )
    whole = slope([r.cells for r in rows], [r.worst_whole for r in rows])
    return PiecewiseBorders(name, 2, 1.0, config.horizon, config.states, tuple(rows), whole, world.g, jump_of(world))


def error_map(world: Piecewise, n: int, points: int) -> PiecewiseMap:
    grid, f = Grid((LOW, LOW), (HIGH, HIGH), n), step_of(world)
    y, x = np.meshgrid(*[(np.arange(points) + 0.5) / points] * 2, indexing="ij")
    states = grid.low + np.stack((x, y), -1).reshape(-1, 2) * grid.side
    one = _one_step(OneHot.of(f, grid, ACTIONS), f, states, 1.0)
    worst = np.round(one.error_HM[1].reshape(-1, points, points).max(0), 2)
    error = tuple(map(tuple, worst.tolist()))
    return PiecewiseMap(n, grid.epsilon, grid.low, grid.high, error, world.g, 2 * grid.epsilon)


def _one_step(model: OneHot, f: Map, x_Md: Floats, lipschitz: float) -> Errors:
    """Every state under every action, after one step: errors (2, A·M), actions first."""
    each = [measure(model, f, x_Md, [a], lipschitz) for a in range(len(model.actions_AK))]
    return Errors(np.concatenate([e.error_HM for e in each], axis=1), each[0].bound_H)


def _errors(
    model: OneHot, f: Map, x_Md: Floats, sequences: NDArray[np.int64], one: Errors, lipschitz: float
) -> dict[str, Any]:
    """The fields of `GridErrors`."""
    far = [measure(model, f, x_Md, s, lipschitz) for s in sequences]
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


def _parted(model: OneHot, world: Piecewise, x_Md: Floats, actions_H: NDArray[np.int64]) -> float:
    """The share of states that, before some step, lie in another zone than their decoded codes."""
    cells, parted, f = model.rollout(model.encode(x_Md), actions_H), np.zeros(len(x_Md), dtype=np.bool_), step_of(world)
    for h, action in enumerate(actions_H):
        parted |= _zone(world, x_Md) != _zone(world, model.decode(cells[h]))
        x_Md = f(x_Md, model.actions_AK[action])
    return float(parted.mean())


def _cut_cells(grid: Grid, world: Piecewise) -> float:
    """The share of cells with a corner (drawn in by a millionth) in another zone than their center."""
    center = grid.decode(np.arange(grid.cells))
    half = grid.side / (2 * grid.n) * (1 - 1e-6)
    corners = [_zone(world, center + half * sign) for sign in ((-1, -1), (-1, 1), (1, -1), (1, 1))]
    return float((np.stack(corners) != _zone(world, center)).any(0).mean())


def step_of(world: Piecewise) -> Map:
    """The world's own step on arrays, in double precision."""
    return lambda x_Md, action: world.step(torch.from_numpy(x_Md), torch.from_numpy(action)).numpy()


def _zone(world: Piecewise, x_Md: Floats) -> NDArray[np.int64]:
    return world.zone(torch.from_numpy(np.ascontiguousarray(x_Md))).numpy()


def jump_of(world: Piecewise) -> float:
    at = [BORDER + (k + 0.5) * (FRAME - 2 * BORDER) / world.g for k in range(world.g)]
    push = world.bias(torch.tensor([(x, y) for y in at for x in at])).double()
    return float(torch.cdist(push, push).max())
