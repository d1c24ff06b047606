"""Reading a stored data set, ours or stable-worldmodel's, and saying in one sentence what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.data.digest import ColumnHash, combine, hash_column, hash_episodes
from lpwm.data.episodes import EpisodeData, offsets_of, spec_from_json
from lpwm.errors import UserError
from lpwm.frames.hdf5 import StoredPixels, damaged, opened
from lpwm.worlds.base import WorldSpec

_DEFLATE = 1032  # no deflated byte stands for more than this many


def read(path: str | Path, *, pixels: bool | None = None, verify: bool = True) -> EpisodeData:
    """A data set, checked. Frames stay in the file until they are asked for.

    pixels: None takes them if they are there, True demands them, False ignores them.
    verify: compare the columns read (not the frames, see `verify_frames`) with their stored digests.
    """
    path = Path(path)
    with opened(path) as file:
        lengths = _lengths(path, file)
        total = int(lengths.sum())
        spec = _spec(path, file)
        actions = _floats(path, file, "action", total)
        frames = _frames(path, file, total) if pixels is not False else None
        if pixels and frames is None:
            raise UserError(
                f"{path} has no pixels: add them with 'lpwm data convert {path} OUT --add-pixels'."
            )
        if "state" in file or spec is not None or frames is None:
            states = _floats(path, file, "state", total)
        else:
            states = np.zeros((total, 0), np.float32)  # recorded frames of an unknown world are enough
        _check_spec(path, spec, states, actions)
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
        raw = {"action": actions, "state": states, "ep_len": file["ep_len"][:]}
        stored = _column_digests(path, attributes)
    _check_finite(path, states, actions, lengths)
    hashes = {
        name: hash_column(name, rows, None if name == "ep_len" else lengths) for name, rows in raw.items()
    }
    if verify:
        for name, digest in hashes.items():
            if stored.get(name, digest) != digest:
                raise damaged(path, f"column {name!r} does not match its digest")
    return EpisodeData(
        states=torch.from_numpy(states.astype(np.float32, copy=False)),
        actions=torch.from_numpy(actions.astype(np.float32, copy=False)),
        lengths=torch.from_numpy(lengths),
        offsets=torch.from_numpy(offsets_of(lengths)),
        pixels=frames,
        spec=spec,
        digest=str(attributes["digest"]) if stored else combine(hashes),
        attributes=attributes,
    )


def verify_frames(path: str | Path) -> None:
    """Compare the stored frames with their digest: reads all of them."""
    path = Path(path)
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
    """ep_len, checked against ep_offset: episodes follow one another without gaps."""
    found = []
    for name in ("ep_len", "ep_offset"):
        column = _column(path, file, name)
        if column.dtype.kind not in "iu" or column.ndim != 1:
            raise UserError(
                f"{path}: {name} is {column.dtype} {column.shape}, expected integers (episodes,)."
            )
        found.append(_whole(path, column).astype(np.int64))
    lengths, offsets = found
    if not len(lengths):
        raise UserError(f"{path} holds no episode.")
    if len(lengths) != len(offsets) or (lengths < 1).any() or (offsets_of(lengths) != offsets).any():
        raise UserError(
            f"{path}: ep_len and ep_offset disagree: each episode must start where the one before it ends."
        )
    return lengths


def _whole(path: Path, column: h5py.Dataset) -> NDArray:
    """All of a column. A damaged header may claim more rows than the file can hold: refuse to allocate them."""
    if column.size * column.dtype.itemsize > _DEFLATE * path.stat().st_size:
        raise damaged(path, f"column {column.name!r} claims {column.shape[0]} rows")
    return column[:]


def _rows(path: Path, column: h5py.Dataset, total: int) -> None:
    if column.ndim == 0 or len(column) != total:
        raise UserError(
            f"{path}: column {column.name.strip('/')!r} has {len(column) if column.ndim else 0} rows, but the "
            f"episodes of ep_len add up to {total}."
        )


def _floats(path: Path, file: h5py.File, name: str, total: int) -> NDArray:
    column = _column(path, file, name)
    if column.dtype.kind != "f" or column.ndim != 2:
        raise UserError(
            f"{path}: column {name!r} is {column.dtype} {column.shape}, expected float32 (frames, size)."
        )
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
    return StoredPixels(path, tuple(column.shape))


def _spec(path: Path, file: h5py.File) -> WorldSpec | None:
    if "world" not in file.attrs:
        return None
    try:
        return spec_from_json(str(_plain(file.attrs["world"])))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, "the attribute 'world' is not a world's spec") from error


def _check_spec(path: Path, spec: WorldSpec | None, states: NDArray, actions: NDArray) -> None:
    if spec is None:
        return
    for name, rows, names in (("state", states, spec.state_names), ("action", actions, spec.action_names)):
        if rows.shape[1] != len(names):
            raise UserError(
                f"{path}: column {name!r} is {rows.shape[1]} wide, but the world {spec.name!r} of this file has "
                f"{len(names)} ({', '.join(map(str, names))})."
            )


def _check_finite(path: Path, states: NDArray, actions: NDArray, lengths: NDArray) -> None:
    """States everywhere, actions everywhere but in the last row of an episode, which leads nowhere."""
    last = np.cumsum(lengths) - 1
    for name, rows in (("state", states), ("action", actions)):
        bad = ~np.isfinite(rows).all(axis=1)
        if name == "action":
            bad[last] = False
        if bad.any():
            row = int(bad.argmax())
            episode = int(np.searchsorted(last, row))
            raise UserError(
                f"{path}: column {name!r} is not finite inside episode {episode} (row {row}): remove or mend "
                "that episode."
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
