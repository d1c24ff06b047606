"""Readings next to the studies of zones: sparsity, contact, the proposition; picked and shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from lpwm.interpret.contact import KIND as CONTACT
from lpwm.interpret.sparsity import KIND as SPARSITY
from lpwm.interpret.sparsity import arrange
from lpwm.report import contact, theory
from lpwm.report.drawn import Make, picture
from lpwm.report.found import Found
from lpwm.report.markup import swatch, table
from lpwm.report.tables import fixed, short
from lpwm.report.theory import KIND as THEORY

OF_RUNS, ALONE = (SPARSITY, CONTACT), (THEORY,)
BUNDLE = "lpwm readings"  # what lpwm interpret --what … writes: several of the former
KINDS = (*OF_RUNS, *ALONE, BUNDLE)


def pick(documents: Iterable[tuple[float, Mapping[str, Any]]], hashes: Sequence[str]) -> list[Mapping[str, Any]]:
    """The newest reading of each kind of each of these runs, in their order; and the newest of those about no run.

    documents: (time, document) pairs.
    """
    found: dict[tuple[str, str], tuple[float, Mapping[str, Any]]] = {}
    for when, document in documents:
        parts = document["readings"] if document.get("kind") == BUNDLE else [document]
        for one in parts:
            kind = one.get("kind")
            if kind in ALONE or (kind in OF_RUNS and one["run"]["hash"] in hashes):
                key = (kind, "" if kind in ALONE else one["run"]["hash"])
                if key not in found or found[key][0] < when:
                    found[key] = (when, one)
    order = {h: i for i, h in enumerate(hashes)}
    ranked = sorted(found.items(), key=lambda item: (item[0][0], order.get(item[0][1], 0)))
    return [one for _, (_, one) in ranked]


def of_kind(found: Found, kind: str) -> list[Mapping[str, Any]]:
    return [r for r in found.readings if r["kind"] == kind]


def run_label(found: Found, reading: Mapping[str, Any]) -> str:
    run = found.by_hash(reading["run"]["hash"])
    return str(run["full"]) if run else str(reading["run"]["name"])


def figures(found: Found) -> dict[str, Make]:
    """The static figures of all readings there are."""
    out: dict[str, Make] = {}
    studies = of_kind(found, CONTACT)
    if studies:
        out |= contact.figures(studies, found.evaluations)
    for document in of_kind(found, THEORY):
        out["theory-slopes"] = partial(theory.slopes, dict(document))
        out["theory-borders"] = partial(theory.zone_borders, dict(document))
    return out


def sections(found: Found) -> list[tuple[str, str, str | None, str]]:
    """(name, title, HTML or None, what would make it), as `sections.body` wants them."""
    cube = any(r["record"]["world"]["name"] == "cube" for r in found.runs)
    return [
        ("sparsity", "How sparse", sparsity(found), ""),
        (
            "contact",
            "What changes the support",
            contact.section(of_kind(found, CONTACT), found.evaluations, lambda s: run_label(found, s)),
            "what changes the support: lpwm interpret --what contact RUN…" if cube else "",
        ),
        ("theory", "The proposition", proposition(found), ""),
    ]


def sparsity(found: Found) -> str | None:
    """The paper's arrangement, rung × width, then every run."""
    readings = [dict(r) for r in of_kind(found, SPARSITY)]
    if not readings:
        return None
    html = (
        "<p>The share of units that are on in held-out frames, a row a predictor and a column a width. Beside it what "
        "the target asks for, P(y > 0), and the least that codes of these two moments can have, E[z]²/E[z²]: uniform "
        "slices hold a code to little more than its moments.</p>"
    )
    for group in arrange(readings)["groups"]:
        target = group["target"]
        asked = ""
        if target:
            asked = f": asked {fixed(target['active_fraction'])}, at least {fixed(target['at_least'])}"
        rows = []
        for row in group["rows"]:
            rows.append(("", [escape(row["title"]), *(_fraction(c) for c in row["cells"])]))
            if "paper" in row:
                beside = [f'<span class="muted num">{fixed(v)}</span>' for v in row["paper"]]
                rows.append(("", ['<span class="muted">the paper’s</span>', *beside]))
        heads = ["Predictor", *(f"D = {D}" for D in group["widths"])]
        html += table(f"<b>Active fraction</b>, {escape(group['title'])}{asked}", heads, rows)
    heads = ["Run", "Active", "Asked", "At least", "Dead units", "Always on", "Units on, median", "Eff. dimension"]
    rows = []
    for r in readings:
        run = found.by_hash(r["run"]["hash"])
        asked = fixed(r["target"]["active_fraction"]) if r["target"] else "–"
        rows.append(
            (
                "",
                [
                    f"{swatch(found.color(run))}{escape(run_label(found, r))}",
                    _fraction(r["active_fraction"]),
                    asked,
                    fixed(r["at_least"]),
                    f"{r['dead_units']} of {r['run']['latent']}",
                    str(r["always_on_units"]),
                    f"{r['units_on'][2]:g}",
                    short(r["effective_dimension"]),
                ],
            )
        )
    return html + table("Every run; intervals over trajectories", heads, rows)


def _fraction(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "–"
    bounds = f" [{fixed(cell['low'])}, {fixed(cell['high'])}]" if "low" in cell else ""
    return f'<span class="num">{fixed(cell["estimate"])}{bounds}</span>'


def proposition(found: Found) -> str | None:
    documents = of_kind(found, THEORY)
    if not documents:
        return None
    made = figures(found)
    first = dict(documents[-1])
    heads = ["System", "d", "L", "d × slope, worst", "d × slope, mean", "Bounds"]
    rows = [
        (
            "",
            [
                escape(s["name"]),
                str(s["d"]),
                f"{s['lipschitz']:g}",
                fixed(s["d"] * s["slope_worst"]),
                fixed(s["d"] * s["slope_mean"]),
                "hold" if all(r["holds"] for r in s["rows"]) else "broken",
            ],
        )
        for s in first["systems"]
    ]
    intro = (
        "<p>Any Lipschitz map is linear on one-hot codes: cut the states into N cells, and a matrix with a single 1 in "
        "every column moves the code of a cell to that of the cell its center goes to. The decoded error is at most "
        "(L + 1)ε after one step, and falls as N to the power −1/d. Piecewise jumps at its zone borders: there the "
        "worst error stays at the height of the jump, and only the share of states it concerns shrinks.</p>"
    )
    return (
        intro
        + table("Slopes; −1 is the proposition's", heads, rows)
        + picture(made["theory-slopes"], "Error against cells", "Errors fall along the slope −1/d, below their bounds.")
        + picture(
            made["theory-borders"],
            "Piecewise at its zone borders",
            "Errors exceed the bound along zone borders; their worst stays near the jump, their share falls.",
        )
    )
