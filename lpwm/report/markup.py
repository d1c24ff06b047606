"""Small pieces of HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def section(name: str, title: str, content: str) -> str:
    head = f'<h2 id="{name}-h">{escape(title)}</h2>'
    return f'<section id="{name}" aria-labeledby="{name}-h">{head}{content}</section>'


def table(caption: str, heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Rows are (class, cells as HTML), the first cell naming the row. On a phone each row becomes a small block."""
    top = "".join(f'<th scope="col" role="columnheader">{escape(h)}</th>' for h in heads)
    lines = []
    for kind, row in rows:
        first, *rest = row
        tds = "".join(
            f'<td role="cell" data-label="{escape(h)}"><div>{c}</div></td>'
            for h, c in zip(heads[1:], rest, strict=True)
        )
        lines.append(f'<tr role="row" class="{kind}"><th scope="row" role="rowheader">{first}</th>{tds}</tr>')
    return (
        f'<table role="table"><caption>{caption}</caption><thead role="rowgroup"><tr role="row">{top}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(lines)}</tbody></table>'
    )


def swatch(kind: int | str) -> str:
    """A dash of the palette's color, or of a class of its own; −1 is the thin one of controls."""
    name = kind if isinstance(kind, str) else "none" if kind < 0 else f"c{kind}"
    return f'<span class="swatch {name}" aria-hidden="true"></span>'


def bar(value: float | None, low: float | None, high: float | None, color: int, chance: float | None = None) -> str:
    """An estimate and its interval on a line from 0 to 1, beside the number that says it."""
    if value is None:
        return ""

    def at(v: float) -> str:
        return f"{3 + 94 * min(max(v, 0.0), 1.0):.1f}"

    marks = '<line class="axis" x1="3" x2="97" y1="7" y2="7"/>'
    if chance is not None:
        marks += f'<line class="chance" x1="{at(chance)}" x2="{at(chance)}" y1="1" y2="13"/>'
    if low is not None and high is not None:
        marks += f'<line class="whisker s{color}" x1="{at(low)}" x2="{at(high)}" y1="7" y2="7"/>'
    marks += f'<circle class="f{color}" cx="{at(value)}" cy="7" r="3"/>'
    return f'<svg class="bar" viewBox="0 0 100 14" aria-hidden="true" focusable="false">{marks}</svg>'


def legend(items: Iterable[tuple[int, str]]) -> str:
    lines = "".join(f"<li>{swatch(c)}{escape(name)}</li>" for c, name in items)
    return f'<ul class="legend">{lines}<li>{swatch("dotted")}copying the last frame</li></ul>'


def figures_of(drawn: Sequence[Mapping[str, Any]], section: str, intro: str) -> str | None:
    mine = [p for p in drawn if p["section"] == section]
    if not mine:
        return None
    figures = ""
    for p in mine:
        name = p["id"]
        labels = f'role="img" aria-labeledby="{name}-t" aria-describedby="{name}-s"'
        figures += (
            f'<figure><figcaption id="{name}-t">{escape(p["title"])}</figcaption>'
            f'<div class="plot" id="{name}" {labels}></div>'
            f'<p class="summary" id="{name}-s">{escape(p["summary"])}</p></figure>'
        )
    return f'{intro}<div class="grid {"many" if len(mine) > 2 else "few"}">{figures}</div>'
