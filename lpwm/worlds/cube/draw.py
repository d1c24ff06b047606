"""Frames of Cube states: MuJoCo's own renderer, the camera `front`, in this process or over all cores.

A frame takes a tenth of a second without a GPU, so batches are shared out over worker processes, each with a context
of its own; with one, milliseconds, and small batches are drawn here. Inside a worker process (of a collection, say)
frames are drawn there and then.
"""

from __future__ import annotations

import atexit
import functools
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.worlds.cube.gl import import_mujoco, open_context
from lpwm.worlds.cube.model import scene
from lpwm.worlds.cube.sim import NQ
from lpwm.worlds.pool import cores, start_worker, worker_context

CAMERA = "front"
CHUNK = 8  # frames given to a worker at a time
ALONE = 32  # fewer frames than this are not worth waking workers for
ALONE_S = 2.0  # nor is less drawing than this, in seconds: a GPU draws a frame in milliseconds, workers take seconds

Frames = NDArray[np.uint8]
LARGEST = 2048  # pixels a side


class Painter:
    """Draws frames of any size; the scene is given to the graphics library once."""

    def __init__(self) -> None:
        self._mujoco = mujoco = import_mujoco()
        self._model = model = scene().model
        self._size = 0
        self.pace = math.inf  # seconds a frame, the fastest so far
        self._data = mujoco.MjData(model)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._look = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = model.camera(CAMERA).id
        self._turn = threading.Lock()
        if multiprocessing.parent_process() is not None:
            os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's own threads: the other cores are the other workers'
        self.context = open_context()
        self._gl = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._gl)
        self.context.release()

    def paint(self, qpos: NDArray[Any], size: int) -> Frames:
        """(N, 21) -> (N, size, size, 3)."""
        mujoco, model, data = self._mujoco, self._model, self._data
        out = np.empty((len(qpos), size, size, 3), np.uint8)
        rectangle = mujoco.MjrRect(0, 0, size, size)
        with self._turn:
            self.context.make_current()
            began = time.perf_counter()
            if size != self._size:
                mujoco.mjr_resizeOffscreen(size, size, self._gl)
                self._size = size
            for row, frame in zip(qpos, out, strict=True):
                data.qpos[:] = row
                mujoco.mj_fwdPosition(model, data)
                everything = mujoco.mjtCatBit.mjCAT_ALL
                mujoco.mjv_updateScene(model, data, self._look, None, self._camera, everything, self._scene)
                mujoco.mjr_render(rectangle, self._scene, self._gl)
                mujoco.mjr_readPixels(frame, None, rectangle, self._gl)
            self.pace = min(self.pace, (time.perf_counter() - began) / max(len(qpos), 1))
            self.context.release()
        return np.ascontiguousarray(out[:, ::-1])  # OpenGL's first row is the lowest


@functools.cache
def painter() -> Painter:
    """This process's."""
    return Painter()


def backend() -> str:
    """egl or osmesa: what this process draws with."""
    return painter().context.name


def _quick(qpos: NDArray[Any], size: int) -> bool:
    """Whether this process draws all of it before workers could have begun. Finding out takes a few frames, once."""
    one = painter()
    if math.isinf(one.pace):
        one.paint(qpos[:2], size)  # the first frames also compile and allocate
        one.paint(qpos[:CHUNK], size)
    return len(qpos) * one.pace < ALONE_S


def _paint(size: int, qpos: NDArray[Any]) -> Frames:
    return painter().paint(qpos, size)


@functools.cache
def _workers() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(cores(), mp_context=worker_context(), initializer=start_worker)
    atexit.register(pool.shutdown, wait=False, cancel_futures=True)
    return pool


def draw(state: NDArray[Any], size: int) -> Frames:
    """States (N, S) -> frames (N, size, size, 3)."""
    if not 8 <= size <= LARGEST:
        raise UserError(f"Cube frames need a positive side, of 8 to {LARGEST} pixels, not {size}.")
    qpos = np.asarray(state, np.float64)[:, :NQ]
    if len(qpos) < ALONE or cores() == 1 or multiprocessing.parent_process() is not None or _quick(qpos, size):
        return _paint(size, qpos)
    work: Callable[[NDArray[Any]], Frames] = functools.partial(_paint, size)
    try:
        return np.concatenate(list(_workers().map(work, [qpos[i : i + CHUNK] for i in range(0, len(qpos), CHUNK)])))
    except BrokenProcessPool as error:
        _workers.cache_clear()
        raise UserError(
            "a process that draws frames died (out of memory?): try again with fewer other programs. A script that "
            "draws many Cube frames must do so under if __name__ == '__main__'."
        ) from error
