"""One HTML file with everything in it: opens from disk, asks no network, in any browser of the last years.

Tables, notes and provenance are written here, so that they read without a script; arena, episodes and curves are
drawn in the browser from the data at the end of the file. `write` takes plain dictionaries: run folders are
`gather.gather`'s affair.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.version import __version__
from lpwm.report import palette, plots, provenance, sections
from lpwm.report.found import found_of
from lpwm.report.reading import study_data
from lpwm.report.scene import scene

SCRIPTS = ("base.js", "arena.js", "raster.js", "episodes.js", "plots.js", "start.js")
LIMIT = 6_000_000  # bytes


def write(
    out: str | Path,
    runs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]] = (),
    studies: Sequence[Mapping[str, Any]] = (),
    *,
    episodes: Sequence[Mapping[str, Any]] = (),
    readings: Sequence[Mapping[str, Any]] = (),
    title: str = "",
    notes: Sequence[str] = (),
    commands: Sequence[str] = (),
    when: datetime | None = None,
) -> Path:
    """Write the page and return its path.

    runs         name, hash, data, version, config, world, train and val records (`gather.run_of`)
    evaluations  what `lpwm eval` writes;  studies: what `lpwm interpret` writes
    episodes     trajectories to replay (`gather.stored_episodes`, `gather.evaluated_episodes`)
    readings     sparsity, contact, target studies, the proposition (`readings.pick`)
    commands     the command lines that made all this, for the footer
    """
    text = render(
        runs,
        evaluations,
        studies,
        episodes=episodes,
        readings=readings,
        title=title,
        notes=notes,
        commands=commands,
        when=when,
    )
    data = text.encode()
    if len(data) > LIMIT:
        raise UserError(
            f"the page would have {len(data) / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f}: report fewer runs at a time."
        )
    path = Path(out)
    make_folder(path.parent)
    write_whole(path, data)
    return path


def render(
    runs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]] = (),
    studies: Sequence[Mapping[str, Any]] = (),
    *,
    episodes: Sequence[Mapping[str, Any]] = (),
    readings: Sequence[Mapping[str, Any]] = (),
    title: str = "",
    notes: Sequence[str] = (),
    commands: Sequence[str] = (),
    when: datetime | None = None,
) -> str:
    """The page as text."""
    if not runs:
        raise UserError("a report needs at least one run.")
    made = (when or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC").lstrip("0")
    found = found_of(runs, evaluations, studies, episodes, readings)
    replayed = []
    for entry in found.ordered(episodes):
        name, color = found.look(entry)
        replayed.append({**entry, "name": name, "color": color})
    body = sections.body(found)
    data = {
        "colors": {"light": palette.LIGHT, "dark": palette.DARK, "map": palette.stops()},
        "studies": [study_data(found, s) for s in found.studies],
        "episodes": replayed,
        "scenes": _scenes(replayed),
        "plots": plots.plots(found),
    }
    return Template(_asset("page.html")).substitute(
        title=escape(title or "World models, trained and read"),
        lead=sections.lead(found),
        made=escape(made),
        version=escape(__version__),
        css=_asset("page.css"),
        nav=body.nav,
        sections=body.html,
        notes="".join(f'<p class="note">{escape(n)}</p>' for n in notes),
        provenance=provenance.provenance(found, commands),
        data=_json(data),
        plotly=_plotly(),
        script="\n".join(_asset(name) for name in SCRIPTS),
    )


def _scenes(episodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """The scene of each group of episodes, in their order."""
    known: dict[str, dict[str, Any] | None] = {}
    out = []
    for entry in episodes:
        key = json.dumps(entry["world"], sort_keys=True)
        if key not in known:
            known[key] = scene(entry["world"])
        out.append(known[key])
    return out


def _json(data: Any) -> str:
    """JSON that cannot end the script element it stands in; NaN is refused rather than written."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _asset(name: str) -> str:
    return (resources.files("lpwm.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """plotly.min.js as its package ships it, gzipped and base64: 2 MB instead of 4.8, and parsed only after the
    page stands."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)).decode()
