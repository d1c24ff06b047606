"""What the user can fix: one sentence, with its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A mistake in what the user gave. The command line prints it as one sentence and exits with status 2.

    Anything else that escapes is a bug of ours and keeps its traceback.
    """


def nearest(name: str, options: Iterable[str]) -> str:
    """The end of a sentence: the nearest valid name, then all of them, or the nearest few of many."""
    options = sorted(options)
    close = get_close_matches(name, options, n=6, cutoff=0.5)
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
