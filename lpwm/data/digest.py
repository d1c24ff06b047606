"""The content digest of a data set.

It depends on the columns' names, dtypes, shapes and bytes, and on where episodes begin; not on chunking,
compression, the number of workers or the version of HDF5. Columns are hashed episode by episode, so that
workers can hash the frames they rendered and nobody has to read them again:

    column = H(name, dtype, row shape, rows, H(episode 0), H(episode 1), …)
    file   = H(column of every name, sorted)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

SIZE = 16  # bytes of the hash of one episode of one column


def _bytes(rows: NDArray) -> memoryview | bytes:
    rows = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
    return rows.data.cast("B") if rows.size else b""


def hash_episodes(rows: NDArray, lengths: NDArray) -> bytes:
    """The hashes of consecutive episodes of `rows`, SIZE bytes each."""
    ends = np.cumsum(lengths)
    return b"".join(
        hashlib.blake2b(_bytes(rows[end - length : end]), digest_size=SIZE).digest()
        for end, length in zip(ends, lengths, strict=True)
    )


class ColumnHash:
    def __init__(self, name: str, dtype: np.dtype, row_shape: tuple[int, ...]):
        self.head = f"{name}|{np.dtype(dtype).newbyteorder('<').str}|{tuple(row_shape)}"
        self.rows = 0
        self._episodes = hashlib.blake2b(digest_size=SIZE)

    def add(self, rows: int, hashes: bytes) -> None:
        """Rows hashed by `hash_episodes`."""
        self.rows += rows
        self._episodes.update(hashes)

    def digest(self) -> str:
        text = f"{self.head}|{self.rows}|".encode() + self._episodes.digest()
        return hashlib.blake2b(text, digest_size=SIZE).hexdigest()


def hash_column(name: str, rows: NDArray, lengths: NDArray | None) -> str:
    """The digest of a whole column in memory; without lengths the column is one piece (`ep_len` itself)."""
    column = ColumnHash(name, rows.dtype, rows.shape[1:])
    column.add(len(rows), hash_episodes(rows, np.array([len(rows)]) if lengths is None else lengths))
    return column.digest()


def combine(columns: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(columns.items()))
    return hashlib.blake2b(text.encode(), digest_size=SIZE).hexdigest()
