"""Stored frames, wherever they lie, read row by row: by this process, or by worker processes ahead of their use.
But for the reader of tensors nothing here imports torch: a worker starts in a moment and is small."""

import functools
import importlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.memory import need_memory

Rows = Iterator[tuple[int, NDArray[np.uint8]]]


class Frames(Protocol):
    """uint8 frames (N, h, w, 3): an array in memory, or rows read from a file on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]: ...


class FrameReader:
    """Stored frames, open for reading."""

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        """For every entry of `rows`, in any order: its position among them, and the frame (h, w, 3)."""
        raise NotImplementedError

    def close(self) -> None:
        return


READERS = {"hdf5": "hdf5:Hdf5Reader", "video": "video:VideoReader", "tensors": "tensors:TensorReader"}
READERS |= {"jpegs": "pictures:LanceReader", "parquet": "pictures:ParquetReader", "cache": "cache:CacheReader"}


def open_reader(where: dict[str, Any]) -> FrameReader:
    """The reader of `StoredFrames.where`, named by its `kind`."""
    module, _, name = READERS[where["kind"]].partition(":")
    reader = getattr(importlib.import_module(f"lpwm.data.frames.{module}"), name)
    return reader(**{name: value for name, value in where.items() if name != "kind"})


class StoredFrames:
    """Frames in files, which another process can open too. A slice is its rows, read one after another."""

    slow = False  # whether decoding a clip costs more than rendering it
    shape: tuple[int, ...]

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of `open_reader`, as JSON can hold them."""
        raise NotImplementedError

    def check(self) -> None:
        """One sentence if frames are missing, without reading them all."""

    def check_memory(self, rows: slice | int) -> None:
        """One sentence if these frames, as large as a header claims, do not fit."""
        count = len(range(*rows.indices(self.shape[0]))) if isinstance(rows, slice) else 1
        need_memory(f"{count} frames of {self.shape[1]}×{self.shape[2]}", count * math.prod(self.shape[1:]))

    def __getitem__(self, rows: slice | int) -> NDArray[np.uint8]:
        if not isinstance(rows, slice):
            row = range(self.shape[0])[rows]
            return self[row : row + 1][0]
        wanted = np.arange(*rows.indices(self.shape[0]), dtype=np.int64)
        self.check_memory(rows)
        out = np.empty((len(wanted), *self.shape[1:]), np.uint8)
        reader = open_reader(self.where)
        try:
            for position, frame in reader(wanted):
                out[position] = frame
        finally:
            reader.close()
        return out


class EpisodeFiles(StoredFrames):
    """Frames of episodes of these lengths, one file each, all of one size: (h, w) is that of the first."""

    slow = True
    kind: str

    def __init__(self, files: list[Path], lengths: NDArray[np.int64]):
        self.files, self.lengths = files, lengths

    def headers(self, files: list[Path]) -> Iterable[tuple[int, int, int]]:
        """Frames (0 where the file does not say), height and width of each file."""
        raise NotImplementedError

    def check(self) -> None:
        """Every file: there, of one size, and of as many frames as its episode."""
        headers = self.headers(self.files)
        for file, length, (frames, *side) in zip(self.files, self.lengths.tolist(), headers, strict=True):
            if 0 < frames < length:  # 0: decoding will tell
                raise too_short(file, frames, length)
            if tuple(side) != self.shape[1:3]:
                raise UserError(
                    f"{file} has frames of {side[0]}×{side[1]}, {self.files[0].name} of "
                    f"{self.shape[1]}×{self.shape[2]}: all must be alike."
                )

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        _, *side = next(iter(self.headers(self.files[:1])))
        return (int(self.lengths.sum()), *side, 3)

    @property
    def where(self) -> dict[str, Any]:
        files = [str(file.absolute()) for file in self.files]
        return {"kind": self.kind, "files": files, "lengths": self.lengths.tolist()}


class EpisodeReader(FrameReader):
    """Reads what `EpisodeFiles` describes, file by file."""

    def __init__(self, files: list[str], lengths: list[int], starts: list[int] | None = None):
        """starts: the first frame of each episode in its file, where files hold several."""
        self.starts, self.stops = np.array(starts or [0] * len(files), np.int64), np.cumsum(lengths)
        self.ends = self.starts + np.array(lengths, np.int64)  # in the file
        self._names, self._file = np.unique(files, return_inverse=True)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        episode = np.searchsorted(self.stops, rows, side="right")
        wanted, file = rows + (self.ends - self.stops)[episode], self._file[episode]
        order = np.lexsort((wanted, file))
        for group in np.split(order, np.flatnonzero(np.diff(file[order])) + 1) if len(rows) else ():
            needed = int(self.ends[episode[group[-1]]])
            yield from self.read(str(self._names[file[group[0]]]), needed, group.tolist(), wanted[group].tolist())

    def read(self, file: str, length: int, positions: list[int], wanted: list[int]) -> Rows:
        """For each of the frames `wanted` (ascending) of a file, of `length` frames at least: position and frame."""
        raise NotImplementedError


def too_short(file: str | Path, frames: int, states: int) -> UserError:
    return UserError(
        f"{file} has {frames} frames for {states} states: copy it again, or render the states (data.pixels rendered)."
    )
