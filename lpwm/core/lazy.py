"""Public names of a package, imported on first use (PEP 562)."""

import ast
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(package: str, rooms: Iterable[str] = ()) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that imports its names under `if TYPE_CHECKING:`.

        __getattr__, __dir__, __all__ = lazy(__name__)

    That block is the one list of the names and their modules: type checkers read it, and so does this function.
    What the package imports from its own modules at once is public too. `rooms` are names of modules of the package.
    """
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    blocks = [n.body for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    imports = [n for block in blocks for n in block if isinstance(n, ast.ImportFrom)]
    own = [n for n in tree.body if isinstance(n, ast.ImportFrom) and str(n.module).startswith(f"{package}.")]
    places = {alias.asname or alias.name: (n.module, alias.name) for n in imports for alias in n.names}
    places |= {name: (f"{package}.{name}", "") for name in rooms}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        value: Any = import_module(str(module))
        value = getattr(value, attribute) if attribute else value
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, list_names, sorted([*places, *(alias.asname or alias.name for n in own for alias in n.names)])
