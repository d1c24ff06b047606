"""A sweep as one page: success of every setting, its seeds pooled, as a table and a figure."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lpwm.core.errors import UserError
from lpwm.core.files import check_output, make_folder, write_whole
from lpwm.core.json import dump_json, from_json
from lpwm.report import figures
from lpwm.report.page import environment, stamp
from lpwm.report.palette import LIGHT
from lpwm.stats import Interval, Result, success_interval
from lpwm.sweep.grid import Cell
from lpwm.sweep.status import Sweep
from lpwm.sweep.worker import CellResult, ledger_of
from lpwm.train.run_config import method_digest


@dataclass(frozen=True)
class Setting:
    """The finished cells that differ in their seed alone."""

    name: str
    seeds: tuple[int, ...]
    dead: int
    active: float | None  # share of active units, mean over seeds
    error: float | None  # held-out, relative, one block ahead, mean over seeds
    success: dict[str, Interval]  # by evaluation, at its largest budget; a dead run has no success


def settings_of(root: Path) -> tuple[Sweep, list[Setting]]:
    """Every setting of a sweep's folder with a finished cell, in the grid's order."""
    sweep, ledger = Sweep.read(root), ledger_of(root)
    groups: dict[str, list[tuple[Cell, CellResult]]] = defaultdict(list)
    for record in filter(None, map(ledger.record, sweep.cells)):
        where = f"the record of cell {record.hash}"
        cell, result = from_json(Cell, record.cell, where), from_json(CellResult, record.result, where)
        groups[f"{cell.name} {method_digest(cell.config)}"].append((cell, result))
    return sweep, [_setting(sweep, group) for group in groups.values()]


def _setting(sweep: Sweep, group: list[tuple[Cell, CellResult]]) -> Setting:
    results = [result for _, result in group]
    success: dict[str, list[np.ndarray]] = {}
    for result in results:
        for name, every in result.evals.items():
            for planned in [p for p in every if p.goals == sweep.goals] or every:
                title = f"{name}: {planned.goals} goals, H = {planned.horizon}, R = {planned.receding}"
                lines = planned.at(planned.largest, sweep.measure).success
                bits = np.array([[c == "1" for c in line] for line in lines])
                success.setdefault(f"{title}, {sweep.measure} at {planned.largest} steps", []).append(bits)
    dead = sum(bool(r.dead) for r in results)
    return Setting(
        group[0][0].setting,
        tuple(c.config.train.seed for c, _ in group),
        dead,
        _mean([r.train.get("active_fraction") for r in results]),
        _mean([next(iter(r.held_out.error_depth), None) for r in results]),
        {title: _interval(rows, dead) for title, rows in success.items()},
    )


def _interval(rows_SPE: list[np.ndarray], dead: int) -> Interval:
    every = np.stack([*rows_SPE, *[np.zeros_like(rows_SPE[0])] * dead])
    return success_interval(Result.of("setting", every, episodes=range(every.shape[2])))


def _mean(values: list[float | None]) -> float | None:
    kept = [v for v in values if v is not None]
    return float(np.mean(kept)) if kept else None


def draw(settings: list[Setting], titles: list[str]) -> Figure:
    """Success with its interval, a row per setting and a panel per evaluation."""
    figure = Figure(figsize=(3.2 + 2.6 * len(titles), 0.9 + 0.24 * len(settings)))
    axes = figure.subplots(1, len(titles), squeeze=False, sharey=True)[0]
    for axis, title, color in zip(axes, titles, LIGHT * len(titles), strict=False):
        for y, value in ((y, s.success[title]) for y, s in enumerate(settings) if title in s.success):
            axis.plot([100 * value.low, 100 * value.high], [y, y], color=color, lw=1.6)
            axis.plot([100 * value.estimate], [y], "o", color=color, ms=4.5)
        axis.set(title=title.partition(", ")[0], xlabel="success (%)", xlim=(-4, 104))
    figures.curves.name_rows(axes[0], [s.name for s in settings])
    return figure


def report(
    root: Path, out: Path, heading: str = "", pictures: Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Write the page, its numbers as JSON next to it, and the figure where wanted."""
    sweep, settings = settings_of(root)
    if not settings:
        raise UserError(f"no cell of {root} is finished yet: lpwm sweep status {root} shows where it stands.")
    titles = list(dict.fromkeys(title for s in settings for title in s.success))
    made = {"sweep": lambda: draw(settings, titles)} if titles else {}
    finished = sum(len(s.seeds) for s in settings)
    page = (
        environment()
        .get_template("sweep.html")
        .render(
            title=heading or f"Sweep {sweep.name}",
            made=stamp(),
            settings=settings,
            titles=titles,
            finished=finished,
            cells=len(sweep.cells),
            figures=made,
        )
    )
    numbers = out.with_suffix(".json")
    content = {"kind": "lpwm sweep report", "version": 2, "name": sweep.name, "cells": len(sweep.cells)}
    content |= {"finished": finished, "settings": settings}
    for path in (out, numbers):
        check_output(path, overwrite)
    make_folder(out.parent)
    write_whole(out, page)
    write_whole(numbers, dump_json(content, indent=1))
    drawn = figures.save(pictures, made, overwrite=overwrite) if pictures is not None else []
    return {**content, "page": str(out), "numbers": str(numbers), "figures": [str(p) for p in drawn]}
