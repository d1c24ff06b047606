"""The worlds, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from lpwm.core.errors import UserError, choose, nearest
from lpwm.worlds.base import Key, Live, Renderer, SimWorld, TensorWorld, World, WorldSpec, row_keys
from lpwm.worlds.cube.world import Cube
from lpwm.worlds.piecewise import Piecewise
from lpwm.worlds.policies import POLICIES, Policy, make_policy, rollout
from lpwm.worlds.pusht.world import PushT
from lpwm.worlds.two_room import TwoRoom
from lpwm.worlds.wall import Wall

WORLDS: dict[str, type[Any]] = {"cube": Cube, "piecewise": Piecewise, "pusht": PushT, "two_room": TwoRoom, "wall": Wall}


def make(name: str, **options: Any) -> Any:
    """`make("piecewise", g=3)`: the named world with these options; lists (from JSON) count as tuples."""
    build = choose("world", name, WORLDS)
    fields = {f.name: f for f in dataclasses.fields(build)}
    for option, value in options.items():
        if option not in fields:
            hint = nearest(option, fields) if fields else "it has none"
            raise UserError(f"world {name!r} has no option {option!r}: {hint}.")
        options[option] = _checked(name, option, value, type(fields[option].default))
    return build(**options)


def _checked(name: str, option: str, value: Any, kind: type) -> Any:
    """The value as the option's own kind, or one sentence."""
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"world {name!r} takes {option} as {kind.__name__}, not {value!r}.")
    return value


__all__ = [
    "POLICIES",
    "WORLDS",
    "Key",
    "Live",
    "Policy",
    "Renderer",
    "SimWorld",
    "TensorWorld",
    "World",
    "WorldSpec",
    "make",
    "make_policy",
    "rollout",
    "row_keys",
]
