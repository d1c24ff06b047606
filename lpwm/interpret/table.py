"""Comparisons as text: one column a method, sparse before dense."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lpwm.interpret.compare import MEASURES, Comparison, Method
from lpwm.interpret.results import Estimate, Study

LABEL = {True: "sparse", False: "dense (sign pattern)"}


def number(value: Estimate, percent: bool = False, signed: bool = False) -> str:
    """`98.4 % [97.9, 99.0]` or `0.331 [0.284, 0.379]`; without brackets where nothing is known of the spread."""
    scale, digits = (100, 1) if percent else (1, 3)
    sign = "+" if signed else ""

    def one(x: float) -> str:
        return f"{round(scale * x, digits) + 0.0:{sign}.{digits}f}"

    text = one(value.estimate) + (" %" if percent else "")
    bounds = "" if value.low is None or value.high is None else f" [{one(value.low)}, {one(value.high)}]"
    return text + bounds


def table(compared: Comparison, studies: Sequence[Study], width: int = 80) -> str:
    methods = compared.methods
    heads = [_head(m) for m in methods]
    body = [[m.title, *(number(row.measures[key], m.percent) for row in methods)] for key, m in MEASURES.items()]
    body += _counts(methods, studies)
    gaps = compared.differences
    if len({(d.a, d.b) for d in gaps}) == 1:  # one sparse method next to one dense one
        heads.append("sparse − dense")
        for line, d in zip(body, gaps, strict=False):
            line.append(number(d, MEASURES[d.measure].percent, signed=True))
    return columns(["", *heads], body, width)


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80, title: str = "") -> str:
    """Rows under heads as text, no line longer than `width`."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i, head in enumerate(heads):
        made.add_column(head, no_wrap=i == 0)
    for row in rows:
        made.add_row(*map(escape, row))  # what is missing at the end stays empty
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(made)
    lines = [textwrap.fill(line, width) for line in title.splitlines()]
    return "\n".join(lines + [line.rstrip() for line in capture.get().splitlines()])


def _head(method: Method) -> str:
    seeds = len(method.seeds)
    return f"{method.method}, {LABEL[method.sparse]}" + (f", {seeds} seeds" if seeds > 1 else "")


def _counts(methods: Sequence[Method], studies: Sequence[Study]) -> list[list[str]]:
    """Dead units and distinct supports: counts, so without an interval."""
    by_hash = {s.run.hash: s for s in studies}
    rows = [["dead units"], ["distinct supports"]]
    for method in methods:
        group = [by_hash[h] for h in method.runs]
        rows[0].append(", ".join(f"{s.supports.dead_units} of {s.run.latent}" for s in group))
        rows[1].append(", ".join(f"{s.supports.distinct} in {s.supports.frames}" for s in group))
    return rows


def heading(first: Study) -> str:
    world, probes = first.world, first.probes
    g, visible = world.options.get("g"), first.settings.visible
    zones = "visible" if visible else "hidden"
    if visible != world.trained_visible:
        zones += " (not as in training)"
    return (
        f"piecewise {g}×{g}, zones {zones}; {first.grid.resolution}² cells;\n{probes.frames} held-out frames of "
        f"{len(probes.trajectories)} trajectories; commonest zone {100 * probes.majority:.1f} %"
    )


def cell_lines(studies: Sequence[Study], cell: tuple[int, int]) -> str:
    """The mean Jaccard index of one reference cell with the cells of every zone."""
    lines = [f"mean Jaccard index of cell {cell[0]} {cell[1]} with the cells of zone"]
    for one in studies:
        values, zones = one.jaccard_map(*cell), one.zones_nn
        own = zones[cell]
        means = [
            f"{k}{' (its own)' if k == own else ''} {values[zones == k].mean():.2f}" for k in sorted(set(zones.flat))
        ]
        lines += [f"  {one.run.name}:", f"    {', '.join(means)}"]
    return "\n".join(lines)
