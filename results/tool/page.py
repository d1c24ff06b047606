"""results/README.md, whole, from the JSON next to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError, nearest
from lpwm.core.files import make_folder, write_whole
from lpwm.stats import MIN_SEEDS

from . import figures
from .claims import CLAIMS, ROWS, Claim
from .evidence import Evidence, conflicts, evidence
from .provenance import controls, provenance
from .read import MADE, Results, read_results
from .study_tables import section as study_section
from .text import pipes
from .verdict import NOT_RUN, RULE, VERDICTS

RESULTS = Path(__file__).resolve().parents[1]
SHOWN = 6  # lines under a claim; all of them are in claims.json
TARGETS = "targets"  # the part of notes.md about the target study
FIGURES = {
    "differences": "Differences with 95 % intervals; gray: what the paper reports",
    "piecewise": "Random goals: ours beside the paper's",
    "jaccard": "Jaccard index of supports with that at +, one seed of each",
    "horizons": "Success against the horizon",
    figures.TARGETS: "Realized against asked activity, then prediction, probes and planning",
}
UNDER = {"piecewise-2x2": ("piecewise",), "probes": ("jaccard", "horizons")}  # row -> its figures
Ours = dict[Claim, list[Evidence]]


def write(folder: str | Path = RESULTS, out: str | Path | None = None) -> dict[str, Any]:
    """Read every JSON under `folder`; write README.md, claims.json and figures/. Free text comes from its notes.md.

    Written into results/ or into `out`, which must be new or empty: no other README.md is ever replaced.
    Returns the files written and the count of each verdict.
    """
    folder = Path(folder)
    place = _place(folder, out)
    results, notes = read_results(folder), read_notes(folder / "notes.md")
    make_folder(place)
    ours: Ours = {claim: evidence(claim, results) for claim in CLAIMS}
    drawn = figures.write(place / "figures", ours, results)
    write_whole(place / "README.md", page(ours, results, notes, [p.stem for p in drawn]))
    write_whole(place / "claims.json", json.dumps(document(ours), indent=1, ensure_ascii=False) + "\n")
    return {"files": [place / "README.md", place / "claims.json", *drawn], "verdicts": counts(ours)}


def _place(folder: Path, out: str | Path | None) -> Path:
    if out is None:
        if folder.resolve() != RESULTS:
            raise UserError(f"where to? {folder} is not this repository's results/: give a new folder as --out.")
        return RESULTS
    place = Path(out)
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"{place} is not empty, and nothing in it is replaced: give a new folder as --out.")
    return place


def verdict_of(lines: Sequence[Evidence]) -> str:
    return lines[0].verdict.verdict if lines else NOT_RUN


def counts(ours: Ours) -> dict[str, int]:
    return {v: sum(verdict_of(lines) == v for lines in ours.values()) for v in VERDICTS}


def read_notes(path: Path) -> dict[str, str]:
    """notes.md in parts: what stands before the first `## ROW` is "", then one part for every row it names."""
    if not path.exists():
        return {}
    first, *rest = re.split(r"^## +(.+?)\s*$", path.read_text(), flags=re.M)
    parts, known = {"": first.strip("\n")}, (*ROWS, TARGETS)
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        if name not in known:
            raise UserError(f"{path} has a part {name!r} that is no row of claims: {nearest(name, known)}.")
        parts[name] = text.strip("\n")
    return parts


# Text -------------------------------------------------------------------------------------------------------


def page(ours: Ours, results: Results, notes: Mapping[str, str], drawn: Sequence[str]) -> str:
    def figure(name: str) -> str:
        return f"![{FIGURES[name]}](figures/{name}.png)\n\n*{FIGURES[name]}.*" if name in drawn else ""

    blocks = [
        "# Results",
        "Written by `python -m results.tool page` from the JSON files in this folder: do not edit it. What a person "
        "has to say is in [notes.md](notes.md) and stands here verbatim; what was decided before anything was run is "
        "in [protocol.md](protocol.md).",
        notes.get("", ""),
        "## Rule",
        RULE,
        "## At a glance",
        glance(ours),
        figure("differences"),
    ]
    for row, title in ROWS.items():
        lines = {c: e for c, e in ours.items() if c.row == row}
        blocks += [f"## {title}", section(lines), notes.get(row, ""), *map(figure, UNDER.get(row, ()))]
    if results.targets or TARGETS in notes:
        studies = [part for file, study in results.targets.items() for part in study_section(file, study)]
        blocks += ["## Beyond the paper: does activity follow the target?", *(studies or ["Not run."])]
        blocks += [figure(figures.TARGETS), notes.get(TARGETS, "")]
    blocks += ["## Every evaluation, beside its controls", controls(results)]
    blocks += ["## Where the numbers come from", provenance(results)]
    blocks += [
        f"**Evaluated twice with different outcomes** (the first file counts): {line}." for line in conflicts(results)
    ]
    if results.others:
        blocks.append(f"Also here, not read: {', '.join(f'{f} ({k})' for f, k in results.others.items())}.")
    return "\n\n".join(b for b in blocks if b) + "\n"


def verdict_text(line: Evidence) -> str:
    start = f"**{line.verdict.verdict}**"
    reduced = f"{start} at a reduced size" if line.reduced else start
    return line.verdict.text().replace(start, reduced, 1)


def _seeds(line: Evidence) -> str:
    return "–" if not line.seeds else f"{line.seeds}{'' if line.seeds >= MIN_SEEDS else ' (few)'}"


def glance(ours: Ours) -> str:
    rows, silent = [["claim", "paper", "ours", "seeds", "size", "verdict"]], 0
    for claim, lines in ours.items():
        title = f"{ROWS[claim.row].partition(':')[0].partition(',')[0]} · {claim.text}"
        if lines:
            size = "reduced" if lines[0].reduced else "paper's"
            rows.append([title, claim.paper, lines[0].ours, _seeds(lines[0]), size, verdict_text(lines[0])])
        elif claim.row == "active":
            silent += 1
        else:
            rows.append([title, claim.paper, "–", "–", "", f"**{NOT_RUN}**"])
    told = ", ".join(f"{n} {v}" for v, n in counts(ours).items() if n)
    reduced = sum(bool(lines) and lines[0].reduced for lines in ours.values())
    tail = f"\n\n{silent} further numbers (active fraction by rung and width) were not run." if silent else ""
    intro = f"{len(ours)} claims: {told}. Of those that were run, {reduced} rest on reduced sizes only."
    return f"{intro}\n\n{pipes(rows)}{tail}"


def section(lines: Mapping[Claim, list[Evidence]]) -> str:
    """Every claim of a row with its lines."""
    rows = [["claim", "paper", "ours (95 %)", "seeds", "size and protocol", "verdict"]]
    for claim, many in lines.items():
        for line in many[:SHOWN]:
            ours = line.ours + (f"<br>{line.also}" if line.also else "")
            where = f"{line.size}<br>{line.protocol}"
            rows.append([claim.text, claim.paper, ours, _seeds(line), where, verdict_text(line)])
    more = sum(max(0, len(many) - SHOWN) for many in lines.values())
    silent = [c.text for c, many in lines.items() if not many]
    parts = [pipes(rows)] if len(rows) > 1 else []
    if more:
        parts.append(f"{more} further lines are in claims.json.")
    if len(silent) > 8:
        parts.append(f"Not run: {len(silent)} numbers, listed in claims.json.")
    elif silent:
        parts.append(f"Not run: {'; '.join(silent)}.")
    return "\n\n".join(parts)


# For machines -----------------------------------------------------------------------------------------------


def document(ours: Ours) -> dict[str, Any]:
    """All of it: no line is left out."""
    names = ("id", "row", "text", "paper", "kind", "low", "high")
    return {
        "kind": MADE,
        "claims": [
            {n: getattr(claim, n) for n in names} | {"verdict": verdict_of(lines), "lines": [_line(e) for e in lines]}
            for claim, lines in ours.items()
        ],
    }


def _line(e: Evidence) -> dict[str, Any]:
    line = {n: getattr(e, n) for n in ("ours", "also", "seeds", "size", "reduced", "protocol")}
    line |= {"files": list(e.files)} | {n: getattr(e.verdict, n) for n in ("verdict", "why", "exploratory")}
    # Six digits: what is below them depends on the machine.
    bounds = ("estimate", "low", "high")
    return line | {n: round(getattr(e.interval, n), 6) if e.interval else None for n in bounds}
