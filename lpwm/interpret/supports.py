"""Which units are on: codes of held-out trajectories, their supports and Jaccard index, and both on a grid of agent
positions (the method's §7).

Legend: N frames, T frames of one trajectory, n cells a side, D latent width.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.data import EpisodeData, splits
from lpwm.data.clips import resize
from lpwm.interpret.results import Bools, Floats, Ints
from lpwm.train import Loaded
from lpwm.train.monitors import evaluating
from lpwm.worlds.base import Renderer
from lpwm.worlds.piecewise import BORDER, FRAME, Piecewise

MAX_RESOLUTION = 64  # 1.7·10⁷ pairs of cells, 0.13 GB in float64
BATCH = 256  # frames rendered and encoded at a time


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
    a, b, w = (x.astype(np.float32) for x in (a_ND, b_MD, weight_D))
    both = (a * w) @ b.T
    either = (a @ w)[:, None] + (b @ w)[None, :] - both
    # float64 only for the ratio: a page that divides the same two counts gets the same number.
    return np.where(either > 0, both.astype(np.float64) / np.where(either > 0, either, 1), 1.0)


def jaccard_map(active_nnD: Bools, row: int, col: int) -> Floats:
    """Every cell against one reference cell: (n, n)."""
    check_cell(row, col, len(active_nnD))
    n, _, D = active_nnD.shape
    return jaccard(active_nnD[row, col][None], active_nnD.reshape(-1, D)).reshape(n, n)


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


def encode(loaded: Loaded, render: Renderer, states_NS: torch.Tensor) -> NDArray[np.float32]:
    """The codes of these states, or of what else `render` draws, as the model sees them: (N, D)."""
    device = next(loaded.model.parameters()).device
    if getattr(loaded.model, "proprio_dim", 0):
        raise UserError(f"{loaded.path} was trained with proprioception, which is not fed here yet.")
    with torch.no_grad(), evaluating(loaded.model):
        parts = [loaded.model.encode(render(s.to(device))).float().cpu() for s in states_NS.split(BATCH)]
    return torch.cat(parts).numpy()


def encode_states(loaded: Loaded, world: Piecewise, states_NS: torch.Tensor) -> NDArray[np.float32]:
    return encode(loaded, world.renderer(loaded.image, next(loaded.model.parameters()).device), states_NS)


def cells(world: Piecewise, resolution: int) -> tuple[Floats, torch.Tensor, Ints]:
    """n cells a side of [14, 210), the span of the zones: their centers 14 + (i + ½)·196/n, the same along x and y,
    the states (n², 2) of an agent there, row by row from the top left (y grows downwards), and their zones (n, n)."""
    at = BORDER + (np.arange(resolution, dtype=np.float64) + 0.5) * ((FRAME - 2 * BORDER) / resolution)
    y, x = np.meshgrid(at, at, indexing="ij")
    states = torch.from_numpy(np.stack((x, y), -1).reshape(-1, 2).astype(np.float32))
    return at, states, world.zone(states).numpy().reshape(resolution, resolution)


@dataclass(frozen=True, eq=False)
class Episode:
    """One held-out trajectory: T frames one action block apart, and every raw state between them. states_LS has L = (T
    − 1)·frameskip + 1 rows; frame t is row t·frameskip."""

    number: int
    z_TD: NDArray[np.float32]
    states_LS: NDArray[np.float32]
    frameskip: int

    def active_TD(self) -> Bools:
        return support(self.z_TD)


def need_support(loaded: Loaded) -> None:
    """One sentence where a dense code has no support."""
    if not loaded.config.model.sparse:
        raise UserError(
            f"{loaded.path} is dense (link {loaded.config.model.link}), so it has no support: give runs with link relu "
            "or reprelu."
        )


def held_out(loaded: Loaded, data: EpisodeData, split: str = "held-out") -> Ints:
    return splits(data, loaded.holdout)[int(split == "held-out")].numpy()


def drawn(
    loaded: Loaded, data: EpisodeData, frames: int, seed: int, least: int = 1, split: str = "held-out"
) -> list[tuple[int, int]]:
    """Whole trajectories until there are `frames` frames, leaving out those of fewer than `least`. Each with its number
    of frames, in an order drawn by key."""
    out: list[tuple[int, int]] = []
    total = 0
    for e in np.random.default_rng(rng.seed_of("held-out frames", seed)).permutation(held_out(loaded, data, split)):
        T = (int(data.lengths[e]) - 1) // loaded.frameskip + 1
        if least > T:
            continue
        if out and total + T > frames:
            break
        out.append((int(e), T))
        total += T
    if not out:
        raise UserError(
            f"no {split} trajectory of {loaded.path} has {least} frames {loaded.frameskip} steps apart: use longer "
            "episodes or a smaller frameskip."
        )
    return out


def held_out_episodes(
    loaded: Loaded, data: EpisodeData, frames: int, seed: int = 0, least: int = 2, split: str = "held-out"
) -> list[Episode]:
    """The trajectories of `drawn`, encoded: from recorded frames where there are some, else drawn anew."""
    if data.pixels is None and loaded.world is None:
        raise UserError(f"{loaded.path} has neither recorded frames nor a world to draw them.")
    device, skip, out = next(loaded.model.parameters()).device, loaded.frameskip, []
    # Built once: a simulator's renderer is slow to open.
    render = loaded.world.renderer(loaded.image, device) if data.pixels is None and loaded.world is not None else None
    for number, T in drawn(loaded, data, frames, seed, least, split):
        start, span = int(data.offsets[number]), (T - 1) * skip + 1
        states = data.states[start : start + span]
        if render is None:
            z = encode(loaded, lambda rows: _recorded(loaded, data, rows), torch.arange(start, start + span, skip))
        else:
            z = encode(loaded, render, states[::skip])
        out.append(Episode(number, z, states.numpy(), skip))
    return out


def _recorded(loaded: Loaded, data: EpisodeData, rows: torch.Tensor) -> torch.Tensor:
    """These frames as they were stored, at the size that the model reads: (n, 3, h, w) uint8."""
    assert data.pixels is not None
    low, high = int(rows[0]), int(rows[-1]) + 1
    stored = np.ascontiguousarray(data.pixels[slice(low, high)][(rows.cpu() - low).numpy()])
    frames = torch.from_numpy(stored).to(rows.device).permute(0, 3, 1, 2)
    return resize(frames, (loaded.image, loaded.image))
