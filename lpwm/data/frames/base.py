"""Stored frames, wherever they lie, read row by row: by this process, or by a worker process.

But for the reader of tensors nothing here imports torch: a worker starts in a moment and is small.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError

Rows = Iterator[tuple[int, NDArray[np.uint8]]]


class Frames(Protocol):
    """uint8 frames (N, h, w, 3): an array in memory, or rows read from a file on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]: ...


class FrameReader(Protocol):
    """Stored frames, open for reading."""

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        """For every entry of `rows`, in any order: its position among them, and the frame (h, w, 3)."""
        ...

    def close(self) -> None: ...


READERS = {"hdf5": "Hdf5Reader", "video": "VideoReader", "tensors": "TensorReader", "jpegs": "LanceReader"}


def open_reader(where: dict[str, Any]) -> FrameReader:
    """The reader of `StoredFrames.where`: a class of the module named by its `kind`."""
    kind = where["kind"]
    reader = getattr(importlib.import_module(f"lpwm.data.frames.{kind}"), READERS[kind])
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


class EpisodeReader:
    """Reads what `EpisodeFiles` describes; `read` yields the frames of one episode."""

    def __init__(self, files: list[str], lengths: list[int]):
        self.files, self.lengths, self.ends = files, lengths, np.cumsum(lengths)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        for episode, positions, wanted in by_episode(rows, self.ends):
            yield from self.read(self.files[episode], self.lengths[episode], positions.tolist(), wanted.tolist())

    def read(self, file: str, length: int, positions: list[int], wanted: list[int]) -> Rows:
        """For each of the frames `wanted` (ascending) of a file: its position, and the frame."""
        raise NotImplementedError

    def close(self) -> None:
        return


def too_short(file: str | Path, frames: int, states: int) -> UserError:
    return UserError(
        f"{file} has {frames} frames for {states} states: copy it again, or render the states (data.pixels rendered)."
    )


def by_episode(rows: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Rows of all episodes together as (episode, positions in `rows`, frames within the episode), ascending."""
    order = np.argsort(rows, kind="stable")
    episode = np.searchsorted(ends, rows[order], side="right")
    for group in np.split(order, np.flatnonzero(np.diff(episode)) + 1):
        if len(group):
            e = int(np.searchsorted(ends, rows[group[0]], side="right"))
            yield e, group, rows[group] - (int(ends[e - 1]) if e else 0)
