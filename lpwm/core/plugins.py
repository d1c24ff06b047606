"""Parts from outside the package: modules named by the user, and the entry-point group "lpwm".

Either is a module that calls `register_world` or `register_predictor` when it is imported. A name in a file never
imports anything: it is looked up among what was registered.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from importlib import import_module

from lpwm.core.errors import UserError

GROUP = "lpwm"
VARIABLE = "LPWM_PLUGINS"  # names separated by commas, so that worker processes load them too


def load_plugin(name: str) -> None:
    """Import a module, also from the working directory; an unknown one is one sentence."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    if name.endswith(".py"):
        raise UserError(f"a plugin is named as a module: write {name[:-3].replace('/', '.')}, not {name}.")
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):
            raise UserError(f"plugin {name!r} needs the module {missing!r}, which is not installed.") from error
        raise UserError(
            f"there is no plugin {name!r}: give the name of a module that is installed or in this folder."
        ) from None
    known = [n for n in os.environ.get(VARIABLE, "").split(",") if n]
    if name not in known:
        os.environ[VARIABLE] = ",".join([*known, name])


@cache
def load_installed() -> None:
    """The plugins of this environment, once. One that cannot be imported is warned about and left out."""
    from importlib.metadata import entry_points

    for name in [n for n in os.environ.get(VARIABLE, "").split(",") if n]:
        load_plugin(name)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"the plugin {entry.name} ({entry.value}) cannot be imported: {error}", stacklevel=3)
