"""Numbers out of pickles made by strangers, without running anything in them.

One unpickler reads `.pkl` and `.pth` files. It knows lists, tuples, numbers, and stand-ins for the few names with which
NumPy and torch write arrays and tensors; any other name ends the reading, and so does whatever a list of numbers has no
use for: the hash of nested tuples, a key of a dictionary, takes for ever. What comes out is made afterwards, from
bytes, shape and kind of number.
"""

import io
import math
import mmap
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.files import read_bytes
from lpwm.data.frames import EpisodeFiles, EpisodeReader, Rows, too_short

_MOST = 8 << 20  # bytes of a .pkl: lengths of a million episodes take less
_KINDS = frozenset("fiub")


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


_ARRAYS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _bytes,
}
for _package in ("numpy.core", "numpy._core"):
    _ARRAYS[f"{_package}.multiarray", "_reconstruct"] = _Array
    _ARRAYS[f"{_package}.multiarray", "scalar"] = _Scalar
    _ARRAYS[f"{_package}.numeric", "_frombuffer"] = _Buffer

_STORAGES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}
_STORAGES |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}
_TENSORS: dict[tuple[str, str], Any] = {("torch", f"{k}Storage"): getattr(torch, v) for k, v in _STORAGES.items()}
_TENSORS["collections", "OrderedDict"] = lambda: None  # of hooks; with arguments it is refused
_OPCODES = """PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
BYTEARRAY8 LIST EMPTY_LIST APPEND APPENDS TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE GET
BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID"""
_CODES = [code for name in _OPCODES.split() for code in getattr(pickle, name)]


class _Unpickler(pickle._Unpickler):  # in Python: the one in C takes memory for whatever number a file names
    dispatch: ClassVar = {code: pickle._Unpickler.dispatch[code] for code in _CODES}

    def __init__(self, data: io.BytesIO, names: Mapping[tuple[str, str], Any]):
        super().__init__(data)
        self._known = names

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise UserError(f"it asks for {f'{module}.{name}'[:80]!r}")
        return self._known[module, name]

    def persistent_load(self, identity: Any) -> Any:
        return identity  # of the storage of a tensor

    def load(self) -> Any:
        try:
            return super().load()
        except KeyError:
            raise UserError("it holds something else than numbers") from None


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """One sentence about whatever is wrong with a file."""
    try:
        if not path.is_file():
            raise FileNotFoundError
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: copy the whole folder, as it was published.") from None
    except UserError as error:
        raise UserError(f"{path} is refused: {error}, expected {what}; nothing in it was executed.") from error
    except Exception as error:  # of any kind, depending on where the damage is
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise UserError(f"{path} is not {what}, or is damaged ({why}): copy it again.") from error


@dataclass(frozen=True)
class _Tensor:
    """Stands in for a tensor: where its numbers are, and in which order."""

    storage: tuple[Any, ...]  # "storage", kind of number, name, device, numbers
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, *args: Any) -> "_Tensor":
        made = cls(*args[:4])  # the rest is about gradients
        _, kind, _, _, numbers, *_ = made.storage
        sizes = (numbers, made.offset, *made.shape, *made.stride)
        if not isinstance(kind, torch.dtype) or not all(type(n) is int and n >= 0 for n in sizes):
            raise UserError("it has no kind or no size")
        reach = made.offset + sum((n - 1) * s for n, s in zip(made.shape, made.stride, strict=True))
        if math.prod(made.shape) > numbers or reach >= max(numbers, 1):
            raise UserError(f"it claims a tensor of {made.shape} that it does not hold")
        return made

    @classmethod
    def read(cls, data: io.BytesIO) -> "_Tensor":
        names = _TENSORS | {("torch._utils", f"_rebuild_tensor{version}"): cls.of for version in ("", "_v2")}
        made = _Unpickler(data, names).load()
        if not isinstance(made, cls):
            raise UserError(f"it holds {type(made).__name__}")
        return made

    def build(self, data: mmap.mmap, start: int, size: int) -> torch.Tensor:
        """From the `size` bytes of the file that begin at `start`."""
        _, kind, _, _, numbers, *_ = self.storage
        if size != numbers * kind.itemsize:
            raise UserError(f"it claims {numbers} numbers in {size} bytes")
        return torch.frombuffer(data, dtype=kind, count=numbers, offset=start).as_strided(
            self.shape, self.stride, self.offset
        )


def load_tensor(path: Path | str) -> torch.Tensor:
    """The one tensor of numbers in a `.pth` file, in memory only where it is touched."""
    with _reading(Path(path), "one tensor of numbers"), open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return _archived(file, data) if data[:2] == b"PK" else _legacy(data)


def _archived(file: BinaryIO, data: mmap.mmap) -> torch.Tensor:
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if any(entry.compress_type for entry in entries.values()) or entries["data.pkl"].file_size > _MOST:
            raise UserError("it is compressed, or describes too much")
        if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
            raise UserError("its numbers have their bytes in another order")
        made = _Tensor.read(io.BytesIO(archive.read(entries["data.pkl"])))
    entry = entries[f"data/{made.storage[2]}"]
    head = 30 + sum(struct.unpack_from("<HH", data, entry.header_offset + 26))
    return made.build(data, entry.header_offset + head, entry.file_size)


def _legacy(data: mmap.mmap) -> torch.Tensor:
    """Of before 2020: pickles (a magic number, a version, the machine, the tensor, names of storages), then numbers."""
    pickled = io.BytesIO(data[:_MOST])
    for _ in range(3):
        list(pickletools.genops(pickled))
    made = _Tensor.read(pickled)
    if _Unpickler(pickled, {}).load() != [made.storage[2]]:
        raise UserError("it holds several")
    (count,) = struct.unpack_from("<q", data, pickled.tell())
    return made.build(data, pickled.tell() + 8, count * made.storage[1].itemsize)


def load_numbers(path: Path | str) -> NDArray:
    """The array, or list of numbers, in a `.pkl` file."""
    with _reading(Path(path), "a list of numbers"):
        data = read_bytes(Path(path), _MOST)
        if len(data) > _MOST:
            raise UserError(f"it is larger than {_MOST >> 20} MB")
        values = np.asarray(_built(_Unpickler(io.BytesIO(data), _ARRAYS).load(), [len(data)]))
        if values.dtype.kind not in _KINDS:
            raise UserError("it holds no numbers")
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
