"""Adding frames to a data set of states, and taking them away again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch

from lpwm import worlds
from lpwm.data.episodes import EpisodeData
from lpwm.data.reader import opened, read
from lpwm.data.store import MADE, writing
from lpwm.errors import UserError
from lpwm.worlds.base import World

_FRAMES = 2048  # about this many frames in memory at a time
_OURS = ("digest", "column_digests", "world", "lpwm_version")  # attributes the writer makes itself


def world_of(data: EpisodeData) -> World:
    """The world that made a data set, built again from the spec it carries."""
    if data.spec is None:
        raise UserError("the data do not say which world made them: give the world.")
    return worlds.make(data.spec.name, **data.spec.options)


def convert(
    source: str | Path,
    out: str | Path,
    *,
    add_pixels: bool,
    size: int | None = None,
    world: World | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> str:
    """Copy `source` to `out` with frames rendered from the states, or without any. Returns the digest.

    All other columns of numbers are kept. The result appears under its name when it is complete.
    """
    source, out = Path(source), Path(out)
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"{out} is the file to convert: write to another name.")
    data = read(source)
    if add_pixels:
        if data.pixels is not None:
            raise UserError(f"{source} has pixels already: nothing to add.")
        world = world or world_of(data)
        size = world.spec.frame if size is None else size
        if size < 8:
            raise UserError(f"size is {size}: give at least 8.")
    elif data.pixels is None:
        raise UserError(f"{source} has no pixels: nothing to remove.")
    elif not data.states.shape[1]:
        raise UserError(f"{source} has no states: without its pixels nothing would be left.")
    lengths = data.lengths.numpy()
    kept = {name: value for name, value in data.attributes.items() if name not in _OURS}
    with opened(source) as file, writing(out, overwrite) as writer:
        names = _columns(file, len(data.states))
        for first, last in _groups(lengths):
            rows = slice(int(data.offsets[first]), int(data.offsets[last - 1] + lengths[last - 1]))
            columns = {name: file[name][rows] for name in names}
            if add_pixels:
                assert world is not None
                columns["pixels"] = _render(world, data.states[rows], size)
            writer.append(columns, lengths[first:last])
            if progress is not None:
                progress(last)
        return writer.finish(data.spec, kept)


def _columns(file: h5py.File, rows: int) -> list[str]:
    """The columns with a row per frame, but for frames and indices; others' groups and odd sizes stay behind."""
    return [
        name
        for name, column in file.items()
        if isinstance(column, h5py.Dataset)
        and name not in (*MADE, "pixels")
        and column.ndim
        and len(column) == rows
        and column.dtype.kind in "fiub"
    ]


def _groups(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Runs of whole episodes of about _FRAMES frames."""
    groups, first, frames = [], 0, 0
    for episode, length in enumerate(lengths):
        frames += int(length)
        if frames >= _FRAMES or episode == len(lengths) - 1:
            groups.append((first, episode + 1))
            first, frames = episode + 1, 0
    return groups


def _render(world: World, states: torch.Tensor, size: int | None) -> np.ndarray:
    return world.render(states, size).permute(0, 2, 3, 1).contiguous().numpy()
