"""The file format: HDF5 with the columns of stable-worldmodel, so that its users can read what we write.

One flat dataset per column, all episodes one after another (N rows):

    state     (N, S) float32       action  (N, A) float32, the last row of each episode NaN
    proprio   (N, P) float32       pixels  (N, h, w, 3) uint8, optional: states can be rendered
    step_idx  (N,) int64           ep_idx  (N,) int64
    ep_len    (E,) int32           ep_offset (E,) int64

Root attributes: `lpwm_version`, `world` (the spec as JSON, absent for data of unknown origin), `digest`,
`column_digests` (JSON), `attributes_digest` (of all others) and whatever the writer was given (`seed`, `policy`, …).
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.files import Sink, make_folder, new_file, refuse_existing
from lpwm.core.version import __version__
from lpwm.data.episodes import (
    SIZE,
    ColumnHash,
    combine,
    hash_column,
    hash_episodes,
    held_out_digest,
    offsets_of,
    pad_action,
    spec_to_json,
)
from lpwm.worlds.base import WorldSpec

SEAL = "attributes_digest"  # of all other attributes: the world, the seed, the other digests
MADE = ("ep_idx", "step_idx", "ep_len", "ep_offset")  # columns the writer makes itself
_ROWS = 16384  # rows of a chunk of a small column


def plain(value: Any) -> Any:
    """An attribute as a Python value."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def seal_of(attributes: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in attributes.items() if name != SEAL}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True, default=repr).encode(), digest_size=SIZE).hexdigest()


def create_column(file: h5py.File, name: str, row_shape: tuple[int, ...], dtype: np.dtype) -> h5py.Dataset:
    """An empty column that grows. A frame is a chunk, so that clips read only the frames they need and
    frames can be copied without being decompressed. Fast gzip: 224² frames of our worlds shrink 28-fold and come back
    in 0.1 ms; those it does not shrink, such as a camera's, are stored as they are (see `_write_frames`)."""
    how: dict[str, Any] = {"chunks": (_ROWS, *row_shape)}
    if name == "pixels":
        how = {"chunks": (1, *row_shape), "compression": "gzip", "compression_opts": 1}
    return file.create_dataset(name, (0, *row_shape), dtype, maxshape=(None, *row_shape), track_times=False, **how)


def _write_frames(column: h5py.Dataset, start: int, frames: NDArray[np.uint8]) -> None:
    """A chunk each. A frame that does not shrink by a fifth is stored uncompressed (HDF5 marks such chunks, every
    reader of HDF5 understands them): inflating it would cost 0.6 ms for nothing."""
    for row, frame in enumerate(np.ascontiguousarray(frames), start):
        some = frame[::8].tobytes()  # trying costs as much as doing: 3 ms for a frame that does not shrink
        plain, packed = len(zlib.compress(some, 1)) > 0.9 * len(some), b""
        if not plain:
            packed = zlib.compress(frame.data, 1)
            plain = len(packed) > 0.8 * frame.nbytes
        column.id.write_direct_chunk((row, 0, 0, 0), frame.tobytes() if plain else packed, filter_mask=int(plain))


class Writer:
    """Appends whole episodes to an open file; `finish` adds the index columns and the attributes."""

    def __init__(self, file: h5py.File, sink: Sink):
        self.file, self.sink = file, sink
        self.lengths: list[NDArray] = []
        self.hashes: dict[str, ColumnHash] = {}

    def _grow(self, name: str, row_shape: tuple[int, ...], dtype: np.dtype, rows: int) -> h5py.Dataset:
        if name not in self.hashes:
            self.hashes[name] = ColumnHash(name, dtype, row_shape)
            create_column(self.file, name, row_shape, dtype)
        column = self.file[name]
        if column.shape[1:] != tuple(row_shape) or column.dtype != dtype:
            raise UserError(
                f"{name!r} is {dtype} {row_shape} after {column.dtype} {column.shape[1:]}: all must be alike."
            )
        column.resize(len(column) + rows, axis=0)
        return column

    def append(self, columns: Mapping[str, NDArray], lengths: NDArray) -> None:
        """Rows of one or more whole episodes, every column of the same number of rows."""
        lengths = np.asarray(lengths, dtype=np.int64)
        rows = int(lengths.sum())
        first = sum(map(len, self.lengths))
        index = np.repeat(np.arange(first, first + len(lengths)), lengths)
        steps = np.arange(rows) - np.repeat(offsets_of(lengths), lengths)
        for name, values in {**columns, "ep_idx": index, "step_idx": steps}.items():
            assert len(values) == rows, f"{name}: {len(values)} rows for {rows}"
            column = self._grow(name, values.shape[1:], values.dtype, rows)
            if name == "pixels":
                _write_frames(column, len(column) - rows, values)
            else:
                column[len(column) - rows :] = values
            self.hashes[name].add(rows, hash_episodes(values, lengths))
            self.sink.check()
        self.lengths.append(lengths)

    def append_frames(self, source: h5py.Dataset, hashes: bytes) -> None:
        """All frames of another file made by `create_column`, copied compressed, with their known hashes."""
        rows = len(source)
        column = self._grow("pixels", source.shape[1:], source.dtype, rows)
        start = len(column) - rows
        for row in range(rows):
            mask, chunk = source.id.read_direct_chunk((row, 0, 0, 0))
            column.id.write_direct_chunk((start + row, 0, 0, 0), chunk, filter_mask=mask)
            if row % 1024 == 0:
                self.sink.check()
        self.hashes["pixels"].add(rows, hashes)
        self.sink.check()

    def _attribute(self, name: str, value: Any) -> None:
        """Text has a fixed length (UTF-8): HDF5 can hang on a damaged heap of variable ones."""
        if isinstance(value, str):
            text = value.encode()
            self.file.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))
        else:
            self.file.attrs[name] = value

    def finish(self, spec: WorldSpec | None, attributes: Mapping[str, Any]) -> str:
        """Returns the digest."""
        lengths = np.concatenate(self.lengths) if self.lengths else np.zeros(0, np.int64)
        if not len(lengths):
            raise UserError("there is no episode to store.")
        digests = {name: column.digest() for name, column in self.hashes.items()}
        ends = {"ep_len": lengths.astype(np.int32), "ep_offset": offsets_of(lengths)}
        for name, values in ends.items():
            self.file.create_dataset(name, data=values, track_times=False)
            digests[name] = hash_column(name, values, None)
        if "held_out" in attributes:
            digests["held_out"] = held_out_digest(str(attributes["held_out"]))
        digest = combine(digests)
        for name, value in attributes.items():
            self._attribute(name, value)
        if spec is not None:
            self._attribute("world", spec_to_json(spec))
        self._attribute("lpwm_version", __version__)
        self._attribute("digest", digest)
        self._attribute("column_digests", json.dumps(digests, sort_keys=True))
        self._attribute(SEAL, seal_of({name: plain(value) for name, value in self.file.attrs.items()}))
        self.sink.check()
        return digest


@contextmanager
def writing(path: Path, overwrite: bool = False, folder: Path | None = None) -> Iterator[Writer]:
    """A Writer whose file appears under `path` when the block ends without an error."""
    path = Path(path)
    refuse_existing(path, overwrite)
    make_folder(path.parent)
    with new_file(path, folder) as (file, sink):
        yield Writer(file, sink)


def write(
    path: str | Path,
    episodes: Iterable[Mapping[str, NDArray]],
    *,
    spec: WorldSpec | None = None,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> str:
    """Store recorded episodes, one mapping of columns each, streamed. Returns the content digest. `action` is (L − 1,
    A) (or (L, A): its last row becomes NaN); every other column has L rows: `state`, `pixels` (L, h, w, 3) uint8,
    `proprio`, or a name of your own. Floats are stored as float32."""
    with writing(Path(path), overwrite) as writer:
        for number, episode in enumerate(episodes):
            columns, length = _checked(episode, number)
            writer.append(columns, np.array([length]))
        return writer.finish(spec, attributes or {})


def _checked(episode: Mapping[str, NDArray], number: int) -> tuple[dict[str, NDArray], int]:
    where = f"episode {number}"
    if "action" not in episode:
        raise UserError(f"{where} has no 'action': give (frames − 1, action size).")
    rest = {name: np.asarray(values) for name, values in episode.items() if name != "action"}
    first = next((name for name in ("state", "pixels") if name in rest), None)
    if first is None:
        raise UserError(f"{where} has neither 'state' nor 'pixels'.")
    length = len(np.atleast_1d(rest[first]))
    for name, values in rest.items():
        if name in MADE:
            raise UserError(f"{where}: leave {name!r} out, it is made here.")
        rows = len(values) if values.ndim else 0
        if rows != length or length == 0:
            raise UserError(f"{where}: {name!r} has {rows} rows, expected {length or 'at least 1'}.")
        if name == "pixels" and (values.dtype != np.uint8 or values.ndim != 4 or values.shape[-1] != 3):
            raise UserError(f"{where}: pixels are {values.dtype} {values.shape}, expected uint8 (frames, h, w, 3).")
        if values.dtype.kind not in "fiub":
            raise UserError(f"{where}: {name!r} is {values.dtype}, expected numbers.")
        if values.dtype.kind == "f" or name == "state":
            with np.errstate(over="ignore"):
                values = rest[name] = values.astype(np.float32)
        if name == "state" and (values.ndim != 2 or not np.isfinite(values).all()):
            raise UserError(f"{where}: states must be finite (as float32) and of shape (frames, state size).")
    action = pad_action(episode["action"], length, where)
    if not np.isfinite(action[:-1]).all():
        raise UserError(f"{where}: an action is not finite before the last frame.")
    return {**rest, "action": action}, length
