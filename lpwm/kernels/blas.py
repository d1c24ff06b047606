"""Matrix products by cuBLASLt without a workspace, for the encoder's operator on CUDA.

With a workspace, as torch calls it, cuBLAS deals tiles out by a counter that it clears before every product: a launch
of its own, which with the waits around it costs 3 to 4 µs in a CUDA graph. Without one it runs the same kernels with
tiles dealt out in advance: on an H200 the eight such products of a block (20 to 70 µs) take 18 µs less together.
Products whose inner dimension is long, as for gradients of weights, want the workspace: leave those to torch.

The library is the one that torch has loaded, called through its public C interface. Where it is not found, or offers
nothing for a product, torch's product is used.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

# cublasLt.h and library_types.h
_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8  # of cublasLtMatmulDescAttributes_t
_EPILOGUE_BIAS = 4
_MAX_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)  # of cublasLtMatmulPreferenceAttributes_t: A, B, C, D
_MOST_ALIGNED = 256


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algo", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class _Key(NamedTuple):
    """What cuBLAS must know of out (m, n) = a (m, k) b (k, n): sizes, strides of rows, which are transposed."""

    m: int
    n: int
    k: int
    a: tuple[bool, int]
    b: tuple[bool, int]
    out: int
    wide: bool  # out is float32
    bias: bool
    grows: bool
    aligned: tuple[int, int, int]


class _Plan(NamedTuple):
    desc: c_void_p
    a: c_void_p
    b: c_void_p
    out: c_void_p
    algo: Any


class Lt:
    """cuBLASLt on one device."""

    def __init__(self, library: Any, stream: Callable[[], int]) -> None:
        self._library, self._stream = library, stream
        self._plans: dict[_Key, _Plan | None] = {}
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))

    def product(self, a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, grows: bool) -> bool:
        """Whether it was made; what it offers is asked for once for each kind of product."""
        key = _key(a, b, out, bias, grows)
        if key is None:
            return False
        if key not in self._plans:
            self._plans[key] = self._plan(key)
        plan = self._plans[key]
        if plan is None:
            return False
        if bias is not None:
            self._describe(plan.desc, _BIAS_POINTER, c_void_p(bias.data_ptr()))
        at = c_void_p(out.data_ptr())
        # A matrix by rows is its transpose by columns, as cuBLAS sees it: outᵀ = bᵀ aᵀ.
        self._call(
            "cublasLtMatmul",
            self._handle,
            plan.desc,
            byref(c_float(1.0)),
            c_void_p(b.data_ptr()),
            plan.b,
            c_void_p(a.data_ptr()),
            plan.a,
            byref(c_float(float(grows))),
            at,
            plan.out,
            at,
            plan.out,
            byref(plan.algo),
            c_void_p(),
            c_size_t(0),
            c_void_p(self._stream()),
        )
        return True

    def _plan(self, key: _Key) -> _Plan | None:
        desc, preference, count = c_void_p(), c_void_p(), c_int()
        self._call("cublasLtMatmulDescCreate", byref(desc), c_int(_COMPUTE_32F), c_int(_R_32F))
        for attribute, (transposed, _) in ((_TRANSA, key.b), (_TRANSB, key.a)):
            self._describe(desc, attribute, c_int(transposed))
        if key.bias:
            self._describe(desc, _EPILOGUE, c_int(_EPILOGUE_BIAS))
        b, a = self._layout(key.n, key.k, *key.b), self._layout(key.k, key.m, *key.a)
        out = self._layout(key.n, key.m, False, key.out, _R_32F if key.wide else _R_16BF)
        self._call("cublasLtMatmulPreferenceCreate", byref(preference))
        aligned = (key.aligned[1], key.aligned[0], key.aligned[2], key.aligned[2])
        wishes: list[tuple[int, Any]] = [(_MAX_WORKSPACE, c_uint64(0))]
        wishes += [(which, ctypes.c_uint32(n)) for which, n in zip(_ALIGNMENTS, aligned, strict=True)]
        for which, value in wishes:
            self._call(
                "cublasLtMatmulPreferenceSetAttribute",
                preference,
                c_int(which),
                byref(value),
                c_size_t(ctypes.sizeof(value)),
            )
        found = _Found()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, desc, b, a, out, out, preference, c_int(1), byref(found), byref(count)
        )
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        if status or count.value < 1 or found.state or found.workspace:
            return None
        return _Plan(desc, a, b, out, found.algo)

    def _layout(self, rows: int, cols: int, transposed: bool, stride: int, kind: int = _R_16BF) -> c_void_p:
        """Of a matrix that is rows × cols by columns once it is transposed, if it is."""
        layout = c_void_p()
        if transposed:
            rows, cols = cols, rows
        self._call(
            "cublasLtMatrixLayoutCreate", byref(layout), c_int(kind), c_uint64(rows), c_uint64(cols), c_int64(stride)
        )
        return layout

    def _describe(self, desc: c_void_p, attribute: int, value: Any) -> None:
        self._call(
            "cublasLtMatmulDescSetAttribute", desc, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value))
        )

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise RuntimeError(f"{name} returned {status}")


def _key(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, grows: bool) -> _Key | None:
    """None where cuBLAS cannot read the operands as they lie in memory."""
    sides = _side(a), _side(b), _side(out)
    if any(side is None for side in sides) or sides[2][0] or (bias is not None and bias.stride(0) != 1):  # type: ignore[index]
        return None
    wide = out.dtype == torch.float32 and bias is None
    if {t.dtype for t in (a, b, *([] if wide else [out]), *([] if bias is None else [bias]))} != {torch.bfloat16}:
        return None
    (m, k), n = a.shape, b.shape[1]
    aligned = tuple(min(_MOST_ALIGNED, t.data_ptr() & -t.data_ptr()) for t in (a, b, out))
    return _Key(m, n, k, sides[0], sides[1], sides[2][1], wide, bias is not None, grows, aligned)  # type: ignore[arg-type,index]


def _side(x: Tensor) -> tuple[bool, int] | None:
    """Whether a matrix lies in memory by columns, and how far apart its rows (or columns) are."""
    if x.stride(1) == 1 and x.stride(0) >= x.shape[1]:
        return False, x.stride(0)
    if x.stride(0) == 1 and x.stride(1) >= x.shape[0]:
        return True, x.stride(1)
    return None


@functools.cache
def _lt(device: torch.device) -> Lt | None:
    if device.type != "cuda" or not torch.version.cuda:
        return None
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
        with torch.cuda.device(device):
            return Lt(library, lambda: torch.cuda.current_stream(device).cuda_stream)
    except (OSError, AttributeError, RuntimeError):
        return None


def product(a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None = None, grows: bool = False) -> None:
    """out (m, n) = a (m, k) b (k, n), with `bias` (n) or, if it `grows`, with out added, which may be float32 then."""
    lt = _lt(out.device)
    if lt is not None and lt.product(a, b, out, bias, grows):
        return
    if grows and out.dtype != a.dtype:
        out += torch.mm(a, b)
    elif grows:
        out.addmm_(a, b)
    elif bias is not None:
        torch.addmm(bias, a, b, out=out)
    else:
        torch.mm(a, b, out=out)
