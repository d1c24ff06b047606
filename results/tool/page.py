"""results/README.md, whole, from the JSON next to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError, nearest
from lpwm.core.files import make_folder, write_whole
from lpwm.stats import MIN_SEEDS

from . import figures, study_page
from .claims import CLAIMS, ROWS, Claim
from .evidence import Evidence, conflicts, evidence
from .read import MADE, Results, read_results
from .text import percent, pipes
from .verdict import NOT_RUN, RULE, VERDICTS

SHOWN = 6  # lines under a claim; all of them are in claims.json
NEEDED = ("recipe", "config", "data", "training", "monitors")  # of every run in an evaluation or a study
Found = dict[Claim, list[Evidence]]
RESULTS = Path(__file__).resolve().parents[1]


def write(folder: str | Path = RESULTS, out: str | Path | None = None) -> dict[str, Any]:
    """Read every JSON under `folder`; write README.md, claims.json and figures/. Free text comes from its notes.md.

    Written into results/ or into `out`, which must be new or empty: no other README.md is ever replaced.
    Returns the files written and the count of each verdict.
    """
    folder = Path(folder)
    place = _place(folder, out)
    results, notes = read_results(folder), read_notes(folder / "notes.md")
    make_folder(place)
    found: Found = {claim: evidence(claim, results) for claim in CLAIMS}
    drawn = figures.write(place / "figures", found, results)
    write_whole(place / "README.md", page(found, results, notes, [p.name for p in drawn]))
    write_whole(place / "claims.json", json.dumps(document(found), indent=1, ensure_ascii=False) + "\n")
    counts = {v: sum(verdict_of(lines) == v for lines in found.values()) for v in VERDICTS}
    return {"files": [place / "README.md", place / "claims.json", *drawn], "verdicts": counts}


def _place(folder: Path, out: str | Path | None) -> Path:
    if out is None:
        if folder.resolve() != RESULTS:
            raise UserError(f"where to? {folder} is not this repository's results/: give a new folder as --out.")
        return RESULTS
    place = Path(out)
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"{place} is not empty, and nothing in it is replaced: give a new folder as --out.")
    return place


def verdict_of(lines: list[Evidence]) -> str:
    return lines[0].verdict.verdict if lines else NOT_RUN


def read_notes(path: Path) -> dict[str, str]:
    """notes.md in parts: what stands before the first `## ROW` is "", then one part for every row it names."""
    if not path.exists():
        return {}
    first, *rest = re.split(r"^## +(.+?)\s*$", path.read_text(), flags=re.M)
    parts, known = {"": first.strip("\n")}, (*ROWS, study_page.ROW)
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        if name not in known:
            raise UserError(f"{path} has a part {name!r} that is no row of claims: {nearest(name, known)}.")
        parts[name] = text.strip("\n")
    return parts


# Text -------------------------------------------------------------------------------------------------------


def page(found: Found, results: Results, notes: Mapping[str, str], drawn: list[str]) -> str:
    blocks = [
        "# Results",
        "Written by `python -m results.tool page` from the JSON files in this folder: do not edit it. What a person "
        "has to say is in [notes.md](notes.md) and stands here verbatim; what was decided before anything was run is "
        "in [protocol.md](protocol.md).",
        notes.get("", ""),
        "## Rule",
        RULE,
        "## At a glance",
        glance(found),
        _figure(drawn, "differences.png", "Differences with 95 % intervals; gray: what the paper reports"),
    ]
    for row, title in ROWS.items():
        lines = {c: e for c, e in found.items() if c.row == row}
        blocks += [f"## {title}", section(lines), notes.get(row, "")]
        if row == "piecewise-2x2":
            blocks.append(_figure(drawn, "piecewise.png", "Random goals: ours beside the paper's"))
        if row == "probes":
            blocks.append(_figure(drawn, "jaccard.png", "Jaccard index of supports with that at +, one seed of each"))
            blocks.append(_figure(drawn, "horizons.png", "Success against the horizon"))
    if results.targets or study_page.ROW in notes:
        name, caption = f"{study_page.FIGURE}.png", study_page.CAPTION
        blocks += [
            f"## {study_page.TITLE}",
            study_page.section(results.targets),
            _figure(drawn, name, caption),
            notes.get(study_page.ROW, ""),
        ]
    blocks += [
        "## Every evaluation, beside its controls",
        controls(results),
        "## Where the numbers come from",
        provenance(results),
    ]
    return "\n\n".join(b for b in blocks if b) + "\n"


def _figure(drawn: list[str], name: str, caption: str) -> str:
    return f"![{caption}](figures/{name})\n\n*{caption}.*" if name in drawn else ""


def verdict_text(line: Evidence | None) -> str:
    if line is None:
        return f"**{NOT_RUN}**"
    start = f"**{line.verdict.verdict}**"
    reduced = f"{start} at a reduced size" if line.reduced else start
    return line.verdict.text().replace(start, reduced, 1)


def _seeds(line: Evidence) -> str:
    return "–" if not line.seeds else f"{line.seeds}{'' if line.seeds >= MIN_SEEDS else ' (few)'}"


def glance(found: Found) -> str:
    rows = []
    for claim, lines in found.items():
        if claim.row == "active" and not lines:
            continue
        first = lines[0] if lines else None
        size = "" if first is None else ("reduced" if first.reduced else "paper's")
        ours, seeds = (first.ours, _seeds(first)) if first else ("–", "–")
        rows.append([claim_title(claim), claim.paper, ours, seeds, size, verdict_text(first)])
    silent = sum(c.row == "active" and not e for c, e in found.items())
    counts = ", ".join(f"{n} {v}" for v in VERDICTS if (n := sum(verdict_of(lines) == v for lines in found.values())))
    reduced = sum(bool(lines) and lines[0].reduced for lines in found.values())
    tail = f"\n\n{silent} further numbers (active fraction by rung and width) were not run." if silent else ""
    return (
        f"{len(found)} claims: {counts}. Of those that were run, {reduced} rest on reduced sizes only.\n\n"
        + pipes(["claim", "paper", "ours", "seeds", "size", "verdict"], rows)
        + tail
    )


def claim_title(claim: Claim) -> str:
    return f"{ROWS[claim.row].partition(':')[0].partition(',')[0]} · {claim.text}"


def section(lines: Mapping[Claim, list[Evidence]]) -> str:
    """Every claim of a row with its lines."""
    rows, more = [], 0
    for claim, many in lines.items():
        more += max(0, len(many) - SHOWN)
        for line in many[:SHOWN]:
            also = f"<br>{line.also}" if line.also else ""
            where = f"{line.size}<br>{line.protocol}"
            rows.append([claim.text, claim.paper, line.ours + also, _seeds(line), where, verdict_text(line)])
    silent = [c.text for c, many in lines.items() if not many]
    parts = []
    if rows:
        parts.append(pipes(["claim", "paper", "ours (95 %)", "seeds", "size and protocol", "verdict"], rows))
    if more:
        parts.append(f"{more} further lines are in claims.json.")
    if len(silent) > 8:
        parts.append(f"Not run: {len(silent)} numbers, listed in claims.json.")
    elif silent:
        parts.append(f"Not run: {'; '.join(silent)}.")
    return "\n\n".join(parts)


def controls(results: Results) -> str:
    """What every evaluation found, from its own JSON, controls included."""
    rows = []
    for file, document_ in results.documents.items():
        if document_.get("kind") != "lpwm evaluation":
            continue
        along = document_["settings"].get("path_discount", document_["settings"].get("along"))
        way = f" along {along:g}" if along else ""
        for cell in document_["cells"]:
            for row in cell["rows"] if cell["goals"] != "image" else ():
                for budget, values in row["budgets"].items():
                    seeds = "control" if row["control"] else str(len(row["seeds"]))
                    goals = f"{cell['goals']} H={cell['horizon']} R={cell['receding']}{way}"
                    rows.append(
                        [
                            file,
                            goals,
                            row["name"],
                            seeds,
                            budget,
                            percent(values["latched"]),
                            percent(values["terminal"]),
                        ]
                    )
    if not rows:
        return "None yet."
    heads = ["file", "goals", "method", "seeds", "steps", "latched, %", "terminal, %"]
    return pipes(heads, rows)


def provenance(results: Results) -> str:
    """A row for every file, one for all cells of a sweep, and what a file should say and does not."""
    sweeps: dict[str, list[Mapping[str, Any]]] = {}
    rows = []
    for file, d in results.documents.items():
        if "cell" in d:
            sweeps.setdefault(file.rpartition("/")[0], []).append(d)
        else:
            rows.append(_provenance(file, d))
    rows += [_sweep(folder, cells) for folder, cells in sweeps.items()]
    heads = [
        "file",
        "recipes",
        "run hashes",
        "seeds",
        "commit",
        "versions",
        "device",
        "training minutes",
        "evaluation minutes",
        "provenance missing",
    ]
    text = pipes(heads, rows) if rows else "No result yet."
    for line in conflicts(results):
        text += f"\n\n**Evaluated twice with different outcomes** (the first file counts): {line}."
    if results.others:
        listed = ", ".join(f"{f} ({k})" for f, k in results.others.items())
        text += f"\n\nAlso here, not read: {listed}."
    return text


def _provenance(file: str, d: Mapping[str, Any]) -> list[str]:
    studies = d.get("studies") or d.get("readings") or ([d] if "run" in d else [])
    entries = d.get("runs") or [s["run"] for s in studies]
    first = studies[0] if studies else d
    versions = first.get("versions") or {"lpwm": first.get("lpwm", "?")}
    minutes = [e["training"]["minutes"] for e in entries if e.get("training")]
    trained = f"{sum(minutes) / len(minutes):.1f} each on {_devices(entries)}" if minutes else "not recorded"
    spent = d.get("wall_s", sum(s.get("seconds", 0) for s in studies))
    missing = [n for n in NEEDED if any(not e.get(n) for e in entries if e.get("vote") is None)]
    missing += [n for n in ("commit", "source") if not first.get(n)]
    hashes = [e_hash(e) for e in entries if e.get("vote") is None]
    return [
        file,
        ", ".join(sorted({str(e.get("recipe") or e["method"]) for e in entries})),
        ", ".join(hashes[:4]) + ("…" if len(hashes) > 4 else ""),
        ", ".join(sorted({str(e["seed"]) for e in entries if e.get("vote") is None})),
        str(first.get("commit") or "–"),
        " ".join(f"{k} {v}" for k, v in versions.items()),
        str(first.get("device", "–")),
        trained,
        f"{spent / 60:.1f}",
        ", ".join(missing) or "nothing",
    ]


def _sweep(folder: str, cells: list[Mapping[str, Any]]) -> list[str]:
    names = sorted({c["cell"]["name"] for c in cells})
    seeds = sorted({str(c["cell"]["config"]["train"]["seed"]) for c in cells})
    spent = {k: sum(c["result"].get("seconds", {}).get(k, 0) for c in cells) / 60 for k in ("train", "evaluate")}
    versions = ", ".join(sorted({str(c.get("lpwm", "?")) for c in cells}))
    return [
        f"{folder} ({len(cells)} cells)",
        ", ".join(names),
        "in the ledger",
        ", ".join(seeds),
        "–",
        f"lpwm {versions}",
        "–",
        f"{spent['train']:.1f} in all",
        f"{spent['evaluate']:.1f}",
        "commit, source, device",
    ]


def e_hash(entry: Mapping[str, Any]) -> str:
    return str(entry.get("run_hash") or entry.get("hash") or "–")[:12]


def _devices(entries: list[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(e["training"].get("device")) for e in entries if e.get("training")}))


def document(found: Found) -> dict[str, Any]:
    """All of it for machines: no line is left out."""
    return {
        "kind": MADE,
        "claims": [
            {
                "id": claim.id,
                "row": claim.row,
                "text": claim.text,
                "paper": claim.paper,
                "kind": claim.kind,
                "low": claim.low,
                "high": claim.high,
                "verdict": verdict_of(lines),
                "lines": [
                    {
                        "ours": e.ours,
                        "also": e.also,
                        "seeds": e.seeds,
                        "size": e.size,
                        "reduced": e.reduced,
                        "protocol": e.protocol,
                        "files": list(e.files),
                        "verdict": e.verdict.verdict,
                        "why": e.verdict.why,
                        "exploratory": e.verdict.exploratory,
                        **_numbers(e),
                    }
                    for e in lines
                ],
            }
            for claim, lines in found.items()
        ],
    }


def _numbers(line: Evidence) -> dict[str, float | None]:
    """Six digits: what is below them depends on the machine."""
    return {k: round(getattr(line.interval, k), 6) if line.interval else None for k in ("estimate", "low", "high")}
