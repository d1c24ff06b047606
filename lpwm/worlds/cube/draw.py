"""Frames of Cube states: MuJoCo's own renderer, the camera `front`, in this process or over all cores.

A frame takes a tenth of a second without a GPU, so batches are shared out over worker processes, each with a context
of its own; with one, milliseconds, and small batches are drawn here. Inside a worker process (of a collection, say)
frames are drawn there and then.

MuJoCo draws in an OpenGL context without a screen: EGL when it works, otherwise OSMesa; the environment variable
MUJOCO_GL (egl, osmesa) decides when it is set. OSMesa is called through ctypes: after MuJoCo's EGL was tried, its own
OSMesa can no longer be imported.
"""

import atexit
import ctypes
import functools
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.worlds.cube.model import GL_VARIABLE, import_mujoco, scene
from lpwm.worlds.cube.sim import NQ
from lpwm.worlds.pool import cores, start_worker, worker_context

CAMERA = "front"
CHUNK = 8  # frames given to a worker at a time
ALONE = 32  # fewer frames than this are not worth waking workers for
ALONE_S = 2.0  # nor is less drawing than this, in seconds: a GPU draws a frame in milliseconds, workers take seconds

Frames = NDArray[np.uint8]
LARGEST = 2048  # pixels a side


REMEDY = (
    "install one of them (Debian, Ubuntu: apt-get install libegl1 libopengl0 libgl1-mesa-dri, or libosmesa6; with "
    "an NVIDIA driver libegl1 and libopengl0 are enough)"
)


class Missing(Exception):
    """This kind of context does not work here; why, in a few words."""


def _library(*names: str) -> Any:
    """The first of these libraries that loads, its symbols visible to MuJoCo, which looks for them by name."""
    for name in names:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise Missing(f"no {names[0]}")


class EGL:
    """MuJoCo's own, on the first device that gives a display; frames go to buffers, so it has no surface."""

    name = "egl"

    def __init__(self) -> None:
        _library("libEGL.so.1", "libEGL.so")
        _library("libOpenGL.so.0", "libGL.so.1", "libGL.so")
        try:
            from mujoco import egl

            self._module, self._context = egl, egl.GLContext(16, 16)
            atexit.register(self._context.free)
        except Exception as error:  # whatever PyOpenGL makes of a library or a driver that is not as it should be
            raise Missing(f"EGL does not work: {(str(error).splitlines() or [''])[0][:100]}") from error

    def make_current(self) -> None:
        self._context.make_current()

    def release(self) -> None:
        egl = self._module.EGL
        egl.eglMakeCurrent(self._module.EGL_DISPLAY, egl.EGL_NO_SURFACE, egl.EGL_NO_SURFACE, egl.EGL_NO_CONTEXT)


class OSMesa:
    """Mesa's drawing in memory: no device, no driver."""

    name = "osmesa"

    def __init__(self) -> None:
        self._mesa = _library("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
        self._mesa.OSMesaCreateContextExt.restype = c_void_p
        rgba, depth, stencil, accumulate = 0x1908, 24, 8, 0
        made = self._mesa.OSMesaCreateContextExt(rgba, depth, stencil, accumulate, None)
        if not made:
            raise Missing("OSMesa gives no context")
        self._context = c_void_p(made)
        self._canvas = ctypes.create_string_buffer(16 * 16 * 4)  # it wants one; MuJoCo draws in its own buffers

    def make_current(self) -> None:
        unsigned_byte = 0x1401
        if not self._mesa.OSMesaMakeCurrent(self._context, self._canvas, unsigned_byte, 16, 16):
            raise Missing("the OSMesa context cannot be made current")

    def release(self) -> None:
        self._mesa.OSMesaMakeCurrent(None, None, 0, 0, 0)


CONTEXTS: dict[str, type[EGL] | type[OSMesa]] = {"egl": EGL, "osmesa": OSMesa}


def open_context() -> EGL | OSMesa:
    """A context that is current, or one sentence saying what to install."""
    wanted = os.environ.get(GL_VARIABLE, "").lower().strip()
    if wanted and wanted not in CONTEXTS:
        raise UserError(f"{GL_VARIABLE}={wanted} cannot draw without a screen: set it to egl or osmesa, or unset it.")
    failures = []
    for name in [wanted] if wanted else CONTEXTS:
        try:
            context = CONTEXTS[name]()
            context.make_current()
            return context
        except Missing as why:
            failures.append(str(why))
    raise UserError(f"drawing Cube needs EGL or OSMesa ({'; '.join(failures)}): {REMEDY}.")


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
