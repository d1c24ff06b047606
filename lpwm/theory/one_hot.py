"""The one-hot linearization of a map (the paper's proposition).

    E(x) = e_{q(x)},  D(e_i) = c_i,  P(a) e_i = e_{q(f(c_i, a))},  so  z_{t+1} = P(a_t) z_t

q(x) is the cell of x and c_i the center of cell i. P(a) is a 0/1 matrix with exactly one 1 in every column, so it is
stored as the row numbers of these 1s: N integers an action, never N² numbers.

Legend: M states, N cells, A actions, K entries of an action, H steps, d dimensions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from lpwm.core.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Map = Callable[[Floats, Floats], Floats]  # states (M, d), one action (K,) -> states (M, d)

CHUNK = 1 << 17  # cells mapped at a time: what is needed besides the result does not grow with N
MAX_CELLS = 2**31 - 1  # cells are numbered in 32 bits
SLACK = 1e-9  # of the box: what rounding may put a state outside


@dataclass(frozen=True)
class Grid:
    """n cells a side of the box [low, high]: N = n^d, ε = ‖high − low‖/(2n), so √d/(2n) on [0, 1]^d. Nothing of size N
    is stored: a cell's number says where it is."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    n: int

    def __post_init__(self) -> None:
        box = f"the box from {list(self.low)} to {list(self.high)}"
        if not self.low or len(self.low) != len(self.high):
            raise UserError(f"{box} must have as many lower as upper bounds, at least one of each.")
        if not all(math.isfinite(b - a) and a < b for a, b in zip(self.low, self.high, strict=True)):
            raise UserError(f"{box} is empty: every low must be below its high.")
        if not 1 <= self.cells <= MAX_CELLS:
            most = int(MAX_CELLS ** (1 / self.d))
            raise UserError(f"{self.n} cells a side in {self.d} dimensions cannot be numbered: use 1 to {most}.")

    @classmethod
    def unit(cls, d: int, n: int) -> "Grid":
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
        """The number of each state's cell, (M,)."""
        x = np.asarray(x_Md, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.d:
            raise UserError(f"states come as an array (states, {self.d}), not of shape {x.shape}.")
        share = (x - self.low) / self.side
        inside = (share >= -SLACK) & (share <= 1 + SLACK)  # NaN is outside too
        if not inside.all():
            state = np.round(x[~inside.all(1)][0], 6).tolist()
            box = f"the box from {list(self.low)} to {list(self.high)}"
            raise UserError(f"the state {state} is outside {box}: widen it or clamp the map, which must stay inside.")
        index_Md = np.clip((share * self.n).astype(np.int64), 0, self.n - 1)
        return index_Md @ self.n ** np.arange(self.d - 1, -1, -1)

    def decode(self, cell_M: ArrayLike) -> Floats:
        index_Md = np.stack(np.unravel_index(np.asarray(cell_M), (self.n,) * self.d), axis=-1)
        return self.low + (index_Md + 0.5) * (self.side / self.n)


@dataclass(frozen=True, eq=False)
class OneHot:
    """A quantizer and, for each action, the cell to which every cell goes."""

    quantizer: Grid  # or whatever has its cells, epsilon, encode and decode
    actions_AK: Floats
    next_AN: NDArray[np.int32]

    @classmethod
    def of(cls, f: Map, quantizer: Grid, actions_AK: ArrayLike) -> "OneHot":
        """f maps states (M, d) and one action (K,) to states (M, d) of the same set."""
        actions = np.asarray(actions_AK, dtype=np.float64)
        if actions.ndim != 2 or not len(actions):
            raise UserError(f"actions come as an array (actions, entries), not of shape {actions.shape}.")
        rows = np.empty((len(actions), quantizer.cells), dtype=np.int32)
        for start in range(0, quantizer.cells, CHUNK):
            centers = quantizer.decode(np.arange(start, min(start + CHUNK, quantizer.cells)))
            for a, action in enumerate(actions):
                rows[a, start : start + CHUNK] = quantizer.encode(f(centers, action))
        return cls(quantizer, actions, rows)

    @property
    def cells(self) -> int:
        return self.quantizer.cells

    def encode(self, x_Md: ArrayLike) -> Ints:
        """q(x): the place of the 1 in each state's code, (M,)."""
        return self.quantizer.encode(x_Md)

    def codes(self, x_Md: ArrayLike) -> sparse.csc_array:
        """The codes themselves, one column a state: (N, M)."""
        return self._ones(self.encode(x_Md))

    def decode(self, cell_M: ArrayLike) -> Floats:
        return self.quantizer.decode(cell_M)

    def step(self, cell_M: ArrayLike, action: int) -> Ints:
        """P(a) z by looking up the one 1 of a column."""
        return self.next_AN[action][np.asarray(cell_M, dtype=np.int64)]

    def rollout(self, cell_M: ArrayLike, actions_H: ArrayLike) -> Ints:
        """Cells after 0, 1, … H steps: (H + 1, M)."""
        out: list[Ints] = [np.asarray(cell_M, dtype=np.int64)]
        for action in np.asarray(actions_H, dtype=np.int64):
            out.append(self.step(out[-1], int(action)))
        return np.stack(out)

    def matrix(self, action: int) -> sparse.csc_array:
        """P(a) for SciPy, (N, N)."""
        return self._ones(self.next_AN[action])

    @property
    def bytes(self) -> int:
        """What the matrices take: 4 N A."""
        return self.next_AN.nbytes

    def _ones(self, row_M: Ints) -> sparse.csc_array:
        """(N, M): column j has its 1 in row row_M[j]."""
        M = len(row_M)
        shape: Any = (self.cells, M)
        entries = (np.ones(M, dtype=np.float32), row_M.astype(np.int32), np.arange(M + 1, dtype=np.int32))
        return sparse.csc_array(entries, shape=shape)
