"""A sweep as one page: tables as HTML, figures inside it. It opens from disk, asks no network and needs no script."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.version import __version__
from lpwm.report import sweep_figures
from lpwm.report.drawn import style
from lpwm.report.markup import section, table
from lpwm.report.sweep_figures import TITLES, Made
from lpwm.report.tables import short
from lpwm.sweep.analysis import (
    Best,
    Difference,
    Found,
    Transfer,
    best_cells,
    read_results,
    sparse_minus_dense,
    transfers,
)

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{title}</title>
<style>{css}
figure.sweep img {{ max-width: 100%; height: auto; background: #fff; }}</style></head>
<body><header><div class="bar-top"><span class="brand">LpWM</span></div><h1>{title}</h1><p class="lead">{lead}</p>
<p class="made">{made} · lpwm {version}</p></header><main id="main">{body}</main></body></html>
"""


def report(root: Path, out: Path, title: str = "", figures: Path | None = None) -> dict[str, Any]:
    """Read a sweep's folder and write its page, its numbers as JSON beside it, and the figures if asked."""
    found = read_results(root)
    if not found.points:
        raise UserError(f"no cell of {root} is finished yet: lpwm sweep status {root} shows where it stands.")
    bests = best_cells(found)
    gaps, moved = sparse_minus_dense(found, bests), transfers(found)
    made = sweep_figures.draw(found, bests, gaps, moved)
    make_folder(out.parent)
    write_whole(out, render(found, bests, gaps, moved, made, title))
    numbers = out.with_suffix(".json")
    content = as_dict(found, bests, gaps, moved)
    write_whole(numbers, json.dumps(content, indent=1, allow_nan=False) + "\n")
    drawn = sweep_figures.write(figures, made) if figures is not None else []
    return {
        "page": str(out),
        "numbers": str(numbers),
        "figures": [str(p) for p in drawn],
        "cells": found.cells,
        "finished": len(found.points),
        "best": content["best"],
    }


def render(
    found: Found,
    bests: Sequence[Best],
    gaps: Sequence[Difference],
    moved: Sequence[Transfer],
    made: Sequence[Made],
    title: str = "",
    when: datetime | None = None,
) -> str:
    stamp = (when or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC").lstrip("0")
    dead = sum(bool(p.dead) for p in found.points)
    lead = f"{len(found.points)} of {found.cells} cells finished, {dead} of them dead."
    body = _best_table(found, bests) + _gaps_table(gaps) + _transfer_table(moved) + _figures(made)
    css = (resources.files("lpwm.report") / "assets" / "page.css").read_text(encoding="utf-8")
    return PAGE.format(
        title=escape(title or f"Sweep {found.name}"),
        css=css,
        lead=escape(lead),
        made=escape(stamp),
        version=escape(__version__),
        body=body,
    )


def _name(b: Best) -> str:
    kind = "" if b.key.mup else ", plain"
    return f"{b.key.method}, {TITLES.get(b.key.rung, b.key.rung)}, D = {b.key.latent}{kind}"


def _best_table(found: Found, bests: Sequence[Best]) -> str:
    if not bests:
        return section("best", "Best cells", "<p>Nothing was evaluated: give the grid an [eval] table.</p>")
    worlds = {b.key.world for b in bests}
    heads = [
        "Method",
        *([] if len(worlds) == 1 else ["World"]),
        "λ",
        "η",
        "Settings",
        "Seeds",
        "Active",
        "Dead",
        *(f"{k.eval} R={k.receding} (%)" for k in found.looks),
    ]
    rows = []
    for b in bests:
        seeds = f"{len(b.reported_on)}" + ("" if b.honest else " (chose too)")
        cells = [
            escape(_name(b)),
            *([] if len(worlds) == 1 else [escape(b.key.world)]),
            f"{b.lam:g}",
            f"{b.lr:g}",
            str(b.of),
            seeds,
            short(b.active),
            str(b.dead) if b.dead else "–",
        ]
        cells += [b.intervals[k].text().replace(" %", "") if k in b.intervals else "–" for k in found.looks]
        rows.append(("", cells))
    judge = found.looks[0].title
    text = (
        f"<p>Of each method, predictor and width, the setting with the most success ({escape(judge)}) on seed"
        f"{'s' if len(found.select) > 1 else ''} {', '.join(map(str, found.select))}, reported on the other seeds with "
        "95 % intervals. Where only one setting was run nothing was chosen and all seeds report. A dead run counts as "
        "no success.</p>"
    )
    controls = next((p.controls(found.looks[0]) for p in found.points if p.controls(found.looks[0])), {})
    if controls:
        text += (
            f"<p class='note'>Controls ({escape(judge)}): "
            + "; ".join(f"{escape(n)} {100 * v:.1f} %" for n, v in controls.items())
            + ".</p>"
        )
    if not all(b.honest for b in bests):
        text += (
            '<p class="note warn">Some cells were chosen and reported on the same seeds, because there are no others: '
            "those numbers flatter. Run more seeds.</p>"
        )
    return section("best", "Best cells", text + table("Best cells", heads, rows))


def _gaps_table(gaps: Sequence[Difference]) -> str:
    if not gaps:
        return ""
    rows = []
    for d in gaps:
        c = d.comparison
        rows.append(
            (
                "",
                [
                    f"{escape(d.a.key.method)} − {escape(d.b.key.method)}, {TITLES.get(d.a.key.rung, d.a.key.rung)}, "
                    f"D = {d.a.key.latent}",
                    escape(f"{d.look.eval} R={d.look.receding}"),
                    escape(c.difference.text(signed=True)),
                    str(c.n),
                    f"{100 * c.smallest_detectable:.0f}",
                    escape(c.verdict),
                ],
            )
        )
    heads = ["Difference", "Evaluation", "Success", "Seeds", "Smallest detectable (points)", "Verdict"]
    text = "<p>Paired on the reporting seeds and on the episodes; not corrected for the number of rows.</p>"
    return section("differences", "Sparse minus dense", text + table("Sparse minus dense", heads, rows))


def _transfer_table(moved: Sequence[Transfer]) -> str:
    if not moved:
        return ""
    rows = []
    for t in moved:
        tops = ", ".join(f"{d}: {r:g}" for d, r in t.best.items())
        rows.append(
            (
                "",
                [
                    escape(f"{t.method}, {TITLES.get(t.rung, t.rung)}, {'μP' if t.mup else 'plain'}"),
                    f"{t.lam:g}",
                    tops,
                    f"{t.decades:.1f}",
                    f"{100 * t.loss:.1f}",
                ],
            )
        )
    heads = ["Method", "λ", "Best η by D", "Spread (decades)", "Lost by the narrowest model's η (points)"]
    text = "<p>A rate transfers if the narrowest model's best one is the best for the wider ones, or nearly.</p>"
    return section("transfer", "Learning rates across widths", text + table("Learning rates", heads, rows))


def _figures(made: Sequence[Made]) -> str:
    parts = []
    for name, caption, figure in made:
        buffer = io.BytesIO()
        with style():
            figure.savefig(buffer, format="png", dpi=130)
        data = base64.b64encode(buffer.getvalue()).decode()
        parts.append(
            f'<figure class="sweep" id="{name}"><figcaption>{escape(caption)}</figcaption>'
            f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}"></figure>'
        )
    return section("figures", "Figures", "".join(parts)) if parts else ""


def as_dict(
    found: Found, bests: Sequence[Best], gaps: Sequence[Difference], moved: Sequence[Transfer]
) -> dict[str, Any]:
    """All numbers of the page."""
    return {
        "kind": "lpwm sweep report",
        "name": found.name,
        "cells": found.cells,
        "finished": len(found.points),
        "dead": [p.hash for p in found.points if p.dead],
        "lpwm": list(found.versions),
        "looks": [vars(k) for k in found.looks],
        "select_seeds": list(found.select),
        "best": [
            {
                **vars(b.key),
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
        "sparse_minus_dense": [{**vars(d.a.key), "look": d.look.title, **vars(d.comparison.row())} for d in gaps],
        "transfer": [
            {
                "world": t.world,
                "method": t.method,
                "rung": t.rung,
                "mup": t.mup,
                "lam": t.lam,
                "rates": list(t.rates),
                "curves": {str(d): [None if v != v else v for v in c] for d, c in t.curves.items()},
                "best": {str(d): r for d, r in t.best.items()},
                "decades": t.decades,
                "loss": t.loss,
            }
            for t in moved
        ],
    }
