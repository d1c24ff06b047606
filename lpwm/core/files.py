"""Writing without regret: whole files or none, and a full disk as one sentence.

HDF5 cannot recover from a failed write (closing the file fails, and the process dies at exit), so it never
sees one: it writes through `Sink`, which remembers the first error and lets the caller raise it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from lpwm.core.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


def disk_error(error: OSError, path: Path) -> UserError:
    """The sentence for an error of the operating system while writing `path`."""
    if error.errno in _FULL:
        why = "the disk is full" if error.errno == errno.ENOSPC else "the file would exceed a size limit"
        return UserError(
            f"cannot write {path}: {why}; free some space or choose another folder, then run the same command "
            "again (what was stored before is kept)."
        )
    if error.errno in _REFUSED:
        return UserError(
            f"cannot write {path}: {os.strerror(error.errno or 0).lower()}; choose a folder you may write to."
        )
    return UserError(f"cannot write {path}: {error.strerror or error}.")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Errors of the operating system inside become one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


class Sink:
    """The file object HDF5 writes to. After the first failed write nothing more is written."""

    def __init__(self, path: Path):
        self.path = path
        self.error: OSError | None = None
        with disk_errors(path):
            self._file = path.open("w+b", buffering=0)

    def _try(self, call: Any, *args: Any) -> Any:
        if self.error is None:
            try:
                return call(*args)
            except OSError as error:
                self.error = error
        return None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.error is None:  # a raw file may write less than it was given
            done += self._try(self._file.write, view[done:]) or 0
        return len(view)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size) or b""

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer) or 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        self._try(self._file.truncate, size)
        return size or 0

    def flush(self) -> None:
        pass  # raw files hold nothing back; `sync` is what makes them durable

    def sync(self) -> None:
        self._try(os.fsync, self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def check(self) -> None:
        if self.error is not None:
            raise disk_error(self.error, self.path)


@contextlib.contextmanager
def new_file(path: Path, beside: Path | None = None) -> Iterator[tuple[h5py.File, Sink]]:
    """An HDF5 file that appears under `path` whole, at the end, or not at all.

    Until then it is a temporary file in the folder `beside` (of the same disk), or in that of `path`.
    """
    temporary = (beside or path.parent) / f".{path.name}.{os.getpid()}.tmp"
    sink = Sink(temporary)
    try:
        file = h5py.File(sink, "w")
        try:
            yield file, sink
        finally:
            file.close()
        sink.sync()
        sink.check()
        sink.close()
        with disk_errors(path):
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        sink.close()
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """A file that appears under its name whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with disk_errors(path):
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename durable; not every platform can open a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def refuse_existing(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: choose another name, or pass --overwrite to replace it.")


def make_folder(folder: Path) -> None:
    with disk_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:  # a file where a folder should be
            raise UserError(f"cannot write into {folder}: it is a file, not a folder.") from error


def need_space(path: Path, size: int) -> None:
    """Refuse before a long copy that cannot fit."""
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise UserError(
            f"cannot write {path}: it needs {size / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free; free "
            "some space or choose another folder, then run the same command again (what was stored is kept)."
        )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else path.stat().st_size
