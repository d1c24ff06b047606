"""Which units are on: supports, their Jaccard index, and both on a grid of agent positions (the method's §7).

Legend: N frames, T frames of one trajectory, n cells a side, M = n² cells, D latent width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.interpret.results import Bools, Floats, Ints
from lpwm.train import Loaded
from lpwm.train.monitors import evaluating
from lpwm.worlds.piecewise import BORDER, FRAME, Piecewise

MAX_RESOLUTION = 64  # 1.7·10⁷ pairs of cells, 0.13 GB in float64


def support(z: Any, sparse: bool = True) -> Bools:
    """1[z > 0], of any shape. `sparse=False` allows negative entries: the sign pattern, a dense code's control."""
    z = np.asarray(z)
    if not np.isfinite(z).all():
        raise UserError("the codes are not finite: the run has diverged, so there is nothing to inspect in it.")
    if sparse and (z < 0).any():
        raise UserError(
            "a support belongs to a non-negative code, and this one has negative entries: it is dense; use its sign "
            "pattern, with sparse=False."
        )
    return z > 0


def jaccard(a_ND: Any, b_MD: Any) -> Floats:
    """J(a, b) = |a ∧ b| / |a ∨ b| for every pair of rows, and J(∅, ∅) = 1: (N, M)."""
    a, b = _bools(a_ND), _bools(b_MD)
    if a.shape[1] != b.shape[1]:
        raise UserError(f"supports of {a.shape[1]} and of {b.shape[1]} units cannot overlap: compare one model's.")
    return weighted_jaccard(a, b, np.ones(a.shape[1])).astype(np.float64)


def weighted_jaccard(a_ND: Bools, b_MD: Bools, weight_D: NDArray[Any]) -> NDArray[Any]:
    """Jaccard where unit d counts `weight_D[d]` times. Whole weights below 2²⁴ are exact in float32."""
    a, b = a_ND.astype(np.float32), b_MD.astype(np.float32)
    w = weight_D.astype(np.float32)
    both = (a * w) @ b.T
    either = (a @ w)[:, None] + (b @ w)[None, :] - both
    # float64 only for the ratio: a page that divides the same two counts gets the same number.
    return np.where(either > 0, both.astype(np.float64) / np.where(either > 0, either, 1), 1.0)


def instability(active_TD: Any) -> Floats:
    """1 − J(s_t, s_{t+1}) along one trajectory: (T − 1,)."""
    s = _bools(active_TD)
    both = (s[:-1] & s[1:]).sum(-1)
    either = (s[:-1] | s[1:]).sum(-1)
    return np.where(either > 0, 1 - both / np.maximum(either, 1), 0.0)


def _bools(rows: Any) -> Bools:
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.dtype != np.bool_:
        raise UserError("supports are boolean arrays (frames, units): threshold the codes with support(z).")
    return rows


@dataclass(frozen=True, eq=False)
class Grid:
    """Codes on a grid of agent positions. Row 0 is the top (y grows downwards), column 0 the left."""

    x_n: Floats  # cell centers, in pixels of the world's frame
    y_n: Floats
    zones_nn: Ints
    z_nnD: NDArray[np.float32]
    sparse: bool  # else `active` is the sign pattern

    @property
    def resolution(self) -> int:
        return len(self.x_n)

    @cached_property
    def active_nnD(self) -> Bools:
        return support(self.z_nnD, self.sparse)

    @property
    def active_MD(self) -> Bools:
        return self.active_nnD.reshape(-1, self.active_nnD.shape[-1])

    @property
    def zones_M(self) -> Ints:
        return self.zones_nn.reshape(-1)

    @cached_property
    def jaccard_MM(self) -> Floats:
        """Every cell against every cell, row-major: 1 on the diagonal."""
        return jaccard(self.active_MD, self.active_MD)

    def map(self, row: int, col: int) -> Floats:
        """The Jaccard map against one reference cell: (n, n)."""
        check_cell(row, col, self.resolution)
        n = self.resolution
        return jaccard(self.active_nnD[row, col][None], self.active_MD)[0].reshape(n, n)


def check_cell(row: int, col: int, resolution: int) -> None:
    if not (0 <= row < resolution and 0 <= col < resolution):
        raise UserError(
            f"there is no cell {row} {col}: rows and columns of this grid go from 0 to {resolution - 1}, from the "
            "top left."
        )


def check_resolution(resolution: int, zones_per_side: int) -> None:
    if not 2 * zones_per_side <= resolution <= MAX_RESOLUTION:
        raise UserError(
            f"a grid of {resolution} cells a side is too coarse or too fine: use {2 * zones_per_side} (two a zone) to "
            f"{MAX_RESOLUTION}."
        )


def piecewise_of(loaded: Loaded, visible: bool | None = None) -> Piecewise:
    """The run's world with its zones shown or hidden; one sentence where there are no zones."""
    world = loaded.world
    if not isinstance(world, Piecewise):
        raise UserError(
            f"{loaded.path} was trained in {loaded.spec.name}, which has no zones: lpwm interpret inspects runs "
            "of piecewise; --what sparsity takes any sparse run."
        )
    if world.g < 2:
        raise UserError(f"{loaded.path} was trained with a single zone: there is nothing to tell apart.")
    return world if visible is None else replace(world, visible=visible)


def encode_states(loaded: Loaded, world: Piecewise, states_NS: torch.Tensor, batch: int = 256) -> NDArray[np.float32]:
    """The codes of these states as the model sees them drawn: (N, D) float32."""
    device = next(loaded.model.parameters()).device
    render = world.renderer(loaded.image, device)
    parts = []
    with torch.no_grad(), evaluating(loaded.model):
        for states in states_NS.split(batch):
            parts.append(loaded.model.encode(render(states.to(device))).float().cpu())
    return torch.cat(parts).numpy()


def cell_centers(resolution: int) -> Floats:
    """n cells of [14, 210), the span of the zones: 14 + (i + ½)·196/n, the same along x and y."""
    return BORDER + (np.arange(resolution, dtype=np.float64) + 0.5) * ((FRAME - 2 * BORDER) / resolution)


def cell_zones(world: Piecewise, resolution: int) -> Ints:
    """The zone of every cell's center: (n, n)."""
    return world.zone(_cell_states(resolution)).numpy().reshape(resolution, resolution)


def _cell_states(resolution: int) -> torch.Tensor:
    at = cell_centers(resolution)
    y, x = np.meshgrid(at, at, indexing="ij")
    return torch.from_numpy(np.stack((x, y), -1).reshape(-1, 2).astype(np.float32))


def grid(loaded: Loaded, resolution: int = 20, visible: bool | None = None) -> Grid:
    """The run's codes at the centers of n×n cells; zones drawn as in the run's own world by default."""
    world = piecewise_of(loaded, visible)
    check_resolution(resolution, world.g)
    z = encode_states(loaded, world, _cell_states(resolution))
    at = cell_centers(resolution)
    return Grid(
        x_n=at,
        y_n=at,
        zones_nn=cell_zones(world, resolution),
        z_nnD=z.reshape(resolution, resolution, -1),
        sparse=loaded.config.model.sparse,
    )
