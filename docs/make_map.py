"""Draws the map of rooms in how-it-is-built.md from the imports: `python docs/make_map.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent / "lpwm"
PAGE = HERE / "how-it-is-built.md"
MARKS = "<!-- map: made by docs/make_map.py -->", "<!-- end of the map -->"


def rooms() -> list[str]:
    """Folders with code, and the modules next to them."""
    folders = [p.parent.name for p in ROOT.glob("*/__init__.py")]
    return sorted([*folders, *(p.stem for p in ROOT.glob("*.py") if not p.stem.startswith("__"))])


def imports(room: str) -> set[str]:
    """The rooms that a room imports when it is imported, or when one of its functions is called."""
    files = [*(ROOT / room).rglob("*.py")] if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]
    names: set[str] = set()
    for node in (n for f in files for n in ast.walk(ast.parse(f.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lpwm":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("lpwm.")}
    return (names & set(rooms())) - {room}


def layers() -> list[list[str]]:
    """Rooms by the longest chain of imports below them; a call-time import back into a higher room does not count."""
    below = {room: imports(room) for room in rooms()}
    below["model"] = below["model"] - {"train"}  # WorldModel.from_pretrained
    depth: dict[str, int] = {}

    def deep(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max((deep(other) for other in below[room]), default=-1)
        return depth[room]

    for room in below:
        deep(room)
    return [sorted(r for r in below if depth[r] == level) for level in range(max(depth.values()) + 1)]


def drawn() -> str:
    rows = ["| layer | room | imports |", "|---|---|---|"]
    for level, names in enumerate(layers()):
        for room in names:
            rows.append(f"| {level} | `{room}` | {', '.join(sorted(imports(room))) or '–'} |")
    return "\n".join(rows)


def page(text: str) -> str:
    first, last = map(re.escape, MARKS)
    made = f"{MARKS[0]}\n{drawn()}\n{MARKS[1]}"
    return re.sub(f"{first}.*?{last}", lambda _: made, text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
