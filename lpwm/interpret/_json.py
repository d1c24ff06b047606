"""Temporary: typed values from parsed JSON."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

from lpwm.core.errors import UserError

C = TypeVar("C")


def parse(cls: type[C], data: Any, where: str = "") -> C:
    return typing.cast(C, _value(cls, data, where or cls.__name__))


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _value(next(a for a in args if a is not type(None)), value, where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{where} must be an object.")
        hints, out = typing.get_type_hints(hint), {}
        for f in dataclasses.fields(hint):
            if f.name in value:
                out[f.name] = _value(hints[f.name], value[f.name], f"{where}.{f.name}")
            elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                raise UserError(f"{where} has no {f.name}.")
        return typing.cast(type, hint)(**out)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{where} must be a list.")
        return tuple(_value(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{where} must be an object.")
        return {k: _value(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    if hint in (int, float, str, bool) and type(value) is not hint:
        raise UserError(f"{where} = {value!r} must be of type {hint.__name__}.")
    return value
