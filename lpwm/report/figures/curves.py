"""Curves over training and horizons, success rates, and paths of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator

from lpwm.report.curves import Plot
from lpwm.report.palette import FAINT, INK, color
from lpwm.report.scene import Scene, scene
from lpwm.report.view import Report

DASHES = {"solid": "-", "dot": ":", "dash": "--", "dashdot": "-."}


def legend(figure: Figure, **options: Any) -> None:
    """One entry for every name in any panel, below the figure."""
    handles: dict[str, Any] = {
        name: handle for axis in figure.axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    place: dict[str, Any] = {"loc": "outside lower left", "ncols": 4} | options
    figure.legend(handles.values(), handles.keys(), **place)


def curves(drawn: Sequence[Plot]) -> Figure:
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.6 * (columns == 1), 2.2 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, plot in zip(axes, drawn, strict=False):
        for t in plot.traces:
            ink = color(t.color)
            axis.plot(t.x, _floats(t.y), marker="o" if t.markers else None, color=ink, ls=DASHES[t.dash], label=t.name)
            if t.low is not None and t.high is not None:
                axis.fill_between(t.x, _floats(t.low), _floats(t.high), color=ink, alpha=0.13, lw=0)
        axis.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        if plot.log:
            axis.set_yscale("log")
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                which(FuncFormatter(lambda v, _: f"{v:g}"))
        if plot.range:
            axis.set_ylim(*plot.range)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    legend(figure)
    return figure


def _floats(values: Sequence[float | None]) -> list[float]:
    return [np.nan if v is None else v for v in values]


def success(report: Report) -> Figure:
    """Terminal success at the largest budget, a panel a cell."""
    shown = report.headline
    heights = [len(c.cell.rows) for c in shown]
    figure = Figure(figsize=(6.2, 0.28 * sum(heights) + 0.65 * len(shown)))
    axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights).flat
    for axis, view in zip(axes, shown, strict=True):
        cell, names = view.cell, []
        for y, row in enumerate(report.ordered(cell.rows, view.evaluation)):
            value = row.at(cell.budgets[-1]).terminal
            name, index = report.look(row, view.evaluation)
            names.append(name)
            axis.plot([100 * value.low, 100 * value.high], [y, y], color=color(index), lw=2)
            axis.plot([100 * value.rate], [y], "o", color=color(index), ms=5)
        _rows(axis, names)
        axis.set_xlim(-1, 101)
        axis.set_title(f"{cell.goals.capitalize()} goals, H = {cell.horizon}, R = {cell.receding}")
    figure.axes[-1].set_xlabel(f"terminal success at {shown[-1].cell.budgets[-1]} steps (%), 95 % intervals")
    return figure


def _rows(axis: Axes, names: Sequence[str]) -> None:
    """Named rows, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def drawable(report: Report) -> bool:
    return scene(next(e for e in report.given.episodes if not e.control).world) is not None


def episodes(report: Report) -> Figure:
    """The first episodes of the first cell, a row each; methods and controls side by side."""
    first = next(e for e in report.given.episodes if not e.control)
    place = (first.goals, first.horizon, first.receding, first.evaluation)
    same = [e for e in report.given.episodes if (e.goals, e.horizon, e.receding, e.evaluation) == place]
    group, drawn, count = report.ordered(same), scene(first.world), min(3, len(first.ids))
    assert drawn is not None
    figure = Figure(figsize=(1.9 * len(group), 1.95 * count))
    axes = figure.subplots(count, len(group), squeeze=False)
    for i in range(count):
        for axis, entry in zip(axes[i], group, strict=True):
            _scene(axis, drawn)
            path = np.array(entry.path[i])
            name, index = report.look(entry)
            ink = color(index)
            axis.add_patch(Circle(entry.goal[i], drawn.within, fill=False, ls="--", lw=0.9, ec=INK))
            axis.plot(path[:, 0], path[:, 1], color=ink, lw=1.2)
            axis.plot(*path[0], "o", mfc="white", mec=ink, ms=3.5)
            axis.plot(*path[-1], "o", color=ink, ms=5)
            if i == 0:
                axis.set_title(name)
    return figure


def _scene(axis: Axes, s: Scene) -> None:
    lines = [[(a, b), (c, d)] for a, b, c, d in s.lines]
    axis.add_collection(LineCollection(lines, colors=FAINT, linewidths=0.7, linestyles="dashed"))
    for x, y, dx, dy in s.pushes:
        arrow = {"arrowstyle": "->", "color": FAINT}
        axis.annotate("", (x + 6 * dx, y + 6 * dy), (x - 6 * dx, y - 6 * dy), arrowprops=arrow)
    for x, y, w, h in s.walls:
        axis.add_patch(Rectangle((x, y), w, h, color="#33363b", lw=0))
    axis.set(xlim=(0, s.frame), ylim=(s.frame, 0), xticks=[], yticks=[], aspect="equal")
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
