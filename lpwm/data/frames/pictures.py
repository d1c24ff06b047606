"""Frames that are encoded pictures (JPEG, PNG), one per row: of a Lance table, or of parquet files ({bytes, path})."""

import contextlib
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lpwm.core.errors import UserError, damaged, need
from lpwm.data.frames import EpisodeFiles, EpisodeReader, FrameReader, Rows, StoredFrames, too_short

_ROWS = 256  # taken from a Lance table at a time
_GROUPS = 8  # groups of rows of parquet files whose pictures are kept encoded in memory


def encode(frame: NDArray[np.uint8], kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, format=kind, **options)
    return out.getvalue()


class _Decoder:
    """Pictures of one size: `shape`, or that of the first."""

    def __init__(self, shape: tuple[int, ...] = ()):
        self.shape = shape

    def __call__(self, path: str | Path, row: int, blob: bytes | None) -> NDArray[np.uint8]:
        try:
            with Image.open(io.BytesIO(blob or b"")) as picture:
                frame = np.asarray(picture.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"{path}: the frame of row {row} is no picture: convert the table again.") from error
        self.shape = self.shape or frame.shape
        if frame.shape != self.shape:
            (a, b, _), (c, d, _) = frame.shape, self.shape
            raise UserError(f"{path}: the frame of row {row} is {a}×{b}, the first one {c}×{d}: all must be alike.")
        return frame


def lance_module() -> Any:
    return need("lance", "Lance tables need their own package: pip install 'lpwm[lance]'.")


def open_table(path: str | Path) -> Any:
    """The table, open for reading; whatever is wrong with it becomes one sentence."""
    lance = lance_module()
    if not Path(path).is_dir():
        raise UserError(f"{path} does not exist, or is no folder: a Lance table is a folder NAME.lance.")
    for inner in Path(path).rglob("*"):
        if not inner.is_file() and not inner.is_dir():
            raise UserError(f"{inner} is not a regular file: copy the whole table again.")
    with lance_errors(path):
        table = lance.dataset(str(path))
        table.schema  # noqa: B018 - where a damaged one is noticed
        return table


@contextlib.contextmanager
def lance_errors(path: str | Path) -> Iterator[None]:
    """What Lance raises on damaged files becomes one sentence."""
    try:
        yield
    except BaseException as error:  # a panic of its Rust code is no Exception
        known = isinstance(error, (ValueError, OSError, RuntimeError)) and not isinstance(error, UserError)
        if not known and type(error).__name__ != "PanicException":
            raise
        raise broken(path, error) from error


def broken(path: str | Path, error: object) -> UserError:
    why = (str(error).strip().splitlines() or [""])[0][:120]
    return UserError(f"{path} is no Lance table that can be read ({why}): copy or convert it again.")


class LanceFrames(StoredFrames):
    def __init__(self, path: Path, column: str, rows: int):
        self.path, self.column = path, column
        with lance_errors(path):
            first = _Decoder()(path, 0, open_table(path).take([0], columns=[column])[column][0].as_py())
        self.shape = (rows, *first.shape)

    @property
    def where(self) -> dict[str, Any]:
        return {"kind": "jpegs", "path": str(self.path.absolute()), "column": self.column, "shape": self.shape[1:]}


class LanceReader(FrameReader):
    def __init__(self, path: str, column: str, shape: list[int]):
        self.path, self.column, self._decode = path, column, _Decoder(tuple(shape))
        self._table = open_table(path)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS].tolist()
            with lance_errors(self.path):
                blobs = self._table.take(some, columns=[self.column])[self.column]
            for position, (row, blob) in enumerate(zip(some, blobs, strict=True), start):
                yield position, self._decode(self.path, row, blob.as_py())


class ParquetFrames(EpisodeFiles):
    """`files` are those of the data set, `lengths` their rows: for its frames a file is an episode."""

    kind = "parquet"

    def __init__(self, files: list[Path], lengths: NDArray[np.int64], column: str):
        super().__init__(files, lengths)
        self.column = column

    def headers(self, files: list[Path]) -> Iterator[tuple[int, int, int]]:
        for file in files:
            _, picture = next(ParquetReader([str(file)], [1], self.column)(np.zeros(1, np.int64)))
            yield 0, picture.shape[0], picture.shape[1]

    def check(self) -> None:
        """The numbers of these rows are in the same files, and were read."""

    @property
    def where(self) -> dict[str, Any]:
        return {**super().where, "column": self.column}


class ParquetReader(EpisodeReader):
    def __init__(self, files: list[str], lengths: list[int], column: str):
        super().__init__(files, lengths)
        self.column, self._decode = column, _Decoder()
        self._open, self._group = functools.cache(self._edges), functools.lru_cache(_GROUPS)(self._pictures)

    def read(self, file: str, length: int, positions: list[int], wanted: list[int]) -> Rows:
        _, edges = self._open(file)
        if edges[-1] < length:
            raise too_short(file, int(edges[-1]), length)
        for position, row in zip(positions, wanted, strict=True):
            group = int(np.searchsorted(edges, row, side="right")) - 1
            yield position, self._decode(file, row, self._group(file, group)[row - int(edges[group])].as_py())

    def _edges(self, file: str) -> tuple[Any, NDArray]:
        """The open file, and the rows at which its groups begin and end."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise damaged(file, error) from error
        return table, np.cumsum([0, *(table.metadata.row_group(i).num_rows for i in range(table.num_row_groups))])

    def _pictures(self, file: str, group: int) -> Any:
        """The encoded pictures of a group of rows."""
        import pyarrow as pa
        import pyarrow.compute as compute

        try:
            rows = self._open(file)[0].read_row_group(group, columns=[f"{self.column}.bytes"])
            return compute.struct_field(rows[self.column], "bytes")
        except (pa.ArrowException, OSError, LookupError) as error:
            raise damaged(file, error) from error
