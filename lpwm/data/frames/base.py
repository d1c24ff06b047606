"""Stored frames, wherever they lie, read row by row: by this process, or again by a worker process.

But for the reader of tensors nothing here imports torch: a worker
starts in a moment and is small.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Rows = Iterator[tuple[int, NDArray[np.uint8]]]


class Frames(Protocol):
    """uint8 frames (N, h, w, 3): an array in memory, or rows read from a file when asked."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]: ...


class FrameReader(Protocol):
    """Stored frames, open for reading."""

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        """For every entry of `rows`, in any order: its position among them, and the frame (h, w, 3)."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class StoredFrames(Protocol):
    """Frames in files, which another process can open too."""

    slow: bool  # decoding a clip costs more than rendering it

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]: ...

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of `open_reader`, as JSON can hold them."""
        ...

    def check(self) -> None:
        """One sentence if frames are missing, without reading them all."""
        ...


def _hdf5(**where: Any) -> FrameReader:
    from lpwm.data.frames.hdf5 import Hdf5Reader

    return Hdf5Reader(**where)


def _video(**where: Any) -> FrameReader:
    from lpwm.data.frames.video import VideoReader

    return VideoReader(**where)


def _tensors(**where: Any) -> FrameReader:
    from lpwm.data.frames.tensors import TensorReader

    return TensorReader(**where)


def _lance(**where: Any) -> FrameReader:
    from lpwm.data.frames.jpegs import LanceReader

    return LanceReader(**where)


READERS: dict[str, Callable[..., FrameReader]] = {"hdf5": _hdf5, "video": _video, "tensors": _tensors, "lance": _lance}


def open_reader(where: dict[str, Any]) -> FrameReader:
    """The reader of `StoredFrames.where`."""
    return READERS[where["kind"]](**{name: value for name, value in where.items() if name != "kind"})


class FileFrames:
    """What stored frames share: a slice is its rows, read one after another."""

    slow = False
    shape: tuple[int, ...]

    @property
    def where(self) -> dict[str, Any]:
        raise NotImplementedError

    def check(self) -> None:
        return

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        wanted = np.arange(*rows.indices(self.shape[0]), dtype=np.int64)
        out = np.empty((len(wanted), *self.shape[1:]), np.uint8)
        reader = open_reader(self.where)
        try:
            for position, frame in reader(wanted):
                out[position] = frame
        finally:
            reader.close()
        return out


class EpisodeFiles(FileFrames):
    """Frames of episodes of these lengths, one file each, all of one size: (h, w) is that of the first."""

    slow = True
    kind: str

    def __init__(self, files: list[Path], lengths: NDArray[np.int64]):
        self.files, self.lengths = files, lengths

    def first_side(self) -> tuple[int, int]:
        """(h, w) of the first file: asked for once."""
        raise NotImplementedError

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (int(self.lengths.sum()), *self.first_side(), 3)

    @property
    def where(self) -> dict[str, Any]:
        files = [str(file.absolute()) for file in self.files]
        return {"kind": self.kind, "files": files, "lengths": self.lengths.tolist()}


def by_episode(rows: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Rows of all episodes together as (episode, positions in `rows`, frames within the episode), ascending."""
    order = np.argsort(rows, kind="stable")
    episode = np.searchsorted(ends, rows[order], side="right")
    for group in np.split(order, np.flatnonzero(np.diff(episode)) + 1):
        if len(group):
            e = int(np.searchsorted(ends, rows[group[0]], side="right"))
            yield e, group, rows[group] - (int(ends[e - 1]) if e else 0)
