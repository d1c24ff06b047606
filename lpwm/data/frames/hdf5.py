"""HDF5 files opened for reading, with one sentence for whatever is wrong, and their frames read fast."""

import functools
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

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        self.check_memory(rows)
        with opened(self.path) as file:
            return file["pixels"][rows]


@dataclass(frozen=True)
class StoredColumn:
    """Any other column, read on demand."""

    path: Path
    name: str

    def __getitem__(self, rows: slice) -> NDArray:
        with opened(self.path) as file:
            return file[self.name][rows]


class Hdf5Reader(FrameReader):
    """Frames by row. Where a frame is a chunk of its own, its bytes are read from the file directly: half the cost."""

    def __init__(self, path: str):
        self.path = path
        self._open = opened(path)
        self._column = self._open.__enter__()["pixels"]
        self._shape = tuple(self._column.shape[1:])
        self._size = int(np.prod(self._shape))
        self._descriptor = os.open(path, os.O_RDONLY)
        self._frame = self._through_hdf5
        plan = self._column.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if self._column.file.userblock_size:
            return
        if self._column.chunks == (1, *self._shape) and filters in ([], [h5py.h5z.FILTER_DEFLATE]):
            self._frame, self._deflated = self._chunk, bool(filters)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        for position, row in enumerate(rows.tolist()):
            try:
                frame = self._frame(row)
            except DAMAGE as error:
                raise damaged(self.path, error) from error
            yield position, frame

    def _through_hdf5(self, row: int) -> NDArray[np.uint8]:
        return self._column[row]

    def _chunk(self, row: int) -> NDArray[np.uint8]:
        info = self._column.id.get_chunk_info_by_coord((row, 0, 0, 0))
        if info.byte_offset is None:
            return self._through_hdf5(row)  # never written: the fill value
        raw = os.pread(self._descriptor, info.size, info.byte_offset)
        if self._deflated and not info.filter_mask & 1:
            raw = zlib.decompressobj().decompress(raw, self._size + 1)  # no more than a frame, whatever it claims
        return np.frombuffer(raw, np.uint8).reshape(self._shape)

    def close(self) -> None:
        os.close(self._descriptor)
        self._open.__exit__(None, None, None)
