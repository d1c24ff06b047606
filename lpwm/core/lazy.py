"""Public names of a package, imported on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, names: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names live in its modules.

        __getattr__, __dir__, __all__ = lazy(__name__, {"WorldModel": "world_model"})

    A module is given relative to the package; "world_model:build" where the name differs there, and ":world_model"
    for the module itself.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = names[name].partition(":")
        if not module:
            value: Any = import_module(f"{package}.{attribute}")
        else:
            value = getattr(import_module(f"{package}.{module}"), attribute or name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, list_names, sorted(names)
