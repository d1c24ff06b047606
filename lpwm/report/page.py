"""One HTML file with everything in it: opens from disk, asks no network, in any browser of the last years.

Tables, notes and provenance come from the templates, so that they stand without a script; arena, episodes and curves
are drawn in the browser from the data at the end of the file. Everything from files is escaped.
"""

import base64
import gzip
import json
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lpwm.core.config import flat, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import fields_json, to_json
from lpwm.core.version import __version__
from lpwm.interpret.results import FactorStudy, Study
from lpwm.interpret.sparsity import arrange
from lpwm.recipes import RECIPES, recipe
from lpwm.report import palette, view, words
from lpwm.report.curves import Plot, plots
from lpwm.report.figures import png
from lpwm.report.figures.codes import FEATURES
from lpwm.report.gather import Gathered, RunFile, Shown
from lpwm.report.view import Report, method_key

SCRIPTS = ("base.js", "engine.js", "play.js", "arena.js", "units.js", "episodes.js", "plots.js", "start.js")
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
    """Write the page and return its path. commands: what made all this, for the footer; found out if not given."""
    fewer = replace(given, episodes=given.episodes[:1])
    for kept in (given, fewer, replace(fewer, play={})):  # what takes most room is left out first
        data = render(kept, title=title, commands=commands, when=when).encode()
        if len(data) <= LIMIT:
            break
    else:
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
    named = ("training", "imagination", "distance", "horizon")
    by_section = {name: [p for p in drawn if p.section == name] for name in named}
    sections = sections_of(report, by_section)
    return (
        environment()
        .get_template("page.html")
        .render(
            report=report,
            title=title or "World models, trained and inspected",
            opening=words.opening(report),
            lead=words.lead(report),
            made=stamp(when),
            sections=[s for s in sections if s.there],
            missing=[s for s in sections if s.measures and not s.there],
            plots=by_section,
            data=data_of(report, drawn),
            arranged=arrange(given.sparsity) if given.sparsity else (),
            commands=commands or commands_of(given),
            scripts=SCRIPTS,
            plotly=_plotly(),
            python=platform.python_version(),
        )
    )


def sections_of(report: Report, drawn: Mapping[str, Sequence[Plot]]) -> list[Section]:
    """In the order of the page. One that is not there is named with its command where it would apply."""
    given, inspect, plan = report.given, "lpwm interpret RUN…", "lpwm eval RUN…"
    names = {report.world(run).name for run in given.runs}
    recorded, zones = "recordings" in names, "piecewise" in names
    imagine, planned = "lpwm interpret --what imagination RUN…", "" if recorded else "How well it plans"
    arena = ("Supports in the arena", inspect) if zones else ()
    rows: tuple[tuple[Any, ...], ...] = (
        ("episodes", "Watch it plan", given.episodes, "" if recorded else "Episodes to watch", plan),
        ("play", "Plan yourself", given.play),
        ("results", "How well it plans", report.headline, planned, plan),
        ("imagination", "What it imagines", given.imagination, "What it imagines", imagine),
        ("recorded", "On held-out recordings", given.recorded),
        ("units", "What each unit answers to", report.units, "What each unit answers to", inspect),
        ("arena", "Supports in the arena", given.studies, *arena),
        ("probes", "What the code says", given.studies),
        ("factors", "What the code tells", given.factors or any(r.factors for r in given.recorded)),
        ("sparsity", "How sparse", given.sparsity),
        ("distance", "Distance in the code and in the world", drawn["distance"]),
        ("horizon", "Success against horizon", drawn["horizon"]),
        ("training", "Training", drawn["training"], "Training curves", "lpwm train", " writes log.jsonl"),
        ("trained", "What was trained", given.runs),
    )
    return [Section(name, title, bool(there), *rest) for name, title, there, *rest in rows]


def commands_of(given: Gathered) -> list[str]:
    """The command lines that make these runs, evaluations and studies again, in the folder where the runs lie."""
    folders = " ".join(_folder(r) for r in given.runs)
    out = [train_command(r) for r in given.runs]
    if given.evaluations:
        out.append(f"lpwm eval {folders} --repeat EVALUATION.json")
    if given.studies:
        out.append(f"lpwm interpret {folders}")
    return [*out, f"lpwm report {folders}"]


def _folder(run: RunFile) -> str:
    return shlex.quote(f"{method_key(run.name)}-{run.hash}")


def train_command(run: RunFile) -> str:
    """`lpwm train RECIPE` with the fields that differ from it; a run of no known recipe is continued by its folder."""
    if run.name not in RECIPES:
        return f"lpwm train --resume {_folder(run)} --out ."
    given, usual = flat(to_dict(run.config)), flat(to_dict(recipe(run.name)))
    changed = [
        f"--{field} {' '.join(shlex.quote(str(v)) for v in (value if isinstance(value, list | tuple) else [value]))}"
        for field, value in given.items()
        if field in usual and value != usual[field]
    ]
    return " ".join([f"lpwm train {run.name}", *changed, "--out ."])


# What the browser draws from --------------------------------------------------------------------------------


def data_of(report: Report, drawn: Sequence[Plot]) -> dict[str, Any]:
    runs = report.runs
    return {
        "colors": {"light": palette.LIGHT, "dark": palette.DARK, "map": palette.stops()},
        "studies": [_study(report, s) for s in report.given.studies],
        "units": [_units(report, s) for s in report.units],
        "play": [{"label": runs[i].label, "color": runs[i].color, **model} for i, model in report.given.play.items()],
        "episodes": [_episodes(report, shown) for shown in report.given.episodes],
        "plots": drawn,
    }


def _episodes(report: Report, shown: Shown) -> dict[str, Any]:
    cell, several = shown.cell, len({s.evaluation for s in report.given.episodes}) > 1
    name = f"{cell.goals.capitalize()} goals, plans of {cell.horizon} blocks, {cell.receding} executed"
    methods = []
    for row in report.ordered(cell.methods, shown.evaluation - 1):
        title, color = report.look(row, shown.evaluation - 1)
        methods.append({**fields_json(row), "name": title, "color": color})
    about = {"goal": cell.goal, "ids": len(cell.ids), "steps": cell.steps, "sheets": shown.sheets}
    return {"name": name + f", evaluation {shown.evaluation}" * several, "methods": methods, **about}


def _units(report: Report, study: Study | FactorStudy) -> dict[str, Any]:
    assert study.units is not None
    place, sparse = "zone" if study.units.zoned else "quarter", study.run.sparse
    named = {"label": report.label(study), "color": report.color(study), "place": place, "sparse": sparse}
    return {**fields_json(study.units), **named}


def _study(report: Report, study: Study) -> dict[str, Any]:
    grid = study.grid
    return {
        "label": report.study_label(study),
        "sparse": study.run.sparse,
        "color": report.color(study),
        "n": grid.resolution,
        "x": grid.x,
        "y": grid.y,
        "zones": [z for row in grid.zones for z in row],
        "supports": grid.supports,
    }


# Templates --------------------------------------------------------------------------------------------------


def stamp(when: datetime | None = None) -> str:
    return (when or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC").lstrip("0")


@cache
def environment() -> jinja2.Environment:
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
        "script_json": _script_json,
        "sentences": words.sentences,
        "short": view.short,
        "times": view.times,
    }
    made.globals |= {"version": __version__, "label": palette.LABEL, "feature_titles": FEATURES}
    return made


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
