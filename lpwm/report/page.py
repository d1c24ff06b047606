"""One HTML file with everything in it: opens from disk, asks no network, in any browser of the last years.

Tables, notes and provenance come from the templates, so that they stand without a script; arena, episodes and curves
are drawn in the browser from the data at the end of the file. Everything from files is escaped.
"""

from __future__ import annotations

import base64
import gzip
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import fields_json, to_json
from lpwm.core.version import __version__
from lpwm.interpret.contact import FACTORS, sweep
from lpwm.interpret.results import Study
from lpwm.interpret.sparsity import arrange
from lpwm.report import palette, view
from lpwm.report.curves import Plot, plots
from lpwm.report.data import Gathered
from lpwm.report.figures import of_contact, of_theory, png
from lpwm.report.figures.codes import FEATURES
from lpwm.report.figures.contact import TITLE as FACTOR_TITLES
from lpwm.report.scene import scene
from lpwm.report.scene import title as world_title
from lpwm.report.view import Report

SCRIPTS = ("base.js", "arena.js", "raster.js", "episodes.js", "plots.js", "start.js")
LIMIT = 6_000_000  # bytes


@dataclass(frozen=True)
class Section:
    """A part of the page: templates/NAME.html, or without data the command that measures it."""

    name: str
    title: str
    there: bool
    measures: str = ""
    command: str = ""
    remark: str = ""


def write(
    out: str | Path, given: Gathered, *, title: str = "", commands: Sequence[str] = (), when: datetime | None = None
) -> Path:
    """Write the page and return its path. commands: the command lines that made all this, for the footer."""
    data = render(given, title=title, commands=commands, when=when).encode()
    if len(data) > LIMIT:
        raise UserError(
            f"the page would have {len(data) / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f}: report fewer runs at a time."
        )
    path = Path(out)
    make_folder(path.parent)
    write_whole(path, data)
    return path


def render(given: Gathered, *, title: str = "", commands: Sequence[str] = (), when: datetime | None = None) -> str:
    """The page as text."""
    if not given.runs:
        raise UserError("a report needs at least one run.")
    report = Report(given)
    drawn = plots(report)
    by_section = {name: [p for p in drawn if p.section == name] for name in ("training", "distance", "horizon")}
    sections = sections_of(report, by_section)
    return template("page.html").render(
        report=report,
        title=title or "World models, trained and inspected",
        lead=lead(report),
        made=stamp(when),
        sections=[s for s in sections if s.there],
        missing=[s for s in sections if s.measures and not s.there],
        plots=by_section,
        data=data_of(report, drawn),
        figures=of_contact(given.contact, given.evaluations) | of_theory(given.theory),
        arranged=arrange(given.sparsity) if given.sparsity else (),
        contact_studies=sweep(given.contact) if given.contact else (),
        commands=commands,
        scripts=SCRIPTS,
        plotly=_plotly(),
        python=platform.python_version(),
    )


def sections_of(report: Report, drawn: Mapping[str, Sequence[Plot]]) -> list[Section]:
    given, inspect, plan = report.given, "lpwm interpret RUN…", "lpwm eval RUN…"
    played = any(not e.control for e in given.episodes)
    training, curves, horizons = (drawn.get(name) for name in ("training", "distance", "horizon"))
    unless_open, cube = " (without --preset open)", any(r.world.name == "cube" for r in given.runs)
    of_cube = ("What changes the support", "lpwm interpret --what contact RUN…") if cube else ()
    rows: tuple[tuple[Any, ...], ...] = (
        ("results", "How well it plans", report.headline, "How well it plans", plan),
        ("training", "Training", training, "Training curves", "lpwm train", " writes log.jsonl"),
        ("arena", "Supports in the arena", given.studies, "Supports in the arena", inspect),
        ("probes", "What the code says", given.studies, "Probes", inspect),
        ("episodes", "Episodes", played, "Episodes to replay", plan, " (keeps them next to the runs)"),
        ("distance", "Latent and state distance", curves, "Latent against state distance", plan, unless_open),
        ("horizon", "Success against horizon", horizons, "Success against horizon", f"{plan} --preset horizons"),
        ("raster", "Support raster", any(s.raster for s in given.studies), "The support raster", inspect),
        ("sparsity", "How sparse", given.sparsity),
        ("contact", "What changes the support", given.contact, *of_cube),
        ("theory", "The proposition", given.theory is not None),
    )
    return [Section(name, title, bool(there), *rest) for name, title, there, *rest in rows]


def lead(report: Report) -> str:
    """The sentence under the title."""
    where = dict.fromkeys(world_title(r.file.world) for r in report.runs)
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    counts = [(sum(r.file.sparse == sparse for r in report.runs), name) for sparse, name in palette.LABEL.items()]
    counted = [(n, kind) for n, kind in counts if n]
    what = " and ".join(f"{words[n] if n < len(words) else n} {kind}" for n, kind in counted)
    models = "world models" if counted[-1][0] > 1 else "world model"
    return f"{what.capitalize()} {models} of {'; '.join(where)}, trained from pixels."


# What the browser draws from --------------------------------------------------------------------------------


def data_of(report: Report, drawn: Sequence[Plot]) -> dict[str, Any]:
    episodes, scenes = [], []
    for entry in report.ordered(report.given.episodes):
        name, color = report.look(entry)
        episodes.append({**fields_json(entry), "name": name, "color": color})
        scenes.append(scene(entry.world))
    return {
        "colors": {"light": palette.LIGHT, "dark": palette.DARK, "map": palette.stops()},
        "studies": [_study(report, s) for s in report.given.studies],
        "episodes": episodes,
        "scenes": scenes,
        "plots": drawn,
    }


def _study(report: Report, study: Study) -> dict[str, Any]:
    grid, raster = study.grid, study.raster
    shown = ("episode", "supports", "zones", "instability")
    return {
        "label": report.study_label(study),
        "sparse": study.run.sparse,
        "color": report.color(study),
        "n": grid.resolution,
        "x": grid.x,
        "y": grid.y,
        "zones": [z for row in grid.zones for z in row],
        "supports": grid.supports,
        "order": study.supports.unit_order,
        **({"raster": {name: getattr(raster, name) for name in shown}} if raster else {}),
    }


# Templates --------------------------------------------------------------------------------------------------


def stamp(when: datetime | None = None) -> str:
    return (when or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC").lstrip("0")


@cache
def template(name: str) -> jinja2.Template:
    loader = jinja2.PackageLoader("lpwm.report")
    made = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    made.filters |= {
        "asset": _asset,
        "fixed": view.fixed,
        "interval": view.interval,
        "median_steps": view.median_steps,
        "percent": view.percent,
        "place": lambda v: f"{3 + 94 * min(max(v, 0.0), 1.0):.1f}",
        "png": png,
        "drawn_png": lambda figure: png(lambda: figure, dpi=130),
        "script_json": _script_json,
        "short": view.short,
    }
    made.globals |= {
        "version": __version__,
        "label": palette.LABEL,
        "feature_titles": FEATURES,
        "factors": FACTORS,
        "factor_titles": FACTOR_TITLES,
    }
    return made.get_template(name)


def _script_json(data: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(to_json(data), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def _asset(name: str) -> Markup:
    return Markup((resources.files("lpwm.report") / "assets" / name).read_text(encoding="utf-8"))


@cache
def _plotly() -> str:
    """plotly.min.js as its package ships it, gzipped and base64: 2 MB instead of 4.8, and parsed only after the
    page stands."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)).decode()
