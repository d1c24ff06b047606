"""The two pages of results, README.md and details.md, whole, from the JSON next to them."""

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
from .differs import table as differs
from .evidence import conflicts, evidence
from .line import Evidence
from .provenance import controls, provenance
from .read import MADE, Results, read_results
from .study_tables import section as study_section
from .text import pipes
from .verdict import DIRECTIONS, NOT_RUN, RULE

RESULTS = Path(__file__).resolve().parents[1]
SHOWN = 6  # lines under a claim; all of them are in claims.json
TARGETS = "targets"  # the part of notes.md about the target study
SUMMARY = "summary"  # that with the sentences of the first page; {claim} is our number
GENERAL = "general"  # that before the rule
FIGURES = {
    "differences": "Differences with 95 % intervals; gray: what the paper reports",
    "piecewise": "Random goals reached: ours under both planning costs, and the paper's (gray)",
    "jaccard": "Jaccard index of supports with that at +, one seed of each",
    "horizons": "Success against the horizon",
    figures.TARGETS: "Realized against target activity, then prediction, probes and planning",
}
UNDER = {"piecewise-2x2": ("piecewise",), "probes": ("jaccard", "horizons")}  # row -> its figures
NOT_JUDGED = "not judged"  # a level of another recipe
Ours = dict[Claim, list[Evidence]]


def write(folder: str | Path = RESULTS, out: str | Path | None = None) -> dict[str, Any]:
    """Read every JSON under `folder`; write README.md, details.md, claims.json and figures/. Free text comes from its
    notes.md.

    Written into results/ or into `out`, which must be new or empty: no other README.md is ever replaced.
    Returns the files written and the count of each direction.
    """
    folder = Path(folder)
    place = _place(folder, out)
    results, notes = read_results(folder), read_notes(folder / "notes.md")
    make_folder(place)
    ours = all_evidence(results)
    drawn = figures.write(place / "figures", ours, results)
    names = [p.stem for p in drawn]
    texts = {
        "README.md": first_page(ours, results, notes, names),
        "details.md": details(ours, results, notes, names),
        "claims.json": json.dumps(document(ours), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        write_whole(place / name, text)
    return {"files": [*(place / name for name in texts), *drawn], "directions": counts(ours)}


def all_evidence(results: Results) -> Ours:
    """Every claim with its lines. One that was run under neither reading of the planning cost counts once, and one that
    the paper does not make not at all."""
    every = {claim: evidence(claim, results) for claim in CLAIMS}
    return {c: lines for c, lines in every.items() if lines or (c.query.cost == "end" and c.query.source != "contrast")}


def _place(folder: Path, out: str | Path | None) -> Path:
    if out is None:
        if folder.resolve() != RESULTS:
            raise UserError(f"where to? {folder} is not this repository's results/: give a new folder as --out.")
        return RESULTS
    place = Path(out)
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"{place} is not empty, and nothing in it is replaced: give a new folder as --out.")
    return place


def direction_of(lines: Sequence[Evidence]) -> str:
    """Of the line that counts; `not judged` for a level of another recipe."""
    if not lines:
        return NOT_RUN
    verdict = lines[0].verdict
    return verdict.direction or verdict.size or NOT_JUDGED


def counts(ours: Ours) -> dict[str, int]:
    every = [direction_of(lines) for lines in ours.values()]
    return {word: every.count(word) for word in (*DIRECTIONS, *sorted(set(every) - {*DIRECTIONS})) if word in every}


def read_notes(path: Path) -> dict[str, str]:
    """notes.md in parts: one for every row it names; what stands before the first is general."""
    if not path.exists():
        return {}
    first, *rest = re.split(r"^## +(.+?)\s*$", path.read_text(), flags=re.M)
    parts, known = {GENERAL: first.strip("\n")}, (SUMMARY, GENERAL, *ROWS, TARGETS)
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        if name not in known:
            raise UserError(f"{path} has a part {name!r} that is no row of claims: {nearest(name, known)}.")
        parts[name] = text.strip("\n")
    return parts


# The first page -----------------------------------------------------------------------------------------------


def _figure(name: str, drawn: Sequence[str]) -> str:
    return f"![{FIGURES[name]}](figures/{name}.png)\n\n*{FIGURES[name]}.*" if name in drawn else ""


def first_page(ours: Ours, results: Results, notes: Mapping[str, str], drawn: Sequence[str]) -> str:
    blocks = [
        "# Results",
        filled(notes.get(SUMMARY, ""), ours),
        _figure("differences", drawn),
        "## What differs from the paper's recipe",
        differs(results, {lines[0].size for lines in ours.values() if lines}),
        "## The claims that were run",
        "Success is being at the goal when the budget ends; what was reached on the way stands next to it. The paper "
        "words its planning cost in two ways: a plan is judged by its end, or, where a row says *path cost*, by all "
        "its predicted codes. *Direction*: same, other, open. *Size*: the paper's lies inside our interval, or is "
        "excluded by it. The rule in full, every line under a claim, "
        "controls, provenance and what was seen on the way: [details.md](details.md). What was decided before "
        "anything ran: [protocol.md](protocol.md).",
        claims_table(ours),
        silence(ours),
        levels_table(ours),
        "Written by `python -m results.tool page` from the JSON files in this folder: do not edit it. `make "
        "results-test` computes every number of the table once more without this package (`recompute.py`).",
    ]
    return "\n\n".join(b for b in blocks if b) + "\n"


def filled(text: str, ours: Ours) -> str:
    """{id} is our number for that claim, {not run} how many were not."""
    known = {claim.id: lines[0].ours.partition(" (")[0] if lines else NOT_RUN for claim, lines in ours.items()}
    known[NOT_RUN] = str(counts(ours).get(NOT_RUN, 0))

    def put(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise UserError(f"notes.md names the claim {match[1]!r}: {nearest(match[1], known)}.")
        return known[match[1]]

    return re.sub(r"\{([^{}]+)\}", put, text)


def claims_table(ours: Ours) -> str:
    """One row for every claim that was judged."""
    rows = []
    for claim, lines in ours.items():
        if lines and direction_of(lines) != NOT_JUDGED:
            line = lines[0]
            reached = line.also.removeprefix("reached ") if line.also.startswith("reached ") else ""
            if line.reached is not None:
                reached += f": {line.reached.text()}"
            verdict = (line.verdict.direction or "–", line.verdict.size or "–")
            rows.append([claim.title, claim.paper, line.ours, *verdict, line.verdict.why, reached, _seeds(line)])
    heads = ["claim", "paper", "ours (95 %)", "direction", "size", "", "reached on the way", "seeds"]
    return pipes([heads, *rows]) if rows else "None yet."


def levels_table(ours: Ours) -> str:
    """One row for every level of another recipe, under both planning costs where it is one of planning."""
    on_the_path = {claim.id.removesuffix("-path"): lines for claim, lines in ours.items() if claim.query.cost == "path"}
    rows = []
    for claim, lines in ours.items():
        if claim.query.cost == "end" and direction_of(lines) == NOT_JUDGED:
            path = on_the_path.get(claim.id, [])
            seeds = dict.fromkeys(_seeds(many[0]) for many in (lines, path) if many)
            rows.append([claim.title, claim.paper, lines[0].ours, path[0].ours if path else "–", " / ".join(seeds)])
    heads = ["level", "paper", "ours (95 %)", "ours, path cost", "seeds"]
    return "## Levels, which are not judged\n\n" + pipes([heads, *rows]) if rows else ""


def silence(ours: Ours) -> str:
    """One line naming what was not run."""
    parts = []
    for row, title in ROWS.items():
        silent = [c.text for c, lines in ours.items() if c.row == row and not lines]
        total = sum(c.row == row for c in ours)
        if silent:
            named = "" if len(silent) == total else f" ({'; '.join(silent)})" if len(silent) < 4 else ""
            parts.append(f"{title}{named}: {len(silent)} of {total}")
    return f"**Not run**: {'. '.join(parts)}." if parts else "Every claim was run."


def _seeds(line: Evidence) -> str:
    return "–" if not line.seeds else f"{line.seeds}{'' if line.seeds >= MIN_SEEDS else ' (few)'}"


# The second ---------------------------------------------------------------------------------------------------


def details(ours: Ours, results: Results, notes: Mapping[str, str], drawn: Sequence[str]) -> str:
    blocks = [
        "# Results in detail",
        "The first page is [README.md](README.md). This one too is written by `python -m results.tool page`: do not "
        "edit it. What a person has to say is in [notes.md](notes.md) and stands here verbatim.",
        notes.get(GENERAL, ""),
        "## Rule",
        RULE,
    ]
    for row, title in ROWS.items():
        lines = {c: e for c, e in ours.items() if c.row == row}
        shown = [_figure(name, drawn) for name in UNDER.get(row, ())]
        blocks += [f"## {title}", section(lines), notes.get(row, ""), *shown]
    if results.targets or TARGETS in notes:
        studies = [part for file, study in results.targets.items() for part in study_section(file, study)]
        blocks += ["## Beyond the paper: does activity follow the target?", *(studies or ["Not run."])]
        blocks += ["Intervals of this section are over seeds alone: episodes add to them." if studies else ""]
        blocks += [_figure(figures.TARGETS, drawn), notes.get(TARGETS, "")]
    blocks += ["## Every evaluation, with its controls", controls(results)]
    blocks += ["## Where the numbers come from", provenance(results)]
    blocks += [
        f"**Evaluated twice with different outcomes** (the first file counts): {line}." for line in conflicts(results)
    ]
    if results.others:
        blocks.append(f"Also here, not read: {', '.join(f'{f} ({k})' for f, k in results.others.items())}.")
    return "\n\n".join(b for b in blocks if b) + "\n"


def section(lines: Mapping[Claim, list[Evidence]]) -> str:
    """Every claim of a row with its lines."""
    rows = [["claim", "paper", "ours (95 %)", "seeds", "size and protocol", "direction, size"]]
    for claim, many in lines.items():
        for line in many[:SHOWN]:
            ours = line.ours + (f"<br>{line.also}" if line.also else "")
            where = f"{line.size}<br>{line.protocol}"
            rows.append([claim.text, claim.paper, ours, _seeds(line), where, line.verdict.text()])
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
            {n: getattr(claim, n) for n in names} | {"verdict": direction_of(lines), "lines": [_line(e) for e in lines]}
            for claim, lines in ours.items()
        ],
    }


def _line(e: Evidence) -> dict[str, Any]:
    line = {n: getattr(e, n) for n in ("ours", "also", "seeds", "size", "reduced", "protocol")}
    verdict = {"direction": e.verdict.direction, "paper_size": e.verdict.size}
    line |= {"files": list(e.files)} | verdict | {n: getattr(e.verdict, n) for n in ("why", "exploratory")}
    # Six digits: what is below them depends on the machine.
    bounds = ("estimate", "low", "high")
    line |= {n: round(getattr(e.interval, n), 6) if e.interval else None for n in bounds}
    return line | {
        "reached": [round(getattr(e.reached_interval, n), 6) for n in bounds] if e.reached_interval else None
    }
