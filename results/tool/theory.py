"""The proposition on smooth systems and on the true Piecewise dynamics: `python -m results.tool theory`.

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

from lpwm.core.json import fields_json, from_json
from lpwm.core.version import __version__
from lpwm.interpret.compare import columns
from lpwm.theory import Grid, Map, OneHot, slope
from lpwm.theory.bounds import ROUNDING
from lpwm.theory.study import (
    HEADS,
    SIZES,
    Convergence,
    GridErrors,
    OfSystem,
    StudyConfig,
    grid_errors,
    one_step,
    smooth,
)
from lpwm.worlds.piecewise import BORDER, FRAME, RADIUS, Piecewise

KIND = "lpwm theory"
Floats = NDArray[np.float64]

# Where the dot can be after its first step. The border between two zones a side, 112, is its very middle, so an even
# number of cells puts an edge there and an odd number a row of centers.
LOW, HIGH = float(BORDER + RADIUS), float(FRAME - BORDER - RADIUS)
ACTIONS = np.array([(0.0, 0.0), *((np.cos(a), np.sin(a)) for a in np.arange(8) * np.pi / 4)])
ODD, EVEN = (9, 17, 33, 65, 129, 257, 513), SIZES[2]
CASES = (("2×2 zones, odd grids", 2, ODD), ("2×2 zones, even grids", 2, EVEN), ("3×3 zones", 3, EVEN))
MAP_CELLS, MAP_POINTS = 33, 165  # five points a cell and side


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
    """Everything that `python -m results.tool theory` writes."""

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

    @property
    def problems(self) -> list[str]:
        """What does not come out as the proposition says, in sentences."""
        return [sentence for system in self.systems for sentence in system.problems()]

    def tables(self) -> list[str]:
        """Two tables of text."""
        jumps = []
        for p in self.piecewise:
            for r in (p.rows[0], p.rows[-1]):
                shares = [f"{100 * share:.2f} %" for share in (r.cut_cells, r.cut, r.parted)]
                cut = "–" if r.worst_cut is None else f"{r.worst_cut:.3f}"
                jumps.append([p.name, str(r.n), *shares, f"{r.worst_whole:.3f}", cut])
        of_jumps = ["Piecewise", "n", "cells cut", "states cut", "within H steps", "worst error, whole (px)", "cut"]
        return [columns(HEADS, [s.cells_of_table() for s in self.systems]), columns(of_jumps, jumps)]


def theory(sizes: int = 0, config: StudyConfig | None = None) -> TheoryStudy:
    """`sizes` > 1: only the first so many grids of each study."""
    config, kept = config or StudyConfig(), slice(None, sizes or None)
    return TheoryStudy(
        smooth(sizes, config).systems,
        tuple(borders(name, Piecewise(g=g), n[kept], config) for name, g, n in CASES),
        error_map(Piecewise(), MAP_CELLS, MAP_POINTS),
    )


def borders(name: str, world: Piecewise, sizes: Sequence[int], config: StudyConfig) -> PiecewiseBorders:
    """The same for Piecewise, whose step is 1-Lipschitz within a zone."""
    f, low, high = step_of(world), (LOW, LOW), (HIGH, HIGH)
    x_Md, sequences = config.draws(low, high, len(ACTIONS))
    rows = []
    for n in sizes:
        model = OneHot.of(f, Grid(low, high, n), ACTIONS)
        one = one_step(model, f, x_Md, 1.0)
        cut = _zone(world, x_Md) != _zone(world, model.decode(model.encode(x_Md)))
        error = one.error_HM[1].reshape(len(ACTIONS), -1).max(0)  # the worst action of each state
        rows.append(
            BorderErrors(
                **vars(grid_errors(model, f, x_Md, sequences, one, 1.0)),
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
    one = one_step(OneHot.of(f, grid, ACTIONS), f, states, 1.0)
    worst = np.round(one.error_HM[1].reshape(-1, points, points).max(0), 2)
    error = tuple(map(tuple, worst.tolist()))
    return PiecewiseMap(n, grid.epsilon, grid.low, grid.high, error, world.g, 2 * grid.epsilon)


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
