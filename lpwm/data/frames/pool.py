"""Worker processes that read stored frames into slots of shared memory, ahead of their use.

The memory is a file without a name (memfd): nothing of it outlives the processes, and a container's small /dev/shm does
not limit it. Workers ignore Ctrl-C (they are in a session of their own) and end when the pipe from here closes.

A worker is `python -m lpwm.data.frames.pool FD`. It gets lines of JSON: where the frames are, and the shape of the
memory (slots, frames, 3, h, w); then orders [slot, first, rows]: read these rows into positions first… of the slot. It
answers each order with [slot, sentence], empty when all went well.
"""

import contextlib
import ctypes
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

import lpwm
from lpwm.core.errors import UserError
from lpwm.data.frames import StoredFrames, open_reader

_PATIENCE = 5.0  # seconds a worker has to leave by itself


class FramePool:
    """`slots` slots of `count` frames each. fill(slot, rows) starts reading, wait(slot) returns the frames."""

    def __init__(self, frames: StoredFrames, count: int, slots: int, workers: int):
        height, width, channels = frames.shape[1:]
        shape = (slots, count, channels, height, width)
        self.bytes = math.prod(shape)
        self._descriptor = _memory(self.bytes)
        self.buffer = mmap.mmap(self._descriptor, self.bytes)
        self._slots = np.frombuffer(self.buffer, np.uint8).reshape(shape)
        self._workers = [self._start() for _ in range(min(workers, count))]
        self._pending = [dict.fromkeys(range(slots), False) for _ in self._workers]
        self._edges = np.linspace(0, count, len(self._workers) + 1).astype(int).tolist()
        self._close = weakref.finalize(self, _shut, self._workers, self._descriptor)
        for worker in self._workers:
            self._send(worker, [frames.where, shape])

    @property
    def processes(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def address(self) -> int:
        """Where the memory begins, for pinning it."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))

    def fill(self, slot: int, rows: NDArray[np.int64]) -> None:
        """Start reading; whatever was still being read into the slot is waited for and lost."""
        self.wait(slot)
        for i, (worker, pending) in enumerate(zip(self._workers, self._pending, strict=True)):
            pending[slot] = True
            first, last = self._edges[i : i + 2]
            self._send(worker, [slot, first, rows[first:last].tolist()])

    def wait(self, slot: int) -> NDArray[np.uint8]:
        """The frames (count, 3, h, w) of the slot: a view, good until it is filled again."""
        if not self._close.alive:
            raise UserError("the processes that read the frames have ended: start the same command again.")
        for worker, pending in zip(self._workers, self._pending, strict=True):
            while pending[slot]:  # a worker answers in the order of its orders
                assert worker.stdout is not None
                line = worker.stdout.readline()
                if not line.endswith("\n"):
                    raise self._died(worker)
                done, problem = json.loads(line)
                pending[done] = False
                if problem:
                    self.close()
                    raise UserError(problem)
        return self._slots[slot]

    def close(self) -> None:
        self._close()

    def _start(self) -> subprocess.Popen[str]:
        path = [str(Path(lpwm.__file__).parents[1]), *filter(None, sys.path)]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lpwm.data.frames.pool", str(self._descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(self._descriptor,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        )

    def _send(self, worker: subprocess.Popen[str], message: Any) -> None:
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(message) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:
            raise self._died(worker) from None

    def _died(self, worker: subprocess.Popen[str]) -> UserError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(_PATIENCE)
        code = worker.returncode
        self.close()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        hint = ", often for want of memory" if code == -9 else ""
        return UserError(f"a process that reads frames died ({how}{hint}): start the same command again to continue.")


def _memory(size: int) -> int:
    """A descriptor of shared memory of this size."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("lpwm-frames")
    else:  # not Linux: a file that has lost its name
        descriptor, name = tempfile.mkstemp(prefix="lpwm-frames-")
        os.unlink(name)
    os.ftruncate(descriptor, size)
    return descriptor


def _shut(workers: list[Any], descriptor: int) -> None:
    for worker in workers:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()
    for worker in workers:
        try:
            worker.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # stuck on a disk that does not answer
            worker.kill()
        worker.stdout.close()
    with contextlib.suppress(OSError):
        os.close(descriptor)


def serve(descriptor: int, orders: TextIO, answers: TextIO) -> None:
    where, shape = json.loads(orders.readline())
    slots = np.frombuffer(mmap.mmap(descriptor, math.prod(shape)), np.uint8).reshape(shape)
    reader: Any = None
    for line in orders:
        slot, first, rows = json.loads(line)
        problem = ""
        try:
            reader = reader or open_reader(where)
            for position, frame in reader(np.array(rows, np.int64)):
                slots[slot, first + position] = frame.transpose(2, 0, 1)
        except Exception as error:
            problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        answers.write(json.dumps([slot, problem]) + "\n")
        answers.flush()


if __name__ == "__main__":
    answers = open(os.dup(1), "w")  # noqa: SIM115
    os.dup2(2, 1)  # what a library prints must not look like an answer
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, ValueError):  # ValueError: half a line
        serve(int(sys.argv[1]), sys.stdin, answers)
    os._exit(0)  # the run that started it is gone
