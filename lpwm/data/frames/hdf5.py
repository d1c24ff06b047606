"""HDF5 files opened for reading, with one sentence for whatever is wrong, and their frames read fast."""

import functools
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from lpwm.core import errors
from lpwm.core.errors import UserError
from lpwm.data.frames import FrameReader, Rows, StoredFrames

# What h5py raises on a damaged file, depending on where the damage is.
DAMAGE: tuple[type[Exception], ...] = (OSError, LookupError, RuntimeError, ValueError, TypeError, MemoryError)
DAMAGE += (ArithmeticError, AttributeError, zlib.error)
_CACHE = 32 << 20  # bytes of decompressed chunks kept for files whose chunks hold several frames


damaged = functools.partial(errors.damaged, remedy="copy or collect it again")


@contextmanager
def opened(path: str | Path) -> Iterator[h5py.File]:
    """The file, open for reading; anything h5py cannot digest becomes one sentence."""
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"{path} does not exist: check its name, or collect it with 'lpwm collect WORLD --episodes N --out {path}'."
        )
    if not path.is_file():  # opening a pipe would wait for ever
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}, expected an HDF5 file.")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {path}: Permission denied.")
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  (others compress with Blosc: reading that needs its filters, if installed)
    try:
        if not h5py.is_hdf5(path):
            raise UserError(f"{path} is not an HDF5 file, or it is cut off at the start.")
        with h5py.File(path, "r", rdcc_nbytes=_CACHE) as file:
            _check_self_contained(path, file)
            yield file
    except UserError:
        raise
    except DAMAGE as error:
        if "required filter" in str(error):
            raise UserError(f"{path} is compressed with a filter h5py lacks: pip install hdf5plugin.") from error
        raise damaged(path, error) from error


def _check_self_contained(path: Path, file: h5py.File) -> None:
    """A data set is one file: no link and no storage that leads elsewhere, which could be anybody's file."""
    for name in file:
        link = file.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise UserError(f"{path}: {name!r} is a link elsewhere, which is not followed: copy the data themselves.")
        column = file[name]
        if isinstance(column, h5py.Dataset) and (column.external or column.is_virtual):
            raise UserError(f"{path}: the data of {name!r} are in other files, which are not read: copy them into it.")


class StoredPixels(StoredFrames):
    """The frames of a file, read on demand: `frames[a:b]` is uint8 (b − a, h, w, 3)."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self.path, self.shape = path, shape

    @property
    def where(self) -> dict[str, Any]:
        return {"kind": "hdf5", "path": str(self.path.absolute())}


@dataclass(frozen=True)
class StoredColumn:
    """Any other column, read on demand."""

    path: Path
    name: str

    def __getitem__(self, rows: slice) -> NDArray:
        with opened(self.path) as file:
            return file[self.name][rows]


def whole_rows(column: h5py.Dataset) -> bool:
    """Whether its chunks are rows of their own, deflated or as they are: then they can be read without HDF5, which
    costs twice as much and inflates whatever a chunk claims."""
    plan = column.id.get_create_plist()
    filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
    known = filters in ([], [h5py.h5z.FILTER_DEFLATE]) and not column.file.userblock_size
    return known and column.chunks is not None and column.chunks[1:] == column.shape[1:]


class Hdf5Reader(FrameReader):
    """Frames by row; those of chunks of whole frames are read from the file directly."""

    def __init__(self, path: str):
        self.path = path
        self._open = opened(path)
        self._column = self._open.__enter__()["pixels"]
        self._descriptor = os.open(path, os.O_RDONLY)
        self._own, self._deflated = whole_rows(self._column), self._column.compression is not None
        self._last: tuple[int, NDArray[np.uint8] | None] = (-1, None)  # the chunk read last, and its first row

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        count = self._column.chunks[0] if self._own else 1
        for position, row in enumerate(rows.tolist()):
            try:
                if self._own and self._last[0] != row - row % count:
                    self._last = row - row % count, self._inflated(row - row % count)
                frame = self._column[row] if self._last[1] is None else self._last[1][row % count]
            except DAMAGE as error:
                raise damaged(self.path, error) from error
            yield position, frame

    def _inflated(self, first: int) -> NDArray[np.uint8] | None:
        """The frames of the chunk that begins at this row; None for one that was never written."""
        info, shape = self._column.id.get_chunk_info_by_coord((first, 0, 0, 0)), self._column.chunks
        if info.byte_offset is None:
            return None
        raw = os.pread(self._descriptor, info.size, info.byte_offset)
        if self._deflated and not info.filter_mask & 1:
            raw = zlib.decompressobj().decompress(raw, math.prod(shape) + 1)  # no more, whatever it claims
        return np.frombuffer(raw, np.uint8).reshape(shape)

    def close(self) -> None:
        os.close(self._descriptor)
        self._open.__exit__(None, None, None)
