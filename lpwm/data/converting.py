"""A data set in another form: with frames or without, of another size, in another format. What is written is chosen by
its name: NAME.lance is a Lance table, anything else HDF5, unless it is to be LeRobot's."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm import worlds
from lpwm.core.errors import UserError, require
from lpwm.core.memory import need_memory
from lpwm.data.clips import resize
from lpwm.data.episodes import EpisodeData, Groups
from lpwm.data.formats import read, verify_frames
from lpwm.data.frames import StoredFrames
from lpwm.data.store import SEAL, writing
from lpwm.worlds.base import World

_FRAMES = 512  # about this many frames in memory at a time
_OURS = ("digest", "column_digests", "world", "lpwm_version", SEAL)  # attributes the writer makes itself


def world_of(data: EpisodeData) -> World:
    """The world that made a data set, built again from the spec it carries."""
    if data.spec is None:
        raise UserError("the data do not say which world made them: give the world.")
    world = worlds.make(data.spec.name, **data.spec.options)
    if hasattr(world, "remember") and "tape_low" in data.spec.state_names:  # states that cannot be set
        world.remember(data.states, data.actions)
    return world


def convert(
    source: str | Path,
    out: str | Path,
    *,
    add_pixels: bool = False,
    remove_pixels: bool = False,
    size: int | None = None,
    world: World | None = None,
    camera: str | None = None,
    lerobot: str | None = None,
    fps: float | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> str:
    """Copy any data set that `read` reads to `out`. Returns the digest.

    add_pixels: render the states, in place of slow frames (mp4) if there are any. remove_pixels: leave the frames out.
    Otherwise frames are copied. size: the side of the frames written. All other columns of numbers are kept.
    camera: whose frames, of a data set with several. lerobot: write a LeRobot data set (v3.0) with frames as "h264",
    "av1" or "images"; fps: its frames per second, those of the source or 10 when not given.
    The result appears under its name when it is complete.
    """
    source, out = Path(source), Path(out)
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"{out} is the file to convert: write to another name.")
    data = read(source, camera=camera)
    if source.is_file() and not add_pixels and not remove_pixels:
        verify_frames(source)
    draw = _drawing(source, data, add_pixels, remove_pixels, size, world)
    kept = {name: value for name, value in data.attributes.items() if name not in _OURS}
    groups = _columns(data, draw, progress or (lambda done: None))
    if out.suffix.lower() == ".lance":
        from lpwm.data.formats.lance import write_lance

        write_lance(out, groups, dataclasses.replace(data, attributes=kept), overwrite)
        return read(out).digest
    if lerobot is not None:
        from lpwm.data.formats.lerobot_writer import write_lerobot

        write_lerobot(out, groups, dataclasses.replace(data, attributes=kept), lerobot, fps, overwrite)
        return read(out).digest
    with writing(out, overwrite) as writer:
        for columns, lengths in groups:
            writer.append(columns, lengths)
        return writer.finish(data.spec, kept)


Draw = Callable[[slice], NDArray[np.uint8]]


def _drawing(
    source: Path, data: EpisodeData, add: bool, remove: bool, size: int | None, world: World | None
) -> Draw | None:
    """How the frames of some rows are made; None for a data set without."""
    if add and remove:
        raise UserError("say at most one of --add-pixels and --remove-pixels.")
    require("size", size, 8)
    need_memory(f"writing frames of side {size}", 3.0 * (size or 0) ** 2 * min(_FRAMES, len(data.states)))
    stored = data.pixels
    if add:
        if stored is not None and not (isinstance(stored, StoredFrames) and stored.slow):
            raise UserError(f"{source} has pixels already: nothing to add.")
        world = world or world_of(data)
        side = world.spec.frame if size is None else size
        return lambda rows: world.render(data.states[rows], side).permute(0, 2, 3, 1).contiguous().numpy()
    if remove and stored is None:
        raise UserError(f"{source} has no pixels: nothing to remove.")
    if remove and not data.states.shape[1]:
        raise UserError(f"{source} has no states: without its pixels nothing would be left.")
    if remove or stored is None:
        if size is not None:
            raise UserError("--size is the side of the frames written: it needs frames, or --add-pixels.")
        return None
    if isinstance(stored, StoredFrames):
        stored.check()
    if size is None or (size, size) == tuple(stored.shape[1:3]):
        return lambda rows: stored[rows]
    return lambda rows: (
        resize(torch.from_numpy(stored[rows]).permute(0, 3, 1, 2), (size, size))
        .permute(0, 2, 3, 1)
        .contiguous()
        .numpy()
    )


def _columns(data: EpisodeData, draw: Draw | None, progress: Callable[[int], None]) -> Groups:
    """All columns of a few whole episodes at a time, with their lengths."""
    lengths, first, frames = data.lengths.numpy(), 0, 0
    for last, length in enumerate(lengths.tolist(), 1):
        frames += length
        if frames < _FRAMES and last < len(lengths):
            continue
        end = int(data.offsets[last - 1]) + length
        rows = slice(end - frames, end)
        columns = {"action": data.actions[rows].numpy()}
        if data.states.shape[1]:
            columns["state"] = data.states[rows].numpy()
        columns |= {name: column[rows] for name, column in data.extra.items()}
        if draw is not None:
            columns["pixels"] = draw(rows)
        yield columns, lengths[first:last]
        progress(last)
        first, frames = last, 0
