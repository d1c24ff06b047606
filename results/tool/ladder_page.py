"""A sweep as one page: tables as HTML, figures inside it. It opens from disk, asks no network and needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError
from lpwm.core.files import check_output, make_folder, write_whole
from lpwm.core.json import dump_json, to_json
from lpwm.model.predictors import title_of
from lpwm.report import figures
from lpwm.report.page import environment, stamp

from .ladder import Best, Difference, SweepResults, Transfer, best_cells, read_results, sparse_minus_dense, transfers
from .ladder_figures import Made, draw


def report(root: Path, out: Path, title: str = "", pictures: Path | None = None) -> dict[str, Any]:
    """Read a sweep's folder and write its page, its numbers as JSON next to it, and the figures where wanted."""
    numbers = out.with_suffix(".json")
    check_output(out)
    check_output(numbers)
    results = read_results(root)
    if not results.points:
        raise UserError(f"no cell of {root} is finished yet: lpwm sweep status {root} shows where it stands.")
    bests = best_cells(results)
    gaps, moved = sparse_minus_dense(results, bests), transfers(results)
    made = draw(results, bests, gaps, moved)
    make_folder(out.parent)
    write_whole(out, render(results, bests, gaps, moved, made, title))
    content = as_json(results, bests, gaps, moved)
    write_whole(numbers, dump_json({"kind": "lpwm ladder", **content}, indent=1))
    drawn = save(pictures, made) if pictures is not None else []
    return {
        "page": str(out),
        "numbers": str(numbers),
        "figures": [str(p) for p in drawn],
        "cells": results.cells,
        "finished": len(results.points),
        "best": content.get("best"),
    }


def save(folder: Path, made: Sequence[Made], formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    return figures.save(folder, {m.name: lambda m=m: m.figure for m in made}, formats)  # type: ignore[misc]


def render(
    results: SweepResults,
    bests: Sequence[Best],
    gaps: Sequence[Difference],
    moved: Sequence[Transfer],
    made: Sequence[Made],
    heading: str = "",
    when: datetime | None = None,
) -> str:
    judge = results.looks[0] if results.looks else None
    controls = next((c for p in results.points if judge and (c := p.controls(judge))), {})
    page = environment().from_string((Path(__file__).parent / "ladder.html").read_text())
    return page.render(
        title=heading or f"Sweep {results.name}",
        made=stamp(when),
        results=results,
        dead=sum(bool(p.dead) for p in results.points),
        bests=bests,
        worlds={b.key.world for b in bests},
        controls=controls,
        gaps=gaps,
        moved=moved,
        pictures=made,
        rung_title=title_of,
        png=lambda figure: figures.png(lambda: figure, dpi=130),
    )


def as_json(
    results: SweepResults, bests: Sequence[Best], gaps: Sequence[Difference], moved: Sequence[Transfer]
) -> dict[str, Any]:
    """All numbers of the page."""
    return {
        "kind": "lpwm sweep report",
        "version": 1,
        "name": results.name,
        "cells": results.cells,
        "finished": len(results.points),
        "dead": [p.hash for p in results.points if p.dead],
        "lpwm": list(results.versions),
        "looks": to_json(results.looks),
        "select_seeds": list(results.select),
        "best": [
            {
                **to_json(b.key),
                "lam": b.lam,
                "lr": b.lr,
                "setting": b.setting,
                "settings": b.of,
                "chosen_on": list(b.chosen_on),
                "reported_on": list(b.reported_on),
                "independent": b.honest,
                "dead": b.dead,
                "active_fraction": b.active,
                "success": {
                    k.title: {"rate": i.estimate, "low": i.low, "high": i.high, "unit": i.unit}
                    for k, i in b.intervals.items()
                },
            }
            for b in bests
        ],
        "sparse_minus_dense": [{**to_json(d.a.key), "look": d.look.title, **to_json(d.comparison.row())} for d in gaps],
        "transfer": to_json(moved),
    }
