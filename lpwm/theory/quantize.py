"""ε-nets: finitely many centers such that every state is within ε of its own.

A Grid cuts a box into cells; a Cover picks centers among the points of a finite cloud.
Legend: M states, N cells, d dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from lpwm.core.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

MAX_CELLS = 2**31 - 1  # cells are numbered in 32 bits
SLACK = 1e-9  # of the box: what rounding may put a state outside


class Quantizer(Protocol):
    @property
    def cells(self) -> int:
        """N."""

    @property
    def epsilon(self) -> float:
        """No state is farther than this from the center of its cell."""

    def encode(self, x_Md: ArrayLike) -> Ints:
        """The number of each state's cell, (M,). One sentence for a state outside."""

    def decode(self, cell_M: ArrayLike) -> Floats:
        """Centers, (M, d)."""


@dataclass(frozen=True)
class Grid:
    """n cells a side of the box [low, high]: N = n^d, ε = ‖high − low‖/(2n), so √d/(2n) on [0, 1]^d.

    Nothing of size N is stored: a cell's number says where it is.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    n: int

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise UserError("a box has as many lower as upper bounds, at least one of each.")
        if not all(math.isfinite(b - a) and a < b for a, b in zip(self.low, self.high, strict=True)):
            raise UserError(
                f"the box from {list(self.low)} to {list(self.high)} is empty: every low must be below its high."
            )
        if self.n < 1 or self.n ** len(self.low) > MAX_CELLS:
            raise UserError(
                f"a grid of {self.n} cells a side in {len(self.low)} dimensions cannot be numbered: use 1 to "
                f"{int(MAX_CELLS ** (1 / len(self.low)))}."
            )

    @classmethod
    def unit(cls, d: int, n: int) -> Grid:
        return cls((0.0,) * d, (1.0,) * d, n)

    @property
    def d(self) -> int:
        return len(self.low)

    @property
    def cells(self) -> int:
        return self.n**self.d

    @property
    def side(self) -> Floats:
        """Of the box, (d,)."""
        return np.subtract(self.high, self.low)

    @property
    def epsilon(self) -> float:
        """Half the diagonal of a cell."""
        return float(np.linalg.norm(self.side)) / (2 * self.n)

    def encode(self, x_Md: ArrayLike) -> Ints:
        x = _states(x_Md, self.d)
        share = (x - self.low) / self.side
        inside = (share >= -SLACK) & (share <= 1 + SLACK)  # NaN is outside too
        if not inside.all():
            worst = x[np.flatnonzero(~inside.all(1))[0]]
            raise UserError(
                f"the state {np.round(worst, 6).tolist()} is outside the box from {list(self.low)} to "
                f"{list(self.high)}: the map must stay inside, so widen the box or clamp the map."
            )
        index_Md = np.clip((share * self.n).astype(np.int64), 0, self.n - 1)
        return index_Md @ self.n ** np.arange(self.d - 1, -1, -1)

    def decode(self, cell_M: ArrayLike) -> Floats:
        cell = np.asarray(cell_M, dtype=np.int64)
        index_Md = np.stack(np.unravel_index(cell, (self.n,) * self.d), axis=-1)
        return self.low + (index_Md + 0.5) * (self.side / self.n)


@dataclass(frozen=True, eq=False)
class Cover:
    """Centers of a finite cloud, chosen greedily: the first point that no center reaches becomes one.

    Every point of the cloud is within `radius` of a center, and no two centers are. A state is encoded as its
    nearest center, so `epsilon`, the largest distance found, may be below `radius`. States off the cloud are
    refused when they are farther than `radius` from every center: the cloud must be closed under the map.
    """

    points_Md: Floats
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "points_Md", _states(self.points_Md, None))
        if not len(self.points_Md) or not np.isfinite(self.points_Md).all():
            raise UserError("a cover needs at least one point, and all of them finite.")
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise UserError(f"a cover's radius must be above 0, not {self.radius}.")

    @cached_property
    def centers_Nd(self) -> Floats:
        return self.points_Md[_greedy(self.points_Md, self.radius)]

    @cached_property
    def epsilon(self) -> float:
        return float(self._tree.query(self.points_Md)[0].max())

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.centers_Nd)

    @property
    def d(self) -> int:
        return int(self.points_Md.shape[1])

    @property
    def cells(self) -> int:
        return len(self.centers_Nd)

    def encode(self, x_Md: ArrayLike) -> Ints:
        x = _states(x_Md, self.d)
        distance, cell = self._tree.query(x)
        far = ~(distance <= self.radius * (1 + SLACK))
        if far.any():
            worst = x[np.flatnonzero(far)[0]]
            raise UserError(
                f"the state {np.round(worst, 6).tolist()} is farther than {self.radius:g} from every center: the "
                "cloud is not closed under the map, so add the states it leads to."
            )
        return np.asarray(cell, dtype=np.int64)

    def decode(self, cell_M: ArrayLike) -> Floats:
        return self.centers_Nd[np.asarray(cell_M, dtype=np.int64)]


def _greedy(x_Md: Floats, radius: float) -> NDArray[np.int64]:
    """Indices of the centers, in the order of the cloud."""
    tree, open_M, chosen = cKDTree(x_Md), np.ones(len(x_Md), dtype=np.bool_), []
    for i in range(len(x_Md)):
        if open_M[i]:
            chosen.append(i)
            open_M[tree.query_ball_point(x_Md[i], radius)] = False
            open_M[i] = False
    return np.array(chosen, dtype=np.int64)


def _states(x: ArrayLike, d: int | None) -> Floats:
    x_Md = np.asarray(x, dtype=np.float64)
    if x_Md.ndim != 2 or (d is not None and x_Md.shape[1] != d):
        want = "(states, dimensions)" if d is None else f"(states, {d})"
        raise UserError(f"states come as an array {want}, not of shape {x_Md.shape}.")
    return x_Md
