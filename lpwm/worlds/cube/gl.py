"""An OpenGL context without a screen, for MuJoCo to draw in.

EGL when it works, otherwise OSMesa; the environment variable MUJOCO_GL (egl, osmesa) decides when it is set. Both are
called through ctypes, so that drawing needs `mujoco` and one system library, and so that the choice can be made by
trying, which MuJoCo's own contexts cannot: they are fixed when it is imported.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_uint, c_void_p
from typing import Any

from lpwm.core.errors import UserError

REMEDY = (
    "install one of them (Debian, Ubuntu: apt-get install libegl1 libopengl0 libgl1-mesa-dri, or libosmesa6; with "
    "an NVIDIA driver libegl1 and libopengl0 are enough)"
)
_VARIABLE = "MUJOCO_GL"


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


_PLATFORM_DEVICE, _NONE, _OPENGL_API, _OPENGL_BIT, _PBUFFER_BIT = 0x313F, 0x3038, 0x30A2, 0x0008, 0x0001
_SURFACE_TYPE, _RENDERABLE_TYPE, _DEPTH_SIZE = 0x3033, 0x3040, 0x3025
_RED_SIZE, _GREEN_SIZE, _BLUE_SIZE, _ALPHA_SIZE = 0x3024, 0x3023, 0x3022, 0x3021


class EGL:
    """A context on the first device that gives one; frames go to buffers of MuJoCo's own, so it has no surface."""

    name = "egl"

    def __init__(self) -> None:
        self._egl = _library("libEGL.so.1", "libEGL.so")
        _library("libOpenGL.so.0", "libGL.so.1", "libGL.so")
        self._egl.eglGetProcAddress.restype = c_void_p
        self._egl.eglCreateContext.restype = c_void_p
        self._display, config = self._first_display()
        self._egl.eglBindAPI(_OPENGL_API)
        made = self._egl.eglCreateContext(self._display, config, None, None)
        if not made:
            raise Missing("EGL gives no OpenGL context")
        self._context = c_void_p(made)

    def _extension(self, name: bytes, result: Any, *arguments: Any) -> Any:
        address = self._egl.eglGetProcAddress(name)
        if not address:
            raise Missing(f"EGL has no {name.decode()}")
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    def _first_display(self) -> tuple[c_void_p, c_void_p]:
        query = self._extension(b"eglQueryDevicesEXT", c_uint, c_int, c_void_p, c_void_p)
        display_of = self._extension(b"eglGetPlatformDisplayEXT", c_void_p, c_uint, c_void_p, c_void_p)
        devices, count = (c_void_p * 16)(), c_int()
        query(16, devices, byref(count))
        wanted = os.environ.get("MUJOCO_EGL_DEVICE_ID", "")
        numbers = [int(wanted)] if wanted.isdigit() else range(count.value)
        for i in numbers:
            display = c_void_p(display_of(_PLATFORM_DEVICE, devices[i] if i < 16 else None, None))
            if display.value and self._egl.eglInitialize(display, None, None):
                config = self._config(display)
                if config is not None:
                    return display, config
        raise Missing(f"EGL finds {count.value} devices and none of them works")

    def _config(self, display: c_void_p) -> c_void_p | None:
        want = [_SURFACE_TYPE, _PBUFFER_BIT, _RENDERABLE_TYPE, _OPENGL_BIT, _DEPTH_SIZE, 24]
        for color in (_RED_SIZE, _GREEN_SIZE, _BLUE_SIZE, _ALPHA_SIZE):
            want += [color, 8]
        attributes = (c_int * (len(want) + 1))(*want, _NONE)
        config, count = c_void_p(), c_int()
        ok = self._egl.eglChooseConfig(display, attributes, byref(config), 1, byref(count))
        return config if ok and count.value else None

    def make_current(self) -> None:
        if not self._egl.eglMakeCurrent(self._display, None, None, self._context):
            raise Missing("the EGL context cannot be made current")

    def release(self) -> None:
        self._egl.eglMakeCurrent(self._display, None, None, None)


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
    wanted = os.environ.get(_VARIABLE, "").lower().strip()
    if wanted and wanted not in CONTEXTS:
        raise UserError(f"{_VARIABLE}={wanted} cannot draw without a screen: set it to egl or osmesa, or unset it.")
    failures = []
    for name in [wanted] if wanted else CONTEXTS:
        try:
            context = CONTEXTS[name]()
            context.make_current()
            return context
        except Missing as why:
            failures.append(str(why))
    raise UserError(f"drawing Cube needs EGL or OSMesa ({'; '.join(failures)}): {REMEDY}.")


def import_mujoco() -> Any:
    """The package `mujoco`, imported without a context of its own; or one sentence."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "disabled"
    try:
        import mujoco
    except ImportError as error:
        raise UserError(f"the Cube world needs mujoco ({error}): pip install 'lpwm[cube]'.") from error
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
    return mujoco
