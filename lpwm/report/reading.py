"""The sections that read a code: the arena, what probes find, the raster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lpwm.report.found import Found, study_label
from lpwm.report.markup import bar, swatch, table
from lpwm.report.tables import fixed

FEATURES = {
    "code": "From the code z",
    "support": "From its support",
    "magnitudes": "From magnitudes given the support",
    "position": "From the true position",
}


def arena(found: Found) -> str | None:
    if not found.studies:
        return None
    names = [escape(study_label(found, s)) for s in found.studies]
    options = "".join(f'<option value="{i}">{name}</option>' for i, name in enumerate(names))
    choose = ""
    if len(found.studies) > 2:
        choose = (
            f'<div class="controls"><label>Left <select id="arena-left">{options}</select></label>'
            f'<label>Right <select id="arena-right">{options}</select></label></div>'
        )
    return (
        "<p>Each cell is a place of the dot; its color is the Jaccard index between the support of the code there and "
        "the support at the marked cell, |a ∧ b| / |a ∨ b|. Choose the marked cell with a click or the arrow keys. "
        "Of a dense code the sign pattern stands in for the support.</p>"
        f'{choose}<div class="pair" id="arena-panels"></div>'
        '<p class="readout" id="arena-readout" role="status"></p>'
        f"{sharpness_table(found)}"
    )


def study_data(found: Found, study: Mapping[str, Any]) -> dict[str, Any]:
    """What the browser needs of a study."""
    grid = study["grid"]
    run = found.by_hash(study["run"]["hash"])
    out = {
        "label": study_label(found, study),
        "sparse": study["run"]["sparse"],
        "color": found.color(run),
        "n": grid["resolution"],
        "x": grid["x"],
        "y": grid["y"],
        "zones": [z for row in grid["zones"] for z in row],
        "supports": grid["supports"],
        "order": study["supports"]["unit_order"],
    }
    if study.get("raster"):
        out["raster"] = {k: study["raster"][k] for k in ("episode", "supports", "zones", "instability")}
    return out


def _interval(value: Mapping[str, Any]) -> str:
    return f"{fixed(value['estimate'])} [{fixed(value['low'])}, {fixed(value['high'])}]"


def sharpness_table(found: Found) -> str:
    heads = ["Code", "Sharpness", "Within a zone", "Across", "Borders moved", "At equal displacement"]
    rows = []
    for study in found.studies:
        s = study["sharpness"]
        shifted, matched = s["translated"], s["matched_translated"]
        rows.append(
            (
                "",
                [
                    f"{swatch(_study_color(found, study))}{escape(study_label(found, study))}",
                    f'<span class="num">{_interval(s["sharpness"])}</span>',
                    fixed(s["within"]),
                    fixed(s["across"]),
                    f"{fixed(shifted['mean'])} "
                    f"<span class='muted'>[{fixed(shifted['low'])}, {fixed(shifted['high'])}]</span>",
                    f"{fixed(s['matched'])} <span class='muted'>(shifted {fixed(matched['mean'])})</span>",
                ],
            )
        )
    caption = (
        "<b>Sharpness of zone borders</b>: mean Jaccard index within the marked cell's zone minus outside it, averaged "
        "over all cells. Near places share units whatever the zones, so the same number with the borders moved stands "
        "beside it; the last column compares only pairs at equal displacement, where nearness cancels."
    )
    return table(caption, heads, rows)


def _study_color(found: Found, study: Mapping[str, Any]) -> int:
    run = found.by_hash(study["run"]["hash"])
    return found.color(run)


def probes(found: Found) -> str | None:
    there = [s for s in found.studies if s.get("probes")]
    if not there:
        return None
    intro = (
        f"<p>Linear probes, cross-validated by trajectory: {there[0]['probes']['frames']:,} frames of "
        f"{len(there[0]['probes']['trajectories'])} held-out trajectories, 95 % intervals over trajectories. "
        "Beneath each score, the same probe with labels shuffled.</p>"
    )
    zone = "<b>Zone accuracy.</b> The tick marks the share of the commonest zone, which needs no code at all."
    position = "<b>Position R²</b>, both coordinates together; 0 is the mean position."
    html = intro + _probe_table(found, there, "zone", zone) + _probe_table(found, there, "position", position)
    for s in there:
        html += (
            f'<p class="note">{escape(study_label(found, s))}: of the position that the support leaves open, the '
            f"magnitudes explain {_interval(s['probes']['position_given_support'])}.</p>"
        )
    return html


def _probe_table(found: Found, studies: Sequence[Mapping[str, Any]], target: str, caption: str) -> str:
    """One row per study, one column per feature set."""
    features = list(dict.fromkeys(f for s in studies for f in s["probes"][target]))
    rows = []
    for study in studies:
        color, scores = _study_color(found, study), study["probes"][target]
        chance = study["probes"]["majority"] if target == "zone" else 0.0
        line = [f"{swatch(color)}{escape(study_label(found, study))}"]
        for feature in features:
            score = scores.get(feature)
            if score is None:
                line.append("–")
                continue
            warn = "" if score.get("converged", True) else " <span class='muted'>(not converged)</span>"
            line.append(
                f'<span class="num">{_interval(score)}{warn}</span>'
                f"{bar(score['estimate'], score['low'], score['high'], color, chance)}"
                f'<span class="muted num">shuffled {fixed(score["shuffled"]["estimate"])}</span>'
            )
        rows.append(("", line))
    return f'<div class="block">{table(caption, ["Code", *(FEATURES.get(f, f) for f in features)], rows)}</div>'


def raster(found: Found) -> str | None:
    if not any(s.get("raster") for s in found.studies):
        return None
    return (
        "<p>Which units are on while the dot wanders through one held-out episode; units that prefer the same zone "
        "stand together. The band above shows the zone, the line below how much of the support changes at each step."
        '</p><div id="raster-panels" class="stack"></div>'
    )
