"""The target study drawn and told: realized against asked activity, and what coordinate slices changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lpwm.report import palette
from lpwm.report.drawn import GRAY, picture, save
from lpwm.report.markup import table

from .study_grid import MEASURES
from .study_table import (
    COMPARED_HEADS,
    FOLLOW_HEADS,
    absent,
    compared_rows,
    follow_rows,
    heads,
    rows,
    sentences,
    upper,
    ways,
)

MARKS = {0.5: "v", 1.0: "o", 2.0: "s"}


def figure(found: Mapping[str, Any]) -> Figure:
    """Left: realized against asked activity. Then a panel a measure: plain and coordinate slices side by side."""
    shown = ["ratio", "zone_support", *ways(dict(found))[:1]]
    fig = Figure(figsize=(2.6 * (len(shown) + 1), 3.1))
    first, *rest = fig.subplots(1, len(shown) + 1)
    axes = sorted({r["cell"]["axis_fraction"] for r in found["cells"]})
    color = {a: palette.LIGHT[k % len(palette.LIGHT)] for k, a in enumerate(axes)}
    first.plot([0, 0.6], [0, 0.6], color=GRAY, lw=0.8, ls=":", label="as asked")
    for k, row in enumerate(found["cells"]):
        cell, m = row["cell"], row["measures"]["active"]
        if m is None:
            continue
        x = row["target"]["active"] + 0.004 * (axes.index(cell["axis_fraction"]) - 0.5)
        ink, mark = color[cell["axis_fraction"]], MARKS.get(cell["p"], "D")
        first.errorbar(
            x,
            m["estimate"],
            [[m["estimate"] - m["low"]], [m["high"] - m["estimate"]]],
            color=ink,
            fmt=mark,
            ms=4,
            lw=1,
            capsize=1.5,
        )
        if k == 0 or cell["axis_fraction"] != found["cells"][k - 1]["cell"]["axis_fraction"]:
            name = "plain slices" if cell["axis_fraction"] == 0 else f"{100 * cell['axis_fraction']:g} % coordinate"
            first.plot([], [], "o", color=ink, ms=4, label=name)
    for p in sorted({r["cell"]["p"] for r in found["cells"]}):
        first.plot([], [], MARKS.get(p, "D"), color=GRAY, ms=4, label=f"p = {p:g}")
    first.set(xlabel="P(y > 0) of the target", ylabel="active fraction", title="Activity")
    first.set_ylim(bottom=0)
    first.legend(fontsize=6.5)
    for axis, name in zip(rest, shown, strict=True):
        _paired(axis, found, name, color)
    return fig


def _paired(axis: Any, found: Mapping[str, Any], name: str, color: Mapping[float, str]) -> None:
    targets = sorted({(r["cell"]["p"], -r["cell"]["mu"]) for r in found["cells"]})
    for row in found["cells"]:
        cell, m = row["cell"], row["measures"][name]
        if m is None:
            continue
        y = targets.index((cell["p"], -cell["mu"])) + 0.3 * (cell["axis_fraction"] > 0)
        ink = color[cell["axis_fraction"]]
        axis.plot([m["low"], m["high"]], [y, y], color=ink, lw=1.5)
        axis.plot([m["estimate"]], [y], "o", color=ink, ms=4)
        axis.plot(m["values"], np.full(len(m["values"]), y), "|", color=ink, ms=4, alpha=0.6)
    each = [v for r in found["cells"] if (m := r["measures"][name]) is not None for v in m["values"]]
    if each:  # two seeds that differ give an interval as wide as a house: it may run off the panel
        room = 0.25 * (max(each) - min(each)) + 1e-3
        axis.set_xlim(min(each) - room, max(each) + room)
    axis.set_yticks(range(len(targets)), [f"p {p:g}, μ {-mu:g}" for p, mu in targets], fontsize=7)
    axis.set_ylim(len(targets) - 0.4, -0.6)
    axis.set_title(_short(name), fontsize=8)
    axis.grid(axis="y", visible=False)


def _short(name: str) -> str:
    return upper(MEASURES.get(name, name.replace(", random", ",\nrandom goals")))


def write(found: Mapping[str, Any], folder: str | Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    return save(folder, {"target-study": lambda: figure(found)}, formats)


def section(documents: Sequence[Mapping[str, Any]]) -> str | None:
    """The newest study as a table, its figure, and what it says."""
    if not documents:
        return None
    found = dict(documents[-1])
    train, n = found["base"]["train"], len(found["seeds"])
    intro = (
        f"<p>Small Piecewise models, {train['steps']:,} steps of {train['batch']} clips, {n} training seeds a cell; "
        "intervals are 95 % over seeds. The last column's controls on the same episodes: "
        f"{escape(_controls(found))}.</p>"
    )
    lines = "".join(f"<li>{escape(s)}</li>" for s in (*sentences(found), *absent(found)))
    body = [
        ("", [escape(f"p {row[0]}, μ {row[1]}".replace("-", "−")), *(_two_lines(c) for c in row[2:])])
        for row in rows(found)
    ]
    drawn = picture(
        lambda: figure(found),
        "Realized against asked activity; prediction, probes, planning",
        "Active fraction against the target's, then error, zone accuracy and success; the numbers are in the table.",
    )
    return (
        intro
        + f'<ul class="plain">{lines}</ul>'
        + drawn
        + table("How activity follows the target, over seeds", list(FOLLOW_HEADS), _body(follow_rows(found)))
        + table("What coordinate slices changed", list(COMPARED_HEADS), _body(compared_rows(found)))
        + table("Every cell", ["Target", *heads(found)[2:]], body)
    )


def _body(lines: list[list[str]]) -> list[tuple[str, list[str]]]:
    return [("", [_two_lines(c) for c in line]) for line in lines]


def _two_lines(cell: str) -> str:
    """The interval beneath its estimate."""
    value, bracket, rest = escape(cell).partition(" [")
    return f'{value}<br><span class="muted num">[{rest}</span>' if bracket else value


def _controls(found: Mapping[str, Any]) -> str:
    if not found["controls"]:
        return "not run"
    name, rates = list(found["controls"].items())[-1]
    return f"{name}: " + ", ".join(f"{who} {100 * r['terminal']:.0f} %" for who, r in rates.items())
