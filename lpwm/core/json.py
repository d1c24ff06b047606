"""One door for JSON of any origin: bounded in size and in depth, and errors that name the file and the field. Results
are frozen dataclasses. `to_json` turns one into plain values and `from_json` back; null stands for NaN."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from lpwm.core.config import _value, from_dict
from lpwm.core.errors import UserError
from lpwm.core.files import read_bytes
from lpwm.core.memory import need_memory

T = TypeVar("T")

MAX_BYTES = 256 * 2**20
MAX_DEPTH = 64
_SMALL, _TIMES = 2**20, 24  # a text beyond this many bytes may take as many times its size: "{},{},…"


def parse_json(data: str | bytes, where: str, *, of: type = dict) -> Any:
    """The value of a JSON text. `where` names it in errors; `of` is the type it must have (`object` for any)."""
    if len(data) > MAX_BYTES:
        raise UserError(f"{where} is larger than {MAX_BYTES / 2**20:g} MiB: it is no file of lpwm.")
    if len(data) > _SMALL:
        need_memory(where, _TIMES * len(data))
    try:
        value = json.loads(data)
        if _deeper(value, MAX_DEPTH):
            raise RecursionError
    except RecursionError:
        raise UserError(f"{where} is nested deeper than {MAX_DEPTH} levels: it is no file of lpwm.") from None
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}): restore it, or make it again.") from None
    if not isinstance(value, of):
        wanted = {"dict": "an object of fields", "list": "a list"}.get(of.__name__, of.__name__)
        raise UserError(f"{where} must hold {wanted}, not {type(value).__name__}.")
    return value


def _deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        children = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list))]
        level = [child for group in children for child in group]
        if not level:
            return False
    return True


def read_json(path: str | Path, *, kind: str = "", of: type = dict) -> Any:
    """The value in a JSON file. `kind`: what its field "kind" must say."""
    path = Path(path)
    value = parse_json(read_bytes(path, MAX_BYTES), str(path), of=of)
    given = value.get("kind") if isinstance(value, dict) else None
    if kind and given != kind:
        raise UserError(f"{path} is not of the kind {kind!r}: its kind is {given!r}.")
    return value


def from_json(cls: type[T], record: Any, where: str = "") -> T:
    """A result from plain values, typed all the way down. Fields that are not known are left out. where: the file, or
    the place in it, that stands before the field in an error, as in "FILE: cells[0].goals"."""
    return from_dict(cls, record, where and f"{where}: ", lenient=True)


def to_json(value: Any) -> Any:
    """Plain values. Dataclasses are objects, unless they have a `to_json` of their own; NaN and infinity are null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = getattr(value, "to_json", None)
        return own() if own else fields_json(value)
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def fields_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; left out are those of metadata {"json": False}, and {"omit": True} where empty."""
    return {
        f.name: to_json(getattr(value, f.name))
        for f in dataclasses.fields(value)
        if f.metadata.get("json", True) and (getattr(value, f.name) or not f.metadata.get("omit"))
    }


def dump_json(value: Any, **options: Any) -> str:
    """The text of a file, with a newline at its end."""
    return json.dumps(to_json(value), allow_nan=False, **options) + "\n"


_NONE: Any = object()


class Reader:
    """Typed access to the fields of a JSON object that no class stands for. Errors name the place and the field."""

    def __init__(self, record: Any, where: str) -> None:
        if not isinstance(record, dict):
            raise UserError(f"{where} must be an object of fields, not {type(record).__name__}.")
        self.record: dict[str, Any] = record
        self.where = where

    def get(self, name: str, kind: Any = Any, default: Any = _NONE) -> Any:
        """A field of any type that a dataclass may have, for instance `tuple[int, ...]` or `str | None`."""
        if name not in self.record:
            if default is _NONE:
                raise UserError(f"{self.where}: {name} is missing.")
            return default
        return _value(kind, self.record[name], f"{self.where}: {name}")

    def child(self, name: str) -> "Reader":
        return Reader(self.get(name), f"{self.where}: {name}")

    def children(self, name: str) -> "list[Reader]":
        """One reader per entry of a list."""
        return [Reader(v, f"{self.where}: {name}[{i}]") for i, v in enumerate(self.get(name, tuple[Any, ...]))]
