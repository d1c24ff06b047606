"""Named parts that others can add to: predictors, worlds."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeVar

from lpwm.core.errors import UserError, nearest
from lpwm.core.plugins import load_installed

T = TypeVar("T")


class Registry(Generic[T]):
    """Names and what they stand for: an object, or "module:attribute", which is imported on first use. Without torch a
    registry of such strings still knows its names. A name that is not known may be that of an installed plugin: these
    are loaded then."""

    def __init__(
        self, kind: str, entries: dict[str, T | str] | None = None, families: dict[str, str] | None = None
    ) -> None:
        """families: prefixes, "gym:", and what is built with the rest of the name as its first argument."""
        self.kind, self._families = kind, families or {}
        self._entries: dict[str, T | str] = dict(entries or {})

    def register(self, name: str, entry: T | str) -> None:
        """Add an entry. A name that is taken is refused, unless by the same entry."""
        if not isinstance(name, str) or not name:
            raise UserError(f"a {self.kind} needs a name, not {name!r}.")
        if name in self._entries and self._entries[name] is not entry:
            raise UserError(f"a {self.kind} named {name!r} is already registered: choose another name.")
        self._entries[name] = entry

    def check(self, name: str) -> None:
        """A sentence with the nearest name, where there is no such entry. Imports nothing."""
        if name not in self:
            load_installed()
        if name not in self:
            near = nearest(name, [*self._entries, *(f"{prefix}NAME" for prefix in self._families)])
            raise UserError(f"unknown {self.kind} {name!r}: {near}; others come with a plugin (--plugin MODULE).")

    def get(self, name: str) -> T:
        self.check(name)
        prefix = self._family(name)
        entry: Any = self._families[prefix] if prefix else self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = getattr(import_module(module), attribute)
            if not prefix:
                self._entries[name] = entry
        if prefix:
            entry = partial(entry, name.removeprefix(prefix))
        return entry

    def _family(self, name: object) -> str:
        """The prefix of a name that is of a family, or ""."""
        return next((p for p in self._families if isinstance(name, str) and name.startswith(p) and name != p), "")

    def names(self) -> tuple[str, ...]:
        """In the order in which they were registered."""
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or bool(self._family(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._entries)
