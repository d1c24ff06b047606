"""Curves over training and horizons, and success rates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from lpwm.report.curves import Plot
from lpwm.report.palette import color
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
        name_rows(axis, names)
        axis.set_xlim(-1, 101)
        axis.set_title(f"{cell.goals.capitalize()} goals, H = {cell.horizon}, R = {cell.receding}")
    figure.axes[-1].set_xlabel(f"at the goal after {shown[-1].cell.budgets[-1]} steps (%), 95 % intervals")
    return figure


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Named rows, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
