"""Frames of a Lance table: one encoded picture (JPEG, PNG) per row of a binary column."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lpwm.core.errors import UserError
from lpwm.data.frames.base import Rows, StoredFrames

_ROWS = 256  # taken from the table at a time


def lance_module() -> ModuleType:
    try:
        import lance
    except ImportError:
        raise UserError("Lance tables need their own package: pip install 'lpwm[lance]'.") from None
    return lance


def open_table(path: str | Path) -> Any:
    """The table, open for reading; whatever is wrong with it becomes one sentence."""
    lance = lance_module()
    if not Path(path).is_dir():
        raise UserError(f"{path} does not exist, or is no folder: a Lance table is a folder NAME.lance.")
    try:
        return lance.dataset(str(path))
    except (ValueError, OSError, RuntimeError) as error:
        raise broken(path, error) from error


def broken(path: str | Path, error: object) -> UserError:
    why = (str(error).strip().splitlines() or [""])[0][:120]
    return UserError(f"{path} is no Lance table that can be read ({why}): copy or convert it again.")


def decode(path: str | Path, row: int, blob: bytes | None) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(blob or b"")) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: the frame of row {row} is no picture: convert the table again.") from error


class LanceFrames(StoredFrames):
    def __init__(self, path: Path, column: str, rows: int):
        self.path, self.column = path, column
        first = decode(path, 0, open_table(path).take([0], columns=[column])[column][0].as_py())
        self.shape = (rows, *first.shape)

    @property
    def where(self) -> dict[str, Any]:
        return {"kind": "jpegs", "path": str(self.path.absolute()), "column": self.column, "shape": self.shape[1:]}


class LanceReader:
    def __init__(self, path: str, column: str, shape: list[int]):
        self.path, self.column, self.shape = path, column, tuple(shape)
        self._table = open_table(path)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS].tolist()
            try:
                blobs = self._table.take(some, columns=[self.column])[self.column]
            except (ValueError, OSError, RuntimeError) as error:
                raise broken(self.path, error) from error
            for position, (row, blob) in enumerate(zip(some, blobs, strict=True), start):
                frame = decode(self.path, row, blob.as_py())
                if frame.shape != self.shape:
                    raise UserError(
                        f"{self.path}: the frame of row {row} is {frame.shape[0]}×{frame.shape[1]}, the first one "
                        f"{self.shape[0]}×{self.shape[1]}: all must be alike."
                    )
                yield position, frame

    def close(self) -> None:
        return
