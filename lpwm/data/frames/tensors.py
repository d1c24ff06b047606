"""Numbers out of pickles made by strangers, without running anything in them.

`.pth` files go through torch's own restricted reader (weights_only), and only plain tensors of numbers come out.
`.pkl` files go through an unpickler that knows lists, tuples, dictionaries, numbers and text, which need no code, and
stand-ins for the few names with which numpy writes its arrays; any other name ends the reading. The stand-ins hold what
they are given; the array is made afterwards, from its bytes, shape and kind of number.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.data.frames.base import EpisodeFiles, Rows, by_episode

_MOST = 64 << 20  # bytes of a .pkl: lengths of a million episodes take less
_KINDS = frozenset("fiub")
_BROKEN = (
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OSError,
    OverflowError,
    MemoryError,
    UnicodeDecodeError,
    ImportError,
    RecursionError,
)


def missing(path: Path) -> UserError:
    return UserError(f"{path} does not exist: copy the whole folder, as it was published.")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]


def load_tensor(path: Path | str) -> torch.Tensor:
    """The one tensor of numbers in a `.pth` file, in memory only where it is touched."""
    path = Path(path)
    if not path.is_file():
        raise missing(path)
    try:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:  # files of before 2020 are no archives and cannot be mapped
            if "mmap" not in str(error):
                raise
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} is refused: it is damaged, or holds more than tensors of numbers, and nothing in it was executed."
        ) from error
    except _BROKEN as error:
        raise UserError(f"{path} is no file of tensors, or is damaged: copy it again.") from error
    plain = type(found) is torch.Tensor and found.layout is torch.strided and found.device.type == "cpu"
    if not plain or found.is_quantized or found.is_complex():
        raise UserError(f"{path} holds {type(found).__name__}, expected one tensor of numbers: copy it again.")
    if found.numel() * found.element_size() > found.untyped_storage().nbytes():
        raise UserError(f"{path} claims a tensor of {tuple(found.shape)} that it does not hold: copy it again.")
    return found


class _Array:
    """Stands in for numpy's array: filled by the pickle, made by `build`."""

    def __init__(self, *_: object):
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> NDArray:
        _, shape, kind, fortran, data = self.state
        if not isinstance(data, bytes) or not isinstance(kind, _Kind):
            raise pickle.UnpicklingError("an array of something else than numbers")
        values = np.frombuffer(data, kind.build())
        if math.prod(shape) != len(values):
            raise pickle.UnpicklingError("an array that is larger than its bytes")
        return values.reshape(shape, order="F" if fortran else "C")


class _Kind:
    """Stands in for numpy's dtype."""

    def __init__(self, name: str = "", *_: object):
        self.name, self.big = name, False

    def __setstate__(self, state: Any) -> None:
        self.big = state[1] == ">"

    def build(self) -> np.dtype:
        kind = np.dtype(self.name)
        if kind.kind not in _KINDS:
            raise pickle.UnpicklingError("numbers of an unknown kind")
        return kind.newbyteorder(">" if self.big else "<")


class _Scalar:
    def __init__(self, kind: _Kind, data: bytes):
        self.kind, self.data = kind, data

    def build(self) -> NDArray:
        if not isinstance(self.kind, _Kind) or not isinstance(self.data, bytes):
            raise pickle.UnpicklingError("a number of an unknown kind")
        return np.frombuffer(self.data, self.kind.build())[0]


class _Buffer(_Array):
    """Stands in for how arrays are written since protocol 5."""

    def __init__(self, data: Any, kind: _Kind, shape: Any, order: str = "C"):
        self.state = (1, shape, kind, order == "F", bytes(data))


def _bytes(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes: as text in Latin-1."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError("text in an unknown encoding")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _bytes,
}
for _package in ("numpy.core", "numpy._core"):
    _NAMES[f"{_package}.multiarray", "_reconstruct"] = _Array
    _NAMES[f"{_package}.multiarray", "scalar"] = _Scalar
    _NAMES[f"{_package}.numeric", "_frombuffer"] = _Buffer


class _Unpickler(pickle.Unpickler):
    refused = ""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            self.refused = f"{module}.{name}"
            raise pickle.UnpicklingError(self.refused)
        return _NAMES[module, name]

    def persistent_load(self, identity: Any) -> Any:
        raise pickle.UnpicklingError("a reference to something outside")


def load_numbers(path: Path | str) -> NDArray:
    """The array, or list of numbers, in a `.pkl` file."""
    path = Path(path)
    if not path.is_file():
        raise missing(path)
    if path.stat().st_size > _MOST:
        raise UserError(f"{path} is larger than {_MOST >> 20} MB, too large for a list of lengths: copy it again.")
    with path.open("rb") as file:
        unpickler = _Unpickler(file)
        try:
            found = unpickler.load()
            values = np.asarray(_built(found))
        except _BROKEN as error:
            if unpickler.refused:
                raise UserError(
                    f"{path} is refused: it asks for {unpickler.refused[:80]!r}, which no list of numbers needs; "
                    "nothing in it was executed."
                ) from error
            raise UserError(f"{path} is no list of numbers, or is damaged ({_first_line(error)}).") from error
    if values.dtype.kind not in _KINDS:
        raise UserError(f"{path} holds no numbers, expected a list of them.")
    return values


def _built(found: Any) -> Any:
    if isinstance(found, _Array | _Scalar):
        return found.build()
    if isinstance(found, list | tuple):
        return [_built(value) for value in found]
    if isinstance(found, bool | int | float):
        return found
    raise pickle.UnpicklingError(f"it holds {type(found).__name__}")


class TensorFrames(EpisodeFiles):
    """Frames in `.pth` files, one (T, 3, h, w) or (T, h, w, 3) per episode, numbers from 0 to 255."""

    kind = "tensors"

    def first_side(self) -> tuple[int, int]:
        height, width = open_frames(self.files[0], int(self.lengths[0])).shape[1:3]
        return height, width

    def check(self) -> None:
        for file, length in zip(self.files, self.lengths.tolist(), strict=True):
            side = tuple(open_frames(file, length).shape[1:3])
            if side != self.shape[1:3]:
                raise UserError(
                    f"{file} has frames of {side[0]}×{side[1]}, {self.files[0].name} of "
                    f"{self.shape[1]}×{self.shape[2]}: all must be alike."
                )


def open_frames(file: Path | str, length: int) -> torch.Tensor:
    """(T, h, w, 3) of a file, not yet read."""
    found = load_tensor(file)
    if found.ndim != 4 or 3 not in (found.shape[1], found.shape[3]):
        raise UserError(f"{file} has shape {tuple(found.shape)}, expected frames (T, 3, height, width).")
    if len(found) < length:
        raise UserError(
            f"{file} has {len(found)} frames for {length} states: copy it again, or render the states "
            "(data.pixels rendered)."
        )
    return found if found.shape[3] == 3 else found.permute(0, 2, 3, 1)


class TensorReader:
    def __init__(self, files: list[str], lengths: list[int]):
        self.files, self.lengths, self.ends = files, lengths, np.cumsum(lengths)

    def __call__(self, rows: NDArray[np.int64]) -> Rows:
        for episode, positions, wanted in by_episode(rows, self.ends):
            file = self.files[episode]
            frames = open_frames(file, self.lengths[episode])
            for position, number in zip(positions.tolist(), wanted.tolist(), strict=True):
                frame = frames[number]
                if frame.dtype != torch.uint8:
                    frame = frame.double()
                    if not bool(((frame >= 0) & (frame <= 255)).all()):  # false for NaN too
                        raise UserError(f"{file}: frame {number} holds numbers outside 0 to 255: copy it again.")
                    frame = frame.round().to(torch.uint8)
                yield position, frame.contiguous().numpy()

    def close(self) -> None:
        return
