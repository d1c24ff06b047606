"""Worker processes that read stored frames into slots of shared memory, ahead of their use.

The memory is a file without a name (memfd), so nothing of it outlives the processes, and the small /dev/shm of a
container does not limit it. Workers ignore Ctrl-C (they are in a session of their own) and end when the pipe from
here closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import selectors
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lpwm
from lpwm.core.errors import UserError
from lpwm.data.frames import StoredFrames
from lpwm.data.frames.worker import ANSWER, HEAD, ORDER, slot_bytes, slot_views

_PATIENCE = 5.0  # seconds a worker has to leave by itself


class FramePool:
    """`slots` slots of `count` frames each. fill(slot, rows) starts reading, wait(slot) returns the frames."""

    def __init__(self, frames: StoredFrames, count: int, slots: int, workers: int):
        self.count, self.slots = count, slots
        self.shape: tuple[int, int, int] = tuple(frames.shape[1:])  # type: ignore[assignment]
        self.bytes = slots * sum(slot_bytes(count, self.shape))
        self._descriptor = _memory(self.bytes)
        self.buffer = mmap.mmap(self._descriptor, self.bytes)
        self._views = [slot_views(self.buffer, slot, count, self.shape) for slot in range(slots)]
        self._pending = [0] * slots
        self._plan = json.dumps({"where": frames.where, "count": count, "shape": self.shape, "slots": slots}).encode()
        self._workers = [self._start() for _ in range(min(workers, count))]
        self._selector = selectors.DefaultSelector()
        self._close = weakref.finalize(self, _shut, self._workers, self._selector, self._descriptor)
        for worker in self._workers:
            self._selector.register(worker.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            self._send(worker, HEAD.pack(len(self._plan)) + self._plan)

    @property
    def processes(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def address(self) -> int:
        """Where the memory begins, for pinning it."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))

    def fill(self, slot: int, rows: NDArray[np.int64]) -> None:
        """Start reading; whatever was still being read into the slot is waited for and lost."""
        self._check_open()
        if self._pending[slot]:
            self.wait(slot)
        self._views[slot][0][:] = rows
        edges = np.linspace(0, self.count, len(self._workers) + 1).astype(int)
        self._pending[slot] = len(self._workers)
        for worker, first, last in zip(self._workers, edges[:-1], edges[1:], strict=True):
            self._send(worker, ORDER.pack(slot, first, last))

    def wait(self, slot: int) -> NDArray[np.uint8]:
        """The frames (count, 3, h, w) of the slot: a view, good until it is filled again."""
        self._check_open()
        while self._pending[slot]:
            for key, _ in self._selector.select():
                self._answer(key.data)
        return self._views[slot][1]

    def close(self) -> None:
        self._close()

    def _start(self) -> subprocess.Popen:
        path = [str(Path(lpwm.__file__).parents[1]), *filter(None, sys.path)]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lpwm.data.frames.worker", str(self._descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=(self._descriptor,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        )

    def _check_open(self) -> None:
        if not self._close.alive:
            raise UserError("the processes that read the frames have ended: start the same command again.")

    def _send(self, worker: subprocess.Popen, data: bytes) -> None:
        assert worker.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[worker.stdin.write(view) :]
        except BrokenPipeError:
            raise self._died(worker) from None

    def _answer(self, worker: subprocess.Popen) -> None:
        slot, size = ANSWER.unpack(self._receive(worker, ANSWER.size))
        problem = self._receive(worker, size).decode(errors="replace")
        self._pending[slot] -= 1
        if problem:
            self.close()
            raise UserError(problem)

    def _receive(self, worker: subprocess.Popen, size: int) -> bytes:
        assert worker.stdout is not None
        data = b""
        while len(data) < size:
            piece = worker.stdout.read(size - len(data))
            if not piece:
                raise self._died(worker)
            data += piece
        return data

    def _died(self, worker: subprocess.Popen) -> UserError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(_PATIENCE)
        code = worker.returncode
        self.close()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        hint = ", often for want of memory" if code == -9 else ""
        return UserError(
            f"a process that reads the frames died ({how}{hint}): start the same command again to continue from the "
            "last checkpoint."
        )


def _memory(size: int) -> int:
    """A descriptor of shared memory of this size."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("lpwm-frames")
    else:  # not Linux: a file that has lost its name
        descriptor, name = tempfile.mkstemp(prefix="lpwm-frames-")
        os.unlink(name)
    os.ftruncate(descriptor, size)
    return descriptor


def _shut(workers: list[Any], selector: selectors.BaseSelector, descriptor: int) -> None:
    selector.close()
    for worker in workers:
        worker.stdin.close()
    for worker in workers:
        try:
            worker.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # stuck on a disk that does not answer
            worker.kill()
        worker.stdout.close()
    with contextlib.suppress(OSError):
        os.close(descriptor)
