"""HDF5 files with a column per quantity, ours and stable-worldmodel's, read; one sentence for whatever is wrong.

`store` writes them and documents the layout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.memory import free_bytes
from lpwm.data.episodes import (
    ColumnHash,
    EpisodeData,
    assemble,
    combine,
    hash_columns,
    hash_episodes,
    offsets_of,
    runs_from_json,
    spec_from_json,
)
from lpwm.data.frames.hdf5 import StoredColumn, StoredPixels, damaged, opened
from lpwm.data.store import MADE
from lpwm.worlds.base import WorldSpec

_DEFLATE = 1032  # no deflated byte stands for more than this many


def read_hdf5(path: Path, pixels: bool, verify: bool) -> EpisodeData:
    """See `formats.read`."""
    with opened(path) as file:
        lengths = _lengths(path, file)
        total = int(lengths.sum())
        spec = _spec(path, file)
        actions = _floats(path, file, "action", total)
        frames = _frames(path, file, total) if pixels else None
        if "state" in file or spec is not None or frames is None:
            states = _floats(path, file, "state", total)
        else:
            states = np.zeros((total, 0), np.float32)  # recorded frames of an unknown world are enough
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
        ep_len = file["ep_len"][:] if "ep_len" in file else None
        stored = _column_digests(path, attributes)
        extra = {name: StoredColumn(path, name) for name in _others(file, total)}
    check_columns(path, spec, states, actions, lengths)
    columns, held = {"state": states, "action": actions}, _held_out(path, attributes, len(lengths))
    hashes = hash_columns(columns, lengths, None if held is None else str(attributes["held_out"]), ep_len)
    if verify:
        for name, digest in hashes.items():
            if stored.get(name, digest) != digest:
                raise damaged(path, f"column {name!r} does not match its digest")
    return assemble(
        columns,
        lengths,
        digest=str(attributes["digest"]) if stored else combine(hashes),
        pixels=frames,
        spec=spec,
        attributes=attributes,
        held_out=held,
        extra=extra,
    )


def verify_frames(path: Path) -> None:
    """See `formats.verify_frames`."""
    with opened(path) as file:
        lengths = _lengths(path, file)
        frames = _frames(path, file, int(lengths.sum()))
        stored = _column_digests(path, {k: _plain(v) for k, v in file.attrs.items()}).get("pixels")
        if frames is None or stored is None:
            return
        column = ColumnHash("pixels", file["pixels"].dtype, frames.shape[1:])
        start = 0
        for length in lengths:
            rows = file["pixels"][start : start + length]
            column.add(len(rows), hash_episodes(rows, np.array([length])))
            start += length
    if column.digest() != stored:
        raise damaged(path, "column 'pixels' does not match its digest")


def _column(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    if name not in file or not isinstance(file[name], h5py.Dataset):
        raise UserError(
            f"{path} has no column {name!r}: expected stable-worldmodel's layout "
            f"(found {', '.join(sorted(map(str, file))) or 'nothing'})."
        )
    return file[name]


def _lengths(path: Path, file: h5py.File) -> NDArray[np.int64]:
    """ep_len, checked against ep_offset where there is one: episodes follow one another without gaps.

    Without ep_len, ep_idx (or episode_idx) says which episode each row belongs to.
    """
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
    column = _column(path, file, name)
    if column.dtype.kind not in "iu" or column.ndim != 1:
        raise UserError(f"{path}: {name} is {column.dtype} {column.shape}, expected integers (n,).")
    return _whole(path, column).astype(np.int64)


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


def _held_out(path: Path, attributes: dict[str, Any], count: int) -> torch.Tensor | None:
    if "held_out" not in attributes:
        return None
    try:
        return runs_from_json(str(attributes["held_out"]), count)
    except (ValueError, TypeError) as error:
        raise damaged(path, "the attribute 'held_out' does not name episodes") from error


def _whole(path: Path, column: h5py.Dataset) -> NDArray:
    """All of a column, once it is known to fit."""
    _check_fits(path, column, column.size * column.dtype.itemsize)
    return column[:]


def _check_fits(path: Path, column: h5py.Dataset, size: int) -> None:
    """A header may claim more than the file can hold, or than memory can: refuse before allocating `size` bytes."""
    name, stored = column.name.strip("/"), path.stat().st_size
    if size > _DEFLATE * stored:
        raise damaged(path, f"column {name!r} claims {column.shape[0]} rows")
    free = free_bytes(torch.device("cpu"))
    if size > 0.5 * free:
        raise UserError(
            f"{path}: column {name!r} of shape {column.shape} takes {size / 1e9:.1f} GB, more than half of the "
            f"{free / 1e9:.1f} GB of memory that are free: use a machine with more memory, or fewer episodes."
        )


def _rows(path: Path, column: h5py.Dataset, total: int) -> None:
    if column.ndim == 0 or len(column) != total:
        raise UserError(
            f"{path}: column {column.name.strip('/')!r} has {len(column) if column.ndim else 0} rows, but the "
            f"episodes of ep_len add up to {total}."
        )


def _floats(path: Path, file: h5py.File, name: str, total: int) -> NDArray:
    column = _column(path, file, name)
    if column.dtype.kind != "f" or column.ndim != 2:
        raise UserError(f"{path}: column {name!r} is {column.dtype} {column.shape}, expected float32 (frames, size).")
    _rows(path, column, total)
    return _whole(path, column)


def _frames(path: Path, file: h5py.File, total: int) -> StoredPixels | None:
    if "pixels" not in file:
        return None
    column = _column(path, file, "pixels")
    if column.dtype != np.uint8 or column.ndim != 4 or column.shape[-1] != 3:
        raise UserError(
            f"{path}: column 'pixels' is {column.dtype} {column.shape}, expected uint8 (frames, height, width, 3)."
        )
    _rows(path, column, total)
    _check_fits(path, column, 16 * int(np.prod(column.shape[1:])))  # a few frames at a time
    return StoredPixels(path, tuple(column.shape))


def _spec(path: Path, file: h5py.File) -> WorldSpec | None:
    if "world" not in file.attrs:
        return None
    try:
        return spec_from_json(str(_plain(file.attrs["world"])))
    except (ValueError, KeyError, TypeError) as error:
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
        bad = ~np.isfinite(rows).all(axis=1)
        if name == "action":
            bad[last] = False
        if bad.any():
            row = int(bad.argmax())
            raise UserError(
                f"{path}: column {name!r} is not finite inside episode {int(np.searchsorted(last, row))} (row {row}): "
                "remove or fix that episode."
            )


def _plain(value: Any) -> Any:
    """An attribute as a Python value."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _column_digests(path: Path, attributes: dict[str, Any]) -> dict[str, str]:
    """The stored digests, {} for files of others."""
    text = attributes.get("column_digests")
    if text is None or "digest" not in attributes:
        return {}
    try:
        stored = json.loads(str(text))
        if combine(stored) != attributes["digest"]:
            raise ValueError("the digests do not add up")
    except (ValueError, TypeError, AttributeError) as error:
        raise damaged(path, "the stored digests are broken") from error
    return stored
