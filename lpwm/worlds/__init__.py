"""The worlds, by name. Nothing is imported before it is used: neither torch nor a simulator."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lpwm.core.errors import UserError, nearest
from lpwm.core.lazy import lazy
from lpwm.core.registry import Registry

if TYPE_CHECKING:
    from lpwm.worlds.base import Key, Live, Renderer, SimWorld, TensorWorld, World, WorldSpec, row_keys
    from lpwm.worlds.cube.world import Cube
    from lpwm.worlds.piecewise import Piecewise
    from lpwm.worlds.policies import POLICIES, Policy, make_policy, rollout
    from lpwm.worlds.pusht.world import PushT
    from lpwm.worlds.two_room import TwoRoom
    from lpwm.worlds.wall import Wall

WORLDS: Registry[Callable[..., Any]] = Registry(
    "world",
    {
        "cube": "lpwm.worlds.cube.world:Cube",
        "piecewise": "lpwm.worlds.piecewise:Piecewise",
        "pusht": "lpwm.worlds.pusht.world:PushT",
        "two_room": "lpwm.worlds.two_room:TwoRoom",
        "wall": "lpwm.worlds.wall:Wall",
    },
    families={"gym:": "lpwm.worlds.gym_world:GymWorld"},  # any gymnasium environment, by its ID
)


def register_world(name: str, world: Callable[..., Any] | str) -> None:
    """Make a world known by name: a class (its options are the arguments it is built with), or "module:attribute".
    `spec.name` of what it builds must be this name, and `spec.options` the options: so a run finds its world again.
    `lpwm.testing.check_world(name)` checks the rest of the contract."""
    if not callable(world) and not isinstance(world, str):
        raise UserError(f"world {name!r}: give a class or a function that builds it, not {world!r}.")
    WORLDS.register(name, world)


def make_world(name: str, **options: Any) -> Any:
    """`make_world("piecewise", g=3)`: the named world with these options; lists (from JSON) count as tuples."""
    build = WORLDS.get(name)
    parameters = inspect.signature(build).parameters
    for option, value in options.items():
        if option not in parameters:
            hint = nearest(option, parameters) if parameters else "it has none"
            raise UserError(f"world {name!r} has no option {option!r}: {hint}.")
        options[option] = _checked(name, option, value, parameters[option].default)
    world = build(**options)
    if isinstance(build, partial):  # of a family: the name is its own, and the environment is made when it is needed
        return world
    if not hasattr(world, "spec"):
        raise UserError(f"the world registered as {name!r} builds {world!r}: it must build a world, with a spec.")
    if world.spec.name != name:
        raise UserError(f"the world registered as {name!r} calls itself {world.spec.name!r} in its spec: use one name.")
    return world


def _checked(name: str, option: str, value: Any, default: Any) -> Any:
    """The value as the default's own kind, or one sentence."""
    if default is None or default is inspect.Parameter.empty:
        return value
    kind = type(default)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"world {name!r} takes {option} as {kind.__name__}, not {value!r}.")
    return value


make = make_world

__getattr__, __dir__, _lazy = lazy(__name__)
__all__ = [*_lazy, "WORLDS", "make", "make_world", "register_world"]
