"""A process that reads frames into shared memory: `python -m lpwm.data.frames.worker FD`, started by FramePool.

Its standard input brings first the length of a JSON text and that text (where the frames are, the shape of a frame,
frames of a slot, slots), then orders (slot, first, last): read the frames at positions first…last−1 of the slot, whose
rows stand before them. Its standard output answers each order with (slot, bytes of a sentence) and the sentence, which
is empty when all went well. When the other end closes, by whatever death, the worker ends.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDER, ANSWER, HEAD = struct.Struct("<3q"), struct.Struct("<2q"), struct.Struct("<q")
PAGE = mmap.PAGESIZE


def slot_bytes(count: int, shape: tuple[int, int, int]) -> tuple[int, int]:
    """Bytes of the rows and of the frames of a slot, in whole pages."""
    return tuple(-(-size // PAGE) * PAGE for size in (8 * count, count * int(np.prod(shape))))  # type: ignore[return-value]


def slot_views(
    buffer: mmap.mmap, slot: int, count: int, shape: tuple[int, int, int]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The rows (count,) and the frames (count, 3, h, w) of a slot; shape is (h, w, 3)."""
    rows, frames = slot_bytes(count, shape)
    start = slot * (rows + frames)
    h, w, c = shape
    return (
        np.frombuffer(buffer, np.int64, count, start),
        np.frombuffer(buffer, np.uint8, count * c * h * w, start + rows).reshape(count, c, h, w),
    )


def serve(descriptor: int, stdin: int, stdout: int) -> None:
    from lpwm.data.frames import open_reader

    plan = json.loads(_exactly(stdin, HEAD.unpack(_exactly(stdin, HEAD.size))[0]))
    count, shape, slots = plan["count"], tuple(plan["shape"]), plan["slots"]
    buffer = mmap.mmap(descriptor, slots * sum(slot_bytes(count, shape)))
    views = [slot_views(buffer, slot, count, shape) for slot in range(slots)]
    reader: Any = None
    while True:
        slot, first, last = ORDER.unpack(_exactly(stdin, ORDER.size))
        problem = ""
        try:
            reader = reader or open_reader(plan["where"])
            rows, frames = views[slot]
            for position, frame in reader(rows[first:last]):
                frames[first + position] = frame.transpose(2, 0, 1)
        except Exception as error:
            problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        text = problem.encode()
        os.write(stdout, ANSWER.pack(slot, len(text)) + text)


def _exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


if __name__ == "__main__":
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not look like an answer
    try:
        serve(int(sys.argv[1]), 0, answers)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the run that started it is gone
