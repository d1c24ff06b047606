"""The page's figures for paper: PNG and PDF, one style, the same numbers and colors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator

from lpwm.core.files import disk_errors, make_folder
from lpwm.interpret.supports import jaccard, unpack
from lpwm.report import palette
from lpwm.report.drawn import style
from lpwm.report.found import Found, found_of, study_label
from lpwm.report.plots import plots
from lpwm.report.reading import FEATURES
from lpwm.report.readings import figures as reading_figures
from lpwm.report.scene import scene
from lpwm.report.tables import cells, headline

GRAY, FAINT, WALL = "#6b6f76", "#c9c5ba", "#33363b"
DASHES = {"solid": "-", "dot": ":", "dash": "--", "dashdot": "-."}
Made = tuple[str, Figure]


def write(
    folder: str | Path,
    runs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]] = (),
    studies: Sequence[Mapping[str, Any]] = (),
    *,
    episodes: Sequence[Mapping[str, Any]] = (),
    readings: Sequence[Mapping[str, Any]] = (),
    formats: Sequence[str] = ("png", "pdf"),
) -> list[Path]:
    """Every figure there are data for, as NAME.png and NAME.pdf; the files written. Arguments as of `page.write`."""
    place = Path(folder)
    make_folder(place)
    written = []
    found = found_of(runs, evaluations, studies, episodes, readings)
    with style():
        for name, figure in draw(found):
            for kind in formats:
                path = place / f"{name}.{kind}"
                # Without the date the same numbers give the same file.
                stamp = {"CreationDate": None} if kind == "pdf" else {}
                with disk_errors(path):
                    figure.savefig(path, metadata=stamp)
                written.append(path)
    return written


def draw(found: Found) -> list[Made]:
    made: list[Made] = []
    drawn = plots(found)
    for section in dict.fromkeys(p["section"] for p in drawn):
        made.append((section, _curves([p for p in drawn if p["section"] == section])))
    parts: tuple[tuple[str, Callable[[Found], Figure | None]], ...] = (
        ("success", _success),
        ("maps", _maps),
        ("probes", _probes),
        ("episodes", _episodes),
        ("raster", _raster),
    )
    for name, make in parts:
        figure = make(found)
        if figure is not None:
            made.append((name, figure))
    return made + [(name, make_reading()) for name, make_reading in reading_figures(found).items()]


def color(index: int) -> str:
    return GRAY if index < 0 else palette.LIGHT[index]


def _curves(drawn: Sequence[Mapping[str, Any]]) -> Figure:
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.6 * (columns == 1), 2.2 * rows))
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, plot in zip(axes, drawn, strict=False):
        for t in plot["traces"]:
            y = [np.nan if v is None else v for v in t["y"]]
            style = {"color": color(t["color"]), "ls": DASHES[t["dash"]], "label": t["name"]}
            axis.plot(t["x"], y, marker="o" if t["markers"] else None, **style)
            if t["low"]:
                low, high = ([np.nan if v is None else v for v in t[k]] for k in ("low", "high"))
                axis.fill_between(t["x"], low, high, color=color(t["color"]), alpha=0.13, lw=0)
        axis.set(title=plot["title"], xlabel=plot["x"], ylabel=plot["y"])
        if plot["log"]:
            axis.set_yscale("log")
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                which(FuncFormatter(lambda v, _: f"{v:g}"))
        if plot["range"]:
            axis.set_ylim(*plot["range"])
    for axis in list(axes)[len(drawn) :]:
        axis.set_visible(False)
    names, lines = [], []
    for axis in figure.axes:
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True):
            if name not in names:
                names.append(name)
                lines.append(line)
    figure.legend(lines, names, loc="outside lower left", ncols=min(4, len(names)))
    return figure


def _success(found: Found) -> Figure | None:
    shown = headline(cells(found.evaluations))
    if not shown:
        return None
    heights = [len(c["rows"]) for c in shown]
    figure = Figure(figsize=(6.2, 0.28 * sum(heights) + 0.65 * len(shown)))
    axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights).flat
    for axis, cell in zip(axes, shown, strict=True):
        ordered = found.ordered(cell["rows"], cell["evaluation"])
        names = []
        for y, row in enumerate(ordered):
            value = row["budgets"][str(cell["budgets"][-1])]["terminal"]
            name, index = found.look(row, cell["evaluation"])
            names.append(name)
            ink = color(index)
            axis.plot([100 * value["low"], 100 * value["high"]], [y, y], color=ink, lw=2)
            axis.plot([100 * value["rate"]], [y], "o", color=ink, ms=5)
        axis.set_yticks(range(len(ordered)), names)
        axis.set_ylim(len(ordered) - 0.5, -0.5)
        axis.set_xlim(-1, 101)
        axis.grid(axis="y", visible=False)
        axis.set_title(f"{cell['goals'].capitalize()} goals, H = {cell['horizon']}, R = {cell['receding']}")
    figure.axes[-1].set_xlabel(f"terminal success at {shown[-1]['budgets'][-1]} steps (%), 95 % intervals")
    return figure


def _maps(found: Found) -> Figure | None:
    """Every study's map against the cell in the middle of the first zone (the page offers every cell)."""
    if not found.studies:
        return None
    columns = min(4, len(found.studies))
    rows = -(-len(found.studies) // columns)
    figure = Figure(figsize=(2.5 * columns + 0.5, 2.6 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    image = None
    for axis, study in zip(axes, found.studies, strict=False):
        active = unpack(study["grid"]["supports"])
        n, zones = len(active), np.asarray(study["grid"]["zones"])
        row = col = n // 4
        values = jaccard(active[row, col][None], active.reshape(n * n, -1))[0].reshape(n, n)
        image = axis.imshow(values, vmin=0, vmax=1, cmap=palette.MAP)
        borders = LineCollection(_borders(zones), colors="white", linewidths=1.0, linestyles="dashed")
        axis.add_collection(borders)
        axis.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, fill=False, ec="#b00020", lw=1.5))
        axis.set(xticks=[], yticks=[], title=study_label(found, study))
        axis.grid(visible=False)
    for axis in axes[len(found.studies) :]:
        axis.set_visible(False)
    assert image is not None
    figure.colorbar(image, ax=axes, shrink=0.8, label="Jaccard index with the marked cell")
    return figure


def _borders(zones: np.ndarray[Any, Any]) -> list[list[tuple[float, float]]]:
    """Segments between cells of different zones, in the coordinates of imshow."""
    upright = np.argwhere(zones[:, 1:] != zones[:, :-1])
    level = np.argwhere(zones[1:] != zones[:-1])
    return [[(c + 0.5, r - 0.5), (c + 0.5, r + 0.5)] for r, c in upright] + [
        [(c - 0.5, r + 0.5), (c + 0.5, r + 0.5)] for r, c in level
    ]


def _probes(found: Found) -> Figure | None:
    studies = [s for s in found.studies if s.get("probes")]
    if not studies:
        return None
    figure = Figure(figsize=(6.6, 0.8 + 0.5 * len(studies) + 0.9))
    for axis, (target, title) in zip(
        figure.subplots(1, 2), (("zone", "Zone accuracy"), ("position", "Position R²")), strict=True
    ):
        features = list(dict.fromkeys(f for s in studies for f in s["probes"][target]))
        for i, study in enumerate(studies):
            run = found.by_hash(study["run"]["hash"])
            ink = color(found.color(run))
            for j, feature in enumerate(features):
                score = study["probes"][target].get(feature)
                if score is None:
                    continue
                y = j + (i - (len(studies) - 1) / 2) * 0.6 / len(studies)
                label = study_label(found, study) if j == 0 else None
                axis.plot([score["low"], score["high"]], [y, y], color=ink, lw=2)
                filled = {"mfc": "white"} if study["settings"]["visible"] else {}
                axis.plot([score["estimate"]], [y], "o", color=ink, ms=4.5, label=label, **filled)
                axis.plot(
                    [score["shuffled"]["estimate"]],
                    [y],
                    "|",
                    color=GRAY,
                    ms=7,
                    label="labels shuffled" if (i, j) == (0, 0) else None,
                )
        axis.set_yticks(range(len(features)), [FEATURES.get(f, f).removeprefix("From ") for f in features])
        axis.set_ylim(len(features) - 0.5, -0.5)
        axis.set_xlim(min(-0.02, axis.get_xlim()[0]), 1.02)
        axis.grid(axis="y", visible=False)
        axis.set_title(title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=3)
    return figure


def _episodes(found: Found) -> Figure | None:
    """The first episodes of the first cell, a row each; methods and controls side by side."""
    first = next((e for e in found.episodes if not e["control"]), None)
    if first is None:
        return None
    where = ("goals", "horizon", "receding", "evaluation")
    group = found.ordered([e for e in found.episodes if all(e.get(k) == first.get(k) for k in where)])
    drawn = scene(first["world"])
    if drawn is None:
        return None
    count = min(3, len(first["ids"]))
    figure = Figure(figsize=(1.9 * len(group), 1.95 * count))
    axes = figure.subplots(count, len(group), squeeze=False)
    for i in range(count):
        for axis, entry in zip(axes[i], group, strict=True):
            _scene(axis, drawn)
            path, goal = np.array(entry["path"][i]), entry["goal"][i]
            name, index = found.look(entry)
            ink = color(index)
            axis.add_patch(Circle(goal, drawn["within"], fill=False, ls="--", lw=0.9, ec="#1c1e22"))
            axis.plot(path[:, 0], path[:, 1], color=ink, lw=1.2)
            axis.plot(*path[0], "o", mfc="white", mec=ink, ms=3.5)
            axis.plot(*path[-1], "o", color=ink, ms=5)
            if i == 0:
                axis.set_title(name)
    return figure


def _scene(axis: Axes, s: Mapping[str, Any]) -> None:
    lines = [[(a, b), (c, d)] for a, b, c, d in s["lines"]]
    axis.add_collection(LineCollection(lines, colors=FAINT, linewidths=0.7, linestyles="dashed"))
    for x, y, dx, dy in s["pushes"]:
        arrow = {"arrowstyle": "->", "color": FAINT}
        axis.annotate("", (x + 6 * dx, y + 6 * dy), (x - 6 * dx, y - 6 * dy), arrowprops=arrow)
    for x, y, w, h in s["walls"]:
        axis.add_patch(Rectangle((x, y), w, h, color=WALL, lw=0))
    axis.set(xlim=(0, s["frame"]), ylim=(s["frame"], 0), xticks=[], yticks=[], aspect="equal")
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def _raster(found: Found) -> Figure | None:
    studies = [s for s in found.studies if s.get("raster")]
    if not studies:
        return None
    figure = Figure(figsize=(6.6, 1.9 * len(studies)))
    for axis, study in zip(figure.subplots(len(studies), 1, squeeze=False).flat, studies, strict=True):
        active = unpack(study["raster"]["supports"])[:, study["supports"]["unit_order"]]
        zones = np.asarray(study["raster"]["zones"])
        run = found.by_hash(study["run"]["hash"])
        ink = matplotlib.colors.to_rgb(color(found.color(run)))
        axis.imshow(np.where(active.T[..., None], ink, (0.957, 0.949, 0.925)), aspect="auto", interpolation="nearest")
        for t in np.flatnonzero(np.diff(zones)):
            axis.axvline(t + 0.5, color="#1c1e22", lw=0.6)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(zones)) + 1))
        for a, b in zip(starts, [*starts[1:], len(zones)], strict=True):
            if b - a > 0.06 * len(zones):
                axis.text(
                    (a + b - 1) / 2,
                    1.01,
                    f"zone {zones[a]}",
                    fontsize=7,
                    color=GRAY,
                    ha="center",
                    va="bottom",
                    transform=axis.get_xaxis_transform(),
                )
        axis.set(ylabel=f"{active.shape[1]} units", yticks=[])
        axis.set_title(study_label(found, study), pad=12)
        axis.grid(visible=False)
    figure.axes[-1].set_xlabel("step of one held-out episode; lines: the zone changes")
    return figure
