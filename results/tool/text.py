"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def pipes(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in cells)


def percent(value: Mapping[str, Any]) -> str:
    """`62.5 [30.6, 86.3]`."""
    if value.get("rate") is None:
        return "–"
    if value.get("low") is None or value.get("high") is None:
        return f"{100 * value['rate']:.1f}"
    return f"{100 * value['rate']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"
