"""Every write of a file or folder: whole or absent under its final name, with the user's umask, errors as one sentence.

    write_whole   text or bytes         new_file   HDF5              scratch, put   a folder
    write_once    the first one wins    replacing  whatever a library writes by name

HDF5 cannot recover from a failed write (closing the file fails, and the process dies at exit), so it never
sees one: it writes through `Sink`, which remembers the first error and lets the caller raise it.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpwm.core.errors import UserError

if TYPE_CHECKING:
    import h5py

TEMPORARY = ".lpwm-tmp-"  # folders that are being written or deleted
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}  # a disk without hard links
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


def disk_error(error: OSError, path: Path) -> UserError:
    """The sentence for an error of the operating system while writing `path`."""
    full = error.errno == errno.ENOSPC or "No space left" in str(error)  # Lance gives no number
    if full or error.errno in _FULL:
        why = "the disk is full" if full else "the file would exceed a size limit"
        return UserError(
            f"cannot write {path}: {why}; free some space or choose another folder, then run the same command "
            "again (what was stored before is kept)."
        )
    if error.errno in _REFUSED:
        return UserError(
            f"cannot write {path}: {os.strerror(error.errno or 0).lower()}; choose a folder you may write to."
        )
    if error.errno == errno.ENAMETOOLONG:
        return UserError(f"cannot write {path}: the name is too long; choose a shorter one.")
    if error.errno == errno.ENOENT:
        return UserError(f"cannot write {path}: its folder is gone; put it back, or run the command again.")
    return UserError(f"cannot write {path}: {error.strerror or error}; check the disk, then run the command again.")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Errors of the operating system inside become one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


class Sink:
    """The file object HDF5 writes to. After the first failed write nothing more is written."""

    def __init__(self, path: Path, final: Path):
        """`final`: the name in error messages."""
        self.final = final
        self.error: OSError | None = None
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

    def __getattr__(self, name: str) -> Any:
        """Reading, seeking and closing are the file's own."""
        return getattr(self._file, name)

    def truncate(self, size: int | None = None) -> int:
        self._try(self._file.truncate, size)
        return size or 0

    def flush(self) -> None:
        pass  # raw files hold nothing back

    def check(self) -> None:
        if self.error is not None:
            raise disk_error(self.error, self.final)


def _temporary(path: Path, suffix: str = "") -> Path:
    """A name of this thread's own in the folder of `path`."""
    return path.parent / (f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp{suffix}")


@contextlib.contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """A file that appears under `path` whole, when the block ends without an error, or not at all.

    What is written goes to the name that is yielded, which ends like `path` for libraries that choose a format by it.
    Errors of the operating system become one sentence.
    """
    temporary = temporary or _temporary(path, path.suffix)
    try:
        with disk_errors(path):
            yield temporary
        _rename(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _rename(temporary: Path, path: Path) -> None:
    with disk_errors(path):
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears under its name whole, or not at all."""
    with replacing(path, _temporary(path)) as temporary:
        _write(temporary, content.encode() if isinstance(content, str) else content)


def write_once(path: Path, content: str) -> bool:
    """Write a file under a name that nobody has: whole, durable, and by one process only. False: the name is taken."""
    temporary = _temporary(path)
    with disk_errors(path):
        try:
            _write(temporary, content.encode())
            sync(temporary)
            _link(temporary, path)
        except FileExistsError:
            if temporary.stat().st_nlink < 2:  # 2: linked after all, and a network disk repeated a lost reply
                return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    sync(path.parent)
    return True


def _link(temporary: Path, path: Path) -> None:
    """Give a file a second name that nobody has."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path.open("xb").close()  # by one process only
        os.replace(temporary, path)


@contextlib.contextmanager
def new_file(path: Path, folder: Path | None = None) -> "Iterator[tuple[h5py.File, Sink]]":
    """An HDF5 file that appears under `path` whole, at the end, or not at all. Until then it is a temporary file in
    `folder` (of the same disk), or in that of `path`."""
    import h5py

    temporary = _temporary((folder or path.parent) / path.name)
    with disk_errors(path):
        sink = Sink(temporary, path)
    try:
        file = h5py.File(sink, "w")
        try:
            yield file, sink
        finally:
            file.close()
        sink.check()
        _rename(temporary, path)
    finally:
        sink.close()
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(root: Path, name: str) -> Iterator[Path]:
    """An empty folder under a temporary name in `root`, gone at the end unless it was renamed."""
    make_folder(root)
    temporary = root / f"{TEMPORARY}{name}-{os.getpid()}-{secrets.token_hex(4)}"  # process ids repeat in containers
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put(temporary: Path, final: Path) -> None:
    """Give a complete folder its name. One that has the name already is kept as `.old` until this is done."""
    old = final.with_name(final.name + ".old")
    if final.exists():
        remove(old)
        os.rename(final, old)
    os.rename(temporary, final)
    sync(final.parent)
    remove(old)


def remove(folder: Path) -> None:
    """Delete a folder; one that is half deleted never stands under its own name."""
    if folder.exists():
        doomed = folder.with_name(f"{TEMPORARY}{folder.name}-gone-{os.getpid()}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk; not every platform can open a folder."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        if not path.is_dir():
            raise


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a regular file, `most` + 1 of them at most; a pipe or a device is refused, not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file: give the file itself.")
    with open(descriptor, "rb") as file:
        return file.read(min(most, os.fstat(descriptor).st_size) + 1)  # read allocates what it is told to


def regular(path: Path) -> Path:
    """The path, if a file is there: opening a pipe would wait for ever, and no file has a name that is too long."""
    try:
        what = "" if path.is_file() else "is not a regular file" if path.exists() else "does not exist"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    if what:
        raise UserError(f"{str(path)[:200]} {what}: copy the whole data set again.")
    return path


def read_npz(path: Path, most: int) -> dict[str, Any]:
    """The arrays of an .npz file that unpacks to at most `most` bytes; UserError for anything else."""
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path, most))) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > most:
                raise UserError(f"{path} unpacks to more than {most >> 20} MB: it is no file of lpwm.")
            arrays = {}
            for entry in packed.infolist():
                with packed.open(entry) as file:
                    raw = io.BytesIO(file.read(entry.file_size))  # all of it: the archive's own checksum is tested
                arrays[entry.filename.removesuffix(".npy")] = np.lib.format.read_array(raw, allow_pickle=False)
            return arrays
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds on damaged files
        raise UserError(f"{path} is damaged ({type(error).__name__}): it is made anew when it is needed.") from error


def fingerprint(path: Path) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def _check_regular(path: Path) -> None:
    """Refuse a folder, and a device or a pipe, which would be replaced or waited for."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the name of a file.")
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: give the name of one.")


def refuse_existing(path: Path, overwrite: bool) -> None:
    _check_regular(path)
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: choose another name, or pass --overwrite to replace it.")


PACKAGE = Path(__file__).resolve().parents[1]
MARK = "lpwm figure"  # in the metadata of pictures
_MADE = re.compile(rb'"kind": ?"lpwm |name="generator" content="lpwm |' + MARK.encode())


def check_output(path: Path, overwrite: bool = False) -> None:
    """Refuse a place in the installed package, and a file that lpwm did not make, unless told to overwrite it."""
    _check_outside(path)
    _check_regular(path)
    if overwrite or not path.exists():
        return
    with disk_errors(path), path.open("rb") as file:
        head = file.read(1 << 16)
        file.seek(max(0, path.stat().st_size - (1 << 12)))
        if head and not _MADE.search(head + file.read()):
            raise UserError(f"{path} was not made by lpwm: choose another name, or replace it with --overwrite.")


def _check_outside(path: Path) -> None:
    if path.resolve().is_relative_to(PACKAGE):
        raise UserError(f"{path} is inside the installed package, where nothing is written: choose another place.")


def make_folder(folder: Path) -> None:
    _check_outside(folder)
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
            f"cannot write {path}: it needs {size / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB free; free "
            "some space or choose another folder, then run the same command again (what was stored is kept)."
        )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else path.stat().st_size
