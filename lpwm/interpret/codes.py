"""The codes of held-out trajectories, in any world: what sparsity and contact are measured on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.data import EpisodeData, splits
from lpwm.data.clips import resize
from lpwm.interpret.results import Bools, Ints
from lpwm.interpret.supports import support
from lpwm.train import Loaded
from lpwm.train.monitors import evaluating
from lpwm.worlds.base import Renderer

BATCH = 256  # frames rendered and encoded at a time


@dataclass(frozen=True, eq=False)
class Episode:
    """One held-out trajectory: T frames one action block apart, and every raw state between them.

    states_LS has L = (T − 1)·frameskip + 1 rows; frame t is row t·frameskip.
    """

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


def held_out(loaded: Loaded, data: EpisodeData) -> Ints:
    return splits(data, loaded.holdout)[1].numpy()


def held_out_episodes(loaded: Loaded, data: EpisodeData, frames: int, seed: int = 0, least: int = 2) -> list[Episode]:
    """The held-out trajectories of `drawn`, encoded."""
    render = _renderer(loaded, data)
    return [_episode(loaded, data, e, T, render) for e, T in drawn(loaded, data, frames, seed, least)]


def drawn(loaded: Loaded, data: EpisodeData, frames: int, seed: int, least: int = 1) -> list[tuple[int, int]]:
    """Whole held-out trajectories until there are `frames` frames, leaving out those of fewer than `least`.

    Each with its number of frames, in an order drawn by key.
    """
    out: list[tuple[int, int]] = []
    total = 0
    for e in np.random.default_rng(rng.seed_of("held-out frames", seed)).permutation(held_out(loaded, data)):
        T = (int(data.lengths[e]) - 1) // loaded.frameskip + 1
        if least > T:
            continue
        if out and total + T > frames:
            break
        out.append((int(e), T))
        total += T
    if not out:
        raise UserError(
            f"no held-out trajectory of {loaded.path} has {least} frames {loaded.frameskip} steps apart: use longer "
            "episodes or a smaller frameskip."
        )
    return out


def _renderer(loaded: Loaded, data: EpisodeData) -> Renderer | None:
    """None where frames were recorded. Built once: a simulator's renderer is slow to open."""
    if data.pixels is not None:
        return None
    if loaded.world is None:
        raise UserError(f"{loaded.path} has neither recorded frames nor a world to draw them.")
    return loaded.world.renderer(loaded.image, next(loaded.model.parameters()).device)


def _episode(loaded: Loaded, data: EpisodeData, number: int, T: int, render: Renderer | None) -> Episode:
    start, span = int(data.offsets[number]), (T - 1) * loaded.frameskip + 1
    states = data.states[start : start + span]
    rows = torch.arange(0, span, loaded.frameskip)
    device = next(loaded.model.parameters()).device
    parts = []
    with torch.no_grad(), evaluating(loaded.model):
        for at in rows.split(BATCH):
            if render is None:
                frames = _recorded(data, start + at).to(device).permute(0, 3, 1, 2)
                frames = resize(frames, (loaded.image, loaded.image))
            else:
                frames = render(states[at].to(device))
            parts.append(loaded.model.encode(frames).float().cpu())
    return Episode(number, torch.cat(parts).numpy(), states.numpy(), loaded.frameskip)


def _recorded(data: EpisodeData, rows: torch.Tensor) -> torch.Tensor:
    """These frames as they were stored, (n, h, w, 3) uint8."""
    assert data.pixels is not None
    low, high = int(rows[0]), int(rows[-1]) + 1
    return torch.from_numpy(np.ascontiguousarray(data.pixels[slice(low, high)][(rows - low).numpy()]))
