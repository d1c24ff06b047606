"""HDF5 files with a column per quantity, ours and stable-worldmodel's, read; one sentence for whatever is wrong.
`store` writes them and documents the layout."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.memory import need_memory
from lpwm.data.episodes import (
    ColumnHash,
    EpisodeData,
    assemble,
    combine,
    hash_column,
    hash_columns,
    hash_episodes,
    offsets_of,
    spec_from_json,
)
from lpwm.data.frames.hdf5 import StoredColumn, StoredPixels, damaged, opened, whole_rows
from lpwm.data.store import MADE, SEAL, plain, seal_of
from lpwm.worlds.base import WorldSpec

_DEFLATE = 1032  # no deflated byte stands for more than this many
_STRINGS = 64  # of an attribute, whatever their length


def read_hdf5(path: Path, pixels: bool, verify: bool) -> EpisodeData:
    """See `formats.read`."""
    with opened(path) as file:
        attributes = _attributes(path, file)
        stored = _column_digests(path, attributes)
        lengths = _lengths(path, file)
        total = int(lengths.sum())
        spec = _spec(path, attributes)
        actions = _column(path, file, "action", _FLOATS, total)[:]
        frames = _frames(path, file, total) if pixels else None
        if "state" in file or spec is not None or frames is None:
            states = _column(path, file, "state", _FLOATS, total)[:]
        else:
            states = np.zeros((total, 0), np.float32)  # recorded frames of an unknown world are enough
        ep_len = file["ep_len"][:] if "ep_len" in file else None
        others = _others(file, total)
        if SEAL in attributes and (odd := (stored.keys() - {"held_out"}) ^ set(file)):
            raise damaged(path, f"its columns are not those that were written: {', '.join(sorted(map(str, odd)))}")
        extra = {name: StoredColumn(path, name) for name in others}
        for name in [*others, "ep_idx", "step_idx", "ep_offset"] if verify else ():
            if name in stored and name in file:
                rows = _column(path, file, name, _NUMBERS)[:]
                _check_digest(path, name, hash_column(name, rows, None if name == "ep_offset" else lengths), stored)
    check_columns(path, spec, states, actions, lengths)
    columns = {"state": states, "action": actions}
    hashes = hash_columns(columns, lengths, attributes.get("held_out"), ep_len)
    for name, digest in hashes.items() if verify else ():
        _check_digest(path, name, digest, stored)
    digest = str(attributes["digest"]) if stored else combine(hashes)
    try:
        return assemble(columns, lengths, digest=digest, pixels=frames, spec=spec, attributes=attributes, extra=extra)
    except (ValueError, TypeError) as error:
        raise damaged(path, "the attribute 'held_out' does not name episodes") from error


def _check_digest(path: Path, name: str, digest: str, stored: dict[str, str]) -> None:
    if stored.get(name, digest) != digest:
        raise damaged(path, f"column {name!r} does not match its digest")


def verify_frames(path: Path) -> None:
    """See `formats.verify_frames`."""
    with opened(path) as file:
        stored = _column_digests(path, _attributes(path, file))
        lengths = _lengths(path, file)
        frames = _frames(path, file, int(lengths.sum()))
        if frames is None or "pixels" not in stored:
            return
        column = ColumnHash("pixels", file["pixels"].dtype, frames.shape[1:])
        for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
            column.add(length, hash_episodes(frames[end - length : end], np.array([length])))
    _check_digest(path, "pixels", column.digest(), stored)


_INTEGERS, _FLOATS, _FRAMES = "integers (n,)", "float32 (frames, size)", "uint8 (frames, height, width, 3)"
_NUMBERS = "numbers (n, …)"
_KINDS: dict[str, Callable[[h5py.Dataset], bool]] = {
    _NUMBERS: lambda c: c.dtype.kind in "fiub" and c.ndim > 0,
    _INTEGERS: lambda c: c.dtype.kind in "iu" and c.ndim == 1,
    _FLOATS: lambda c: c.dtype.kind == "f" and c.ndim == 2,
    _FRAMES: lambda c: c.dtype == np.uint8 and c.ndim == 4 and c.shape[-1] == 3,
}


def _column(path: Path, file: h5py.File, name: str, kind: str, rows: int | None = None) -> h5py.Dataset:
    """A column of this kind and of as many rows, which memory can hold (of frames, a few at a time)."""
    if name not in file or not isinstance(file[name], h5py.Dataset):
        raise UserError(f"{path} has no column {name!r} (found {', '.join(sorted(map(str, file))) or 'nothing'}).")
    column = file[name]
    if not _KINDS[kind](column):
        raise UserError(f"{path}: column {name!r} is {column.dtype} {column.shape}, expected {kind}.")
    if rows is not None and len(column) != rows:
        raise UserError(f"{path}: column {name!r} has {len(column)} rows, but the episodes of ep_len add up to {rows}.")
    # A header may claim more than the file can hold, or than memory can.
    size = 16 * math.prod(column.shape[1:]) if kind == _FRAMES else column.size * column.dtype.itemsize
    if size > _DEFLATE * path.stat().st_size:
        raise damaged(path, f"column {name!r} claims {column.shape[0]} rows")
    need_memory(f"{path}: column {name!r} of shape {column.shape}", size)
    _check_chunks(path, column)
    return column


def _check_chunks(path: Path, column: h5py.Dataset) -> None:
    """No packed chunk is larger than what it unpacks to: else it is damaged, or unpacks to far more than it should. A
    chunk, and what HDF5 may make of it, fit into memory."""
    if column.chunks is None:
        return
    size = math.prod(column.chunks) * column.dtype.itemsize
    times = 1 if whole_rows(column) or column.compression != "gzip" else _DEFLATE
    what = f"{path}: a chunk of {column.name.strip('/')!r}"
    need_memory(what, size)

    def look(chunk: Any) -> None:
        if chunk.size > 1.1 * size + 1024:
            raise damaged(path, f"a chunk of {column.name.strip('/')!r} is larger than its rows")
        if not chunk.filter_mask:
            need_memory(what, times * chunk.size)

    column.id.chunk_iter(look)


def _attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    """The attributes. Strings of any length may all be the same long one: many are not read."""
    for name in file.attrs:
        kind = file.attrs.get_id(name)
        if kind.dtype.hasobject and math.prod(kind.shape or ()) > _STRINGS:
            need_memory(f"{path}: the attribute {name!r}", math.prod(kind.shape) * path.stat().st_size)
    return {name: plain(value) for name, value in file.attrs.items()}


def _lengths(path: Path, file: h5py.File) -> NDArray[np.int64]:
    """ep_len, checked against ep_offset where there is one; without it, from the episode of each row (ep_idx)."""
    index = next((name for name in ("ep_idx", "episode_idx") if name in file), None)
    if "ep_len" not in file and index is not None:
        return run_lengths(path, index, _integers(path, file, index))
    lengths = _integers(path, file, "ep_len")
    offsets = _integers(path, file, "ep_offset") if "ep_offset" in file else offsets_of(lengths)
    if not len(lengths):
        raise UserError(f"{path} holds no episode.")
    if len(lengths) != len(offsets) or (lengths < 1).any() or (offsets_of(lengths) != offsets).any():
        raise UserError(f"{path}: ep_len and ep_offset disagree: each episode must start where the one before it ends.")
    return lengths


def _integers(path: Path, file: h5py.File, name: str) -> NDArray[np.int64]:
    return _column(path, file, name, _INTEGERS)[:].astype(np.int64)


def run_lengths(path: Path, name: str, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lengths of episodes from the number of the episode of every row."""
    if not len(index):
        raise UserError(f"{path} holds no episode.")
    edges = np.concatenate(([0], np.flatnonzero(np.diff(index)) + 1, [len(index)]))
    if len(np.unique(index[edges[:-1]])) != len(edges) - 1:
        raise UserError(f"{path}: the rows of an episode are not together ({name} returns to an earlier value).")
    return np.diff(edges)


def _others(file: h5py.File, rows: int) -> list[str]:
    """The columns with a row per frame, but for frames and indices; others' groups and odd sizes stay behind."""
    return [
        name
        for name, column in file.items()
        if isinstance(column, h5py.Dataset)
        and name not in (*MADE, "episode_idx", "pixels", "state", "action")
        and column.ndim
        and len(column) == rows
        and column.dtype.kind in "fiub"
    ]


def _frames(path: Path, file: h5py.File, total: int) -> StoredPixels | None:
    if "pixels" not in file:
        return None
    return StoredPixels(path, tuple(_column(path, file, "pixels", _FRAMES, total).shape))


def _spec(path: Path, attributes: dict[str, Any]) -> WorldSpec | None:
    if "world" not in attributes:
        return None
    try:
        return spec_from_json(str(attributes["world"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, "the attribute 'world' is not a world's spec") from error


def check_columns(path: Path, spec: WorldSpec | None, states: NDArray, actions: NDArray, lengths: NDArray) -> None:
    """As many entries as the world has, and finite: states everywhere, actions but in the last row of an episode."""
    last = np.cumsum(lengths) - 1
    for name, rows in (("state", states), ("action", actions)):
        names = None if spec is None else spec.state_names if name == "state" else spec.action_names
        if names is not None and rows.shape[1] != len(names):
            raise UserError(
                f"{path}: column {name!r} is {rows.shape[1]} wide, but the world {spec.name!r} of this file has "  # type: ignore[union-attr]
                f"{len(names)} ({', '.join(map(str, names))})."
            )
        with np.errstate(over="ignore"):
            bad = np.asarray(~np.isfinite(rows.astype(np.float32)).all(axis=1))  # as they will be used
        if name == "action":
            bad[last] = False
        if bad.any():
            row = int(bad.argmax())
            raise UserError(
                f"{path}: column {name!r} is not finite inside episode {int(np.searchsorted(last, row))} (row {row}): "
                "remove or fix that episode."
            )


def _column_digests(path: Path, attributes: dict[str, Any]) -> dict[str, str]:
    """The stored digests, {} for files of others. Files since 0.3 also say what their attributes were."""
    if attributes.get(SEAL, seal_of(attributes)) != seal_of(attributes):
        raise damaged(path, "its attributes do not match their digest")
    text = attributes.get("column_digests")
    if text is None or "digest" not in attributes:
        return {}
    try:
        stored = json.loads(str(text))
        if combine(stored) != attributes["digest"]:
            raise ValueError("the digests do not add up")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, "the stored digests are broken") from error
    return stored
