"""Numbers out of pickles made by strangers, without running anything in them.

`.pth` files go through torch's restricted reader (weights_only), and only plain tensors of numbers come out. `.pkl`
files go through an unpickler that knows lists, tuples, numbers, and stand-ins for the few names with which numpy writes
its arrays; any other name ends the reading. The array is made afterwards, from its bytes, shape and kind of number.
"""

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.data.frames import EpisodeFiles, EpisodeReader, Rows, too_short

_MOST = 8 << 20  # bytes of a .pkl: lengths of a million episodes take less
_KINDS = frozenset("fiub")


def missing(path: Path) -> UserError:
    return UserError(f"{path} does not exist: copy the whole folder, as it was published.")


def load_tensor(path: Path | str) -> torch.Tensor:
    """The one tensor of numbers in a `.pth` file, in memory only where it is touched."""
    path = Path(path)
    if not path.is_file():
        raise missing(path)
    try:
        try:
            tensor = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:  # files of before 2020 are no archives and cannot be mapped
            if "mmap" not in str(error):
                raise
            tensor = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} is refused: it is no plain tensor of numbers; nothing in it was executed.") from error
    except Exception as error:  # of any kind, depending on where the damage is
        raise UserError(f"{path} is no file of tensors, or is damaged: copy it again.") from error
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.is_complex():
        raise UserError(f"{path} holds {type(tensor).__name__}, expected one tensor of numbers: copy it again.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UserError(f"{path} claims a tensor of {tuple(tensor.shape)} that it does not hold: copy it again.")
    return tensor


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


class _Scalar(_Array):
    """Stands in for a number of numpy's: an array without axes."""

    def __init__(self, kind: _Kind, data: bytes):
        self.state = (1, (), kind, False, data)


class _Buffer(_Array):
    """Stands in for how arrays are written since protocol 5."""

    def __init__(self, data: Any, kind: _Kind, shape: Any, order: str = "C"):
        self.state = (1, shape, kind, order == "F", bytes(data) if isinstance(data, bytes | bytearray) else data)


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


class _Unpickler(pickle._Unpickler):  # in Python: the one in C takes memory for whatever number a file names
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
            values = np.asarray(_built(unpickler.load(), [path.stat().st_size]))
        except Exception as error:  # of any kind, depending on where the damage is
            if unpickler.refused:
                raise UserError(
                    f"{path} is refused: it asks for {unpickler.refused[:80]!r}; nothing in it was executed."
                ) from error
            raise UserError(f"{path} is no list of numbers, or is damaged ({str(error)[:100]}).") from error
    if values.dtype.kind not in _KINDS:
        raise UserError(f"{path} holds no numbers, expected a list of them.")
    return values


def _built(value: Any, left: list[int]) -> Any:
    """The numbers that a pickle describes; `left[0]` of them at most, since its lists may hold one another."""
    left[0] -= 1
    if left[0] < 0:
        raise pickle.UnpicklingError("more numbers than the file can hold")
    if isinstance(value, _Array):
        return value.build()
    if isinstance(value, list | tuple):
        return [_built(one, left) for one in value]
    if isinstance(value, bool | int | float):
        return value
    raise pickle.UnpicklingError(f"it holds {type(value).__name__}")


class TensorFrames(EpisodeFiles):
    """Frames in `.pth` files, one (T, 3, h, w) or (T, h, w, 3) per episode, numbers from 0 to 255."""

    kind = "tensors"

    def headers(self, files: list[Path]) -> Iterator[tuple[int, int, int]]:
        for file in files:
            length, height, width, _ = open_frames(file).shape
            yield length, height, width


def open_frames(file: Path | str) -> torch.Tensor:
    """(T, h, w, 3) of a file, not yet read."""
    frames = load_tensor(file)
    if frames.ndim != 4 or 3 not in (frames.shape[1], frames.shape[3]):
        raise UserError(f"{file} has shape {tuple(frames.shape)}, expected frames (T, 3, height, width).")
    return frames if frames.shape[3] == 3 else frames.permute(0, 2, 3, 1)


class TensorReader(EpisodeReader):
    def read(self, file: str, length: int, positions: list[int], wanted: list[int]) -> Rows:
        frames = open_frames(file)
        if len(frames) < length:
            raise too_short(file, len(frames), length)
        for position, number in zip(positions, wanted, strict=True):
            frame = frames[number]
            if frame.dtype != torch.uint8:
                frame = frame.double()
                if not bool(((frame >= 0) & (frame <= 255)).all()):  # false for NaN too
                    raise UserError(f"{file}: frame {number} holds numbers outside 0 to 255: copy it again.")
                frame = frame.round().to(torch.uint8)
            yield position, frame.contiguous().numpy()
