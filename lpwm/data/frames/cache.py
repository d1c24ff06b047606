"""Frames decoded once: a file of raw frames, read back at the speed of the disk.

FOLDER/frames-KEY.npy holds uint8 (N, 3, h, w). The key is that of the data set, the sizes and times of the files its
frames are in, and the size they were brought to; not where they are, so both folders can be moved. The file appears
when it is complete. Processes that want the same one wait for the first; where a disk has no locks each writes its own,
and they are alike.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, need_space, replacing
from lpwm.data.frames import FrameReader, Rows, StoredFrames

_FRAMES = 256  # decoded at a time


class CachedFrames(StoredFrames):
    def __init__(self, path: Path, slow: bool):
        self.path, self.slow = path, slow  # slow as the original: a cache does not change which frames are used
        rows, _, height, width = _open(str(path)).shape
        self.shape = (rows, height, width, 3)

    @property
    def where(self) -> dict[str, Any]:
        return {"kind": "cache", "path": str(self.path.absolute())}


class CacheReader(FrameReader):
    def __init__(self, path: str):
        self._frames = _open(path)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        for position, row in enumerate(rows.tolist()):
            yield position, self._frames[row].transpose(1, 2, 0)


def _open(path: str) -> NDArray[np.uint8]:
    try:
        frames = np.load(path, mmap_mode="r")
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1] != 3:
            raise ValueError(f"{frames.dtype} {frames.shape}")
        return frames
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is no cache of frames: delete it, and it is made again.") from error


def cached(frames: StoredFrames, digest: str, folder: Path, size: int | None, workers: int) -> CachedFrames:
    """`frames` of the data set `digest`, decoded and brought to `size` once, in `folder`."""
    shape = frames.shape[1:3] if size is None else (size, size)
    path = folder / f"frames-{_key(frames, digest, shape)}.npy"
    if not path.exists():
        make_folder(folder)
        with _alone(path.with_suffix(".lock")):
            if not path.exists():
                _write(path, frames, shape, workers)
    made = CachedFrames(path, frames.slow)
    if made.shape != (frames.shape[0], *shape, 3):
        raise UserError(f"{path} is no cache of these frames: delete it, and it is made again.")
    return made


def _key(frames: StoredFrames, digest: str, shape: tuple[int, ...]) -> str:
    where = dict(frames.where)
    files = where.pop("files", None) or [where.pop("path")]
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    stats = {file: os.stat(file) for file in set(files)}
    described = [(os.path.relpath(file, root), stats[file].st_size, stats[file].st_mtime_ns) for file in files]
    text = json.dumps([digest, where, described, shape], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time, where the platform and the disk have locks. They end with their process."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            file = stack.enter_context(lock.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(lock.unlink, missing_ok=True)
        yield


def _write(path: Path, frames: StoredFrames, shape: tuple[int, ...], workers: int) -> None:
    import torch  # not for the processes that read

    from lpwm.data.clips import resize
    from lpwm.data.frames.pool import FramePool

    frames.check()
    rows, count = frames.shape[0], min(_FRAMES, frames.shape[0])
    need_space(path, rows * 3 * shape[0] * shape[1])
    pool = FramePool(frames, count, 2, workers)
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (rows, 3, *shape)}
            np.lib.format.write_array_header_2_0(file, header)
            for turn, start in enumerate(range(0, rows + count, count)):
                if start < rows:
                    pool.fill(turn % 2, np.minimum(np.arange(start, start + count), rows - 1))
                if turn:
                    made = torch.from_numpy(pool.wait(1 - turn % 2)[: rows - start + count])
                    file.write(resize(made, shape).contiguous().numpy().data)  # type: ignore[arg-type]
    finally:
        pool.close()
