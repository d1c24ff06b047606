"""The one-hot linearization of a map (the paper's proposition).

    E(x) = e_{q(x)},  D(e_i) = c_i,  P(a) e_i = e_{q(f(c_i, a))},  so  z_{t+1} = P(a_t) z_t

q(x) is the cell of x and c_i the center of cell i. P(a) is a 0/1 matrix with exactly one 1 in every column, so it is
stored as the row numbers of these 1s: N integers an action, never N² numbers.

Legend: M states, N cells, A actions, K entries of an action, H steps, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from lpwm.core.errors import UserError
from lpwm.theory.quantize import Floats, Ints, Quantizer

Map = Callable[[Floats, Floats], Floats]  # states (M, d), one action (K,) -> states (M, d)
CHUNK = 1 << 17  # cells mapped at a time: what is needed besides the result does not grow with N


@dataclass(frozen=True, eq=False)
class OneHot:
    """A quantizer and, for each action, the cell to which every cell goes."""

    quantizer: Quantizer
    actions_AK: Floats
    next_AN: NDArray[np.int32]

    @classmethod
    def of(cls, f: Map, quantizer: Quantizer, actions_AK: ArrayLike) -> OneHot:
        """f maps states (M, d) and one action (K,) to states (M, d) of the same set."""
        actions = np.asarray(actions_AK, dtype=np.float64)
        if actions.ndim != 2 or not len(actions):
            raise UserError(f"actions come as an array (actions, entries), not of shape {actions.shape}.")
        N = quantizer.cells
        rows = np.empty((len(actions), N), dtype=np.int32)
        for start in range(0, N, CHUNK):
            centers = quantizer.decode(np.arange(start, min(start + CHUNK, N)))
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
        cell = self.encode(x_Md)
        return _ones(cell, self.cells)

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
        return _ones(self.next_AN[action], self.cells)

    def torch_matrix(self, action: int) -> torch.Tensor:
        """P(a) for torch: sparse COO, float32."""
        N = self.cells
        at = torch.stack((torch.from_numpy(self.next_AN[action].astype(np.int64)), torch.arange(N)))
        return torch.sparse_coo_tensor(at, torch.ones(N), size=(N, N), check_invariants=True)

    @property
    def bytes(self) -> int:
        """What the matrices take: 4 N A."""
        return self.next_AN.nbytes


def _ones(row_M: Ints, N: int) -> sparse.csc_array:
    """Column j has its 1 in row row_M[j]."""
    M = len(row_M)
    shape: Any = (N, M)
    return sparse.csc_array(
        (np.ones(M, dtype=np.float32), row_M.astype(np.int32), np.arange(M + 1, dtype=np.int32)), shape=shape
    )
