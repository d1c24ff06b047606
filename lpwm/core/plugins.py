"""Parts from outside the package: modules named by the user, and the entry-point group "lpwm".

Either is a module that calls `register_world` or `register_predictor` when it is imported. A name in a file never
imports anything: it is looked up among what was registered, and a function "module:function" among those that the user
gave, as a word of the command line, as an argument in Python, or as a plugin.
"""

import os
import sys
import traceback
import warnings
from functools import cache
from importlib import import_module
from typing import Any

from lpwm.core.errors import UserError

GROUP = "lpwm"
VARIABLE = "LPWM_PLUGINS"  # names separated by commas, so that worker processes load them too
_given: dict[str, Any] = {}  # names that may be imported, and the functions themselves where they are known


def give(*names: str) -> None:
    """The user gave these names, so they may be imported: "module:function", or a module."""
    for name in names:
        _given.setdefault(name, None)


def give_words(words: list[str]) -> None:
    """Everything that stands on the command line: WORD, --option=WORD, option=WORD, gym:MODULE:ID."""
    for word in words:
        parts = {word, word.partition("=")[2], word.rpartition("=")[2]}
        give(*(p.removeprefix("gym:") for p in parts if ":" in p))


def is_given(name: str) -> bool:
    return name in _given or name.partition(":")[0] in loaded()


def name_of(function: Any) -> str:
    """The name under which a function that the user passed can be found again; it counts as given."""
    if isinstance(function, str):
        return function
    name = f"{function.__module__}:{function.__qualname__}"
    _given[name] = function
    return name


def named(name: str, what: str) -> Any:
    """What "module:function" stands for. One that the user did not give is refused, and nothing is imported."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise UserError(f"the {what} {name!r} is not a name: write module:function.")
    if not is_given(name):
        raise UserError(
            f"the {what} {name!r} comes from a file, and names in files are not imported: add --plugin {name} if you "
            "trust it, or pass the function itself in Python."
        )
    if _given.get(name) is None:
        _import(module)
        function = getattr(sys.modules[module], attribute, None)
        if not callable(function):
            raise UserError(f"the module {module!r} has no function {attribute!r}, which is to be the {what}.")
        if name not in _given and getattr(function, "__module__", module) != module:
            raise UserError(f"{name!r} is not defined in {module!r}: add --plugin {name} if you trust it.")
        _given[name] = function
        _hand_down(name)
    return _given[name]


def loaded() -> list[str]:
    """The plugins that the user named."""
    return [n for n in os.environ.get(VARIABLE, "").split(",") if n]


def load_plugin(name: str) -> None:
    """Import a module, also from the working directory; an unknown one is one sentence. "module:function" gives that
    function, and no other of the module."""
    if ":" in name:
        give(name)
        named(name, "plugin")
        return
    _import(name)
    _hand_down(name)


def _import(name: str) -> None:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py") or name.startswith(".") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise UserError(f"a plugin is named as a module: write {module}, not {name}.")
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):
            raise UserError(f"plugin {name!r} needs the module {missing!r}, which is not installed.") from error
        raise UserError(f"there is no plugin {name!r}: give a module that is installed or in this folder.") from None
    except UserError:
        raise
    except Exception as error:  # the plugin's own
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError) else f" ({at.filename}, line {at.lineno})"
        raise UserError(f"plugin {name!r} fails: {type(error).__name__}: {error}{where}.") from error


def _hand_down(name: str) -> None:
    """To worker processes."""
    known = loaded()
    if name not in known:
        os.environ[VARIABLE] = ",".join([*known, name])


@cache
def load_installed() -> None:
    """The plugins of this environment, once. One that cannot be imported is warned about and left out."""
    from importlib.metadata import entry_points

    for name in loaded():
        load_plugin(name)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"the plugin {entry.name} ({entry.value}) cannot be imported: {error}", stacklevel=3)
