"""A comparison as text: one column a method, sparse before dense, or one block a method where that is too wide."""

from __future__ import annotations

from typing import Any

from lpwm.interpret.compare import MEASURES, Study


def number(found: dict[str, Any], percent: bool = False, signed: bool = False) -> str:
    """`98.4 % [97.9, 99.0]` or `0.331 [0.284, 0.379]`; without brackets where nothing is known of the spread."""
    scale, digits = (100, 1) if percent else (1, 3)
    sign = "+" if signed else ""

    def one(value: float) -> str:
        return f"{round(scale * value, digits) + 0.0:{sign}.{digits}f}"

    text = one(found["estimate"]) + (" %" if percent else "")
    return text + (f" [{one(found['low'])}, {one(found['high'])}]" if "low" in found else "")


def table(compared: dict[str, Any], studies: list[Study], width: int = 100) -> str:
    methods = compared["methods"]
    heads = [_head(m) for m in methods]
    body = [[m.title, *(number(row["measures"][key], m.percent) for row in methods)] for key, m in MEASURES.items()]
    body += _counts(methods, studies)
    gaps = compared["differences"]
    if len({(d["a"], d["b"]) for d in gaps}) == 1:  # one sparse method beside one dense one
        heads.append("sparse − dense")
        for line, d in zip(body, gaps, strict=False):
            line.append(number(d, MEASURES[d["measure"]].percent, signed=True))
    cells = [["", *heads], *([*line, *[""] * (len(heads) + 1 - len(line))] for line in body)]
    wide = [max(len(row[i]) for row in cells) for i in range(len(heads) + 1)]
    if sum(wide) + 2 * len(heads) > width:
        return "\n\n".join(_block(heads[i], [(row[0], row[i + 1]) for row in cells[1:]]) for i in range(len(heads)))
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)).rstrip() for row in cells)


def _head(method: dict[str, Any]) -> str:
    seeds = len(method["seeds"])
    kind = "sparse" if method["sparse"] else "dense (sign pattern)"
    return f"{method['method']}, {kind}" + (f", {seeds} seeds" if seeds > 1 else "")


def _counts(methods: list[dict[str, Any]], studies: list[Study]) -> list[list[str]]:
    """Dead units and distinct supports: counts, so without an interval."""
    by_hash = {s["run"]["hash"]: s for s in studies}
    rows = [["dead units"], ["distinct supports"]]
    for method in methods:
        group = [by_hash[h] for h in method["runs"]]
        rows[0].append(", ".join(f"{s['supports']['dead_units']} of {s['run']['latent']}" for s in group))
        rows[1].append(", ".join(f"{s['supports']['distinct']} in {s['supports']['frames']}" for s in group))
    return rows


def _block(title: str, lines: list[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name}: {value}" for name, value in lines if value)])
