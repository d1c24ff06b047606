"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def pipes(lines: Sequence[Sequence[str]]) -> str:
    """The first line has the heads."""
    heads, *rest = lines
    cells = [heads, ["---"] * len(heads), *rest]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in cells)
