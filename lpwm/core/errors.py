"""What the user can fix: one sentence, with its remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A mistake in what the user gave. The command line prints it as one sentence and exits with status 2. Anything
    else that escapes is a bug of ours and keeps its traceback."""


def nearest(name: object, options: Iterable[str]) -> str:
    """The end of a sentence: the nearest valid name, then all of them, or the nearest few of many."""
    options = sorted(options)
    close = get_close_matches(str(name), options, n=6, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(options) > 16:
        few = close or options[:6]
        return f"{hint}valid names: {', '.join(few)} and {len(options) - len(few)} more"
    return f"{hint}valid names: {', '.join(options)}"


def choose(kind: str, name: str, table: dict[str, T]) -> T:
    """`table[name]`, or one sentence with the nearest valid name."""
    if name not in table:
        raise UserError(f"unknown {kind} {name!r}: {nearest(name, table)}.")
    return table[name]


def damaged(path: object, why: object = "", remedy: str = "copy it again") -> UserError:
    """A file that is not what was written; `why`: an error, or a few words."""
    text = str(why).strip() or ("" if isinstance(why, str) else type(why).__name__)
    return UserError(f"{path} is damaged or incomplete{f' ({text.splitlines()[0][:120]})' if text else ''}: {remedy}.")


def need(module: str, sentence: str) -> Any:
    """An optional module, imported; or the sentence that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(sentence) from None


def require(name: str, value: Any, least: float, most: float = float("inf")) -> Any:
    """The value, or a sentence where it is out of bounds, or NaN. None is let through."""
    if value is not None and not value >= least:
        raise UserError(f"{name} is {value}: give at least {least}.")
    if value is not None and not value <= most:
        raise UserError(f"{name} is {value}: give at most {most}.")
    return value


def at_least(least: float, config: Any, where: str, *names: str) -> None:
    """A sentence about the first of these fields of a config that is below `least`, or NaN."""
    for name in names:
        if not getattr(config, name) >= least:
            raise UserError(f"{where}.{name} = {getattr(config, name)} must be at least {least}.")
