"""Configs are frozen dataclasses; this turns them into JSON and back, and names them by a hash.

Files of version 0.1.0 keep loading, and a config keeps its hash: a renamed field goes into RENAMED, which `from_dict`
reads old to new and `hashed` new to old; a field that is new goes into ADDED, and is hashed only where it is set.
"""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from lpwm.core.errors import UserError, nearest

C = TypeVar("C")

# Config class -> {name in 0.1.0: name now}.
RENAMED: dict[str, dict[str, str]] = {
    "EncoderConfig": {"image": "image_size"},
    "EvalConfig": {"along": "path_discount"},
    "MPCConfig": {"along": "path_discount"},
    "EvaluatedRun": {"normalisation": "normalization"},
    "ObjectiveConfig": {"regulariser": "regularizer"},
}
# The same for dotted names: options of the command line, axes of grids, overrides.
RENAMED_OPTIONS = {
    "along": "path_discount",
    "model.encoder.image": "model.encoder.image_size",
    "objective.regulariser": "objective.regularizer",
}
# Config class -> fields that 0.1.0 did not have.
ADDED = {"DataConfig": frozenset({"camera", "cache"}), "EvalConfig": frozenset({"arrive"})}
# Keys of other JSON (logs, checkpoints, evaluations): name in 0.1.0 -> name now.
RENAMED_KEYS = {
    "normalisation": "normalization",
    "optimiser": "optimizer",
    "regulariser": "regularizer",
    "regulariser_excess": "regularizer_excess",
}


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record under the names of today, at its top level."""
    return {RENAMED_KEYS.get(key, key): value for key, value in record.items()}


def to_dict(config: Any) -> Any:
    """A config as plain JSON values, nested configs included."""
    return _plain(config, {}, {})


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as the command line names them: {"data.steps": 60, …}."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return out


def hashed(config: Any) -> Any:
    """`to_dict` under the names that hashes are made of."""
    return _plain(config, RENAMED, ADDED)


def _plain(value: Any, renamed: dict[str, dict[str, str]], added: dict[str, frozenset[str]]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__
        old_names = {new: old for old, new in renamed.get(kind, {}).items()}
        return {
            old_names.get(f.name, f.name): _plain(getattr(value, f.name), renamed, added)
            for f in dataclasses.fields(value)
            if f.name not in added.get(kind, ()) or getattr(value, f.name) != f.default
        }
    if isinstance(value, (list, tuple)):
        return [_plain(x, renamed, added) for x in value]
    if isinstance(value, dict):
        return {str(k): _plain(v, renamed, added) for k, v in value.items()}
    return value


def from_dict(cls: type[C], data: dict[str, Any], where: str = "", *, lenient: bool = False) -> C:
    """The dataclass that `to_dict` came from. A field that does not exist is named, with the nearest that does.

    where: stands before the name of a field in an error. lenient: as results are read: fields that are not known are
    left out, and null is NaN where a float is wanted.
    """
    place = where.rstrip(". :") or cls.__name__
    if not isinstance(data, dict):
        raise UserError(f"{place} must be an object of fields, not {type(data).__name__}.")
    if lenient:  # a class whose layout in files differs
        data = getattr(cls, "upgrade", dict)(data)
    new_names = RENAMED.get(cls.__name__, {})
    data = {new_names.get(name, name): value for name, value in data.items()}
    fields, hints = _fields(cls)  # type: ignore[arg-type]
    for name in () if lenient else data:
        if name not in fields:
            raise UserError(f"unknown field {where + name!r} of {cls.__name__}: {nearest(name, fields)}.")
    for name, required in fields.items():
        if required and name not in data:
            raise UserError(f"{where}{name} is missing: {cls.__name__} needs it.")
    values = {name: _value(hints[name], data[name], f"{where}{name}", lenient) for name in fields if name in data}
    try:
        return cls(**values)
    except TypeError as error:
        raise UserError(f"{place}: {error}.") from None


@cache
def _fields(cls: Any) -> tuple[dict[str, bool], dict[str, Any]]:
    """Names of the fields, whether each must be given, and their types."""
    missing = dataclasses.MISSING
    every = [f for f in dataclasses.fields(cls) if f.init and f.metadata.get("json", True)]
    required = {f.name: f.default is missing and f.default_factory is missing for f in every}
    return required, typing.get_type_hints(cls)


def _value(hint: Any, value: Any, where: str, lenient: bool = False) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of([a for a in args if a is not type(None)], type(None) in args, hint, value, where, lenient)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, where + ".", lenient=lenient)
    if origin is typing.Literal:
        if value not in args:
            raise UserError(f"{where} = {_short(value)}: {nearest(str(value), map(str, args))}.")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{where} = {_short(value)} must be a list.")
        inner = args[0] if args else Any
        if inner in (int, float, str, bool) and all(type(v) is inner for v in value):
            return tuple(value)
        return tuple(_value(inner, v, f"{where}[{i}]", lenient) for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{where} = {_short(value)} must be an object of fields.")
        return {name: _value(args[1], v, f"{where}.{name}", lenient) for name, v in value.items()}
    if hint is float and lenient and value is None:
        return float("nan")
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint in (int, str, bool, float):
        if type(value) is not hint:
            raise UserError(f"{where} = {_short(value)} must be of type {hint.__name__}.")
        return value
    return value


def _one_of(options: list[Any], none: bool, hint: Any, value: Any, where: str, lenient: bool) -> Any:
    if value is None and none:
        return None
    for option in options:
        if dataclasses.is_dataclass(option) and not isinstance(value, dict):
            continue
        try:
            return _value(option, value, where, lenient)
        except UserError:
            if option is options[-1]:
                raise
    raise UserError(f"{where} = {_short(value)} has the wrong type: {hint} is wanted.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def digest(config: Any) -> str:
    """Twelve hexadecimal digits that name a config; equal configs have equal names on every machine."""
    text = json.dumps(hashed(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
