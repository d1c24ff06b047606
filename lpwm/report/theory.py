"""The proposition on smooth systems and on the true Piecewise dynamics, as one result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core.json import fields_json, from_json
from lpwm.core.version import __version__
from lpwm.theory import SMOOTH, Grid
from lpwm.theory.study import SIZES, Borders, Convergence, ErrorMap, StudyConfig, borders, converge, error_map
from lpwm.worlds.piecewise import BORDER, FRAME, RADIUS, Piecewise

KIND = "lpwm theory"
# Where the dot can be after its first step. The border between two zones a side, 112, is its very middle, so an even
# number of cells puts an edge there and an odd number a row of centers.
LOW, HIGH = float(BORDER + RADIUS), float(FRAME - BORDER - RADIUS)
COMPASS = [(np.cos(a), np.sin(a)) for a in np.arange(8) * np.pi / 4]
ACTIONS = np.array([(0.0, 0.0), *COMPASS])
ODD, EVEN = (9, 17, 33, 65, 129, 257, 513), (8, 16, 32, 64, 128, 256, 512)
CASES: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("2×2 zones, odd grids", 2, ODD),
    ("2×2 zones, even grids", 2, EVEN),
    ("3×3 zones", 3, EVEN),
)
MAP_CELLS, MAP_POINTS = 33, 165  # five points a cell and side


@dataclass(frozen=True)
class PiecewiseBorders(Borders):
    g: int  # zones a side
    jump: float  # the largest difference between the pushes of two zones


@dataclass(frozen=True)
class PiecewiseMap(ErrorMap):
    g: int
    bound: float


@dataclass(frozen=True)
class TheoryStudy:
    """Everything `lpwm theory` writes."""

    systems: tuple[Convergence, ...]
    piecewise: tuple[PiecewiseBorders, ...]
    map: PiecewiseMap
    lpwm: str = __version__
    version: int = 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, **fields_json(self)}

    @classmethod
    def from_json(cls, record: Any, where: str = KIND) -> TheoryStudy:
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

        smooth = [
            [
                s.name,
                f"{s.d * s.slope_worst:+.3f}",
                f"{s.d * s.slope_mean:+.3f}",
                "hold" if s.holds else "BROKEN",
                f"{s.rows[-1].cells:,}",
                f"{s.rows[-1].worst:.5f} / {s.rows[-1].bound:.5f}",
            ]
            for s in self.systems
        ]
        jumps = [
            [
                p.name,
                str(r.n),
                f"{100 * r.cut_cells:.2f} %",
                f"{100 * r.cut:.2f} %",
                f"{100 * r.parted:.2f} %",
                f"{r.worst_whole:.3f}",
                "–" if r.worst_cut is None else f"{r.worst_cut:.3f}",
            ]
            for p in self.piecewise
            for r in (p.rows[0], p.rows[-1])
        ]
        heads = ["system", "slope × d, worst", "mean", "bounds", "largest N", "worst error / bound"]
        of_jumps = ["Piecewise", "n", "cells cut", "states cut", "within H steps", "worst error, whole (px)", "cut"]
        return [columns(heads, smooth), columns(of_jumps, jumps)]


def theory(sizes: int = 0, config: StudyConfig | None = None) -> TheoryStudy:
    """`sizes` > 1: only the first so many grids of each study."""
    config = config or StudyConfig()
    kept = slice(None, sizes or None)
    jumps = []
    for name, g, n in CASES:
        world = Piecewise(g=g)
        low, high = (LOW, LOW), (HIGH, HIGH)
        one = borders(name, step_of(world), zone_of(world), low, high, ACTIONS, n[kept], config=config)
        jumps.append(PiecewiseBorders(**vars(one), g=g, jump=jump_of(world)))
    world, grid = Piecewise(), Grid((LOW, LOW), (HIGH, HIGH), MAP_CELLS)
    drawn = error_map(step_of(world), grid, ACTIONS, MAP_POINTS)
    return TheoryStudy(
        systems=tuple(converge(s, SIZES[s.d][kept], config) for s in SMOOTH.values()),
        piecewise=tuple(jumps),
        map=PiecewiseMap(**vars(drawn), g=world.g, bound=2 * grid.epsilon),
    )


def step_of(world: Piecewise) -> Any:
    """The world's own step on arrays, in double precision."""

    def f(x_Md: NDArray[np.float64], action: NDArray[np.float64]) -> NDArray[np.float64]:
        return world.step(torch.from_numpy(x_Md), torch.from_numpy(action)).numpy()

    return f


def zone_of(world: Piecewise) -> Any:
    return lambda x_Md: world.zone(torch.from_numpy(np.ascontiguousarray(x_Md))).numpy()


def jump_of(world: Piecewise) -> float:
    side = (FRAME - 2 * BORDER) / world.g
    at = [BORDER + (k + 0.5) * side for k in range(world.g)]
    push = world.bias(torch.tensor([(x, y) for y in at for x in at])).double()
    return float(torch.cdist(push, push).max())
