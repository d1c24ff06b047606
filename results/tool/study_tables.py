"""A target study as tables and sentences, from its JSON alone: an interval that holds 0 shows no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .study_cells import MEASURES
from .text import pipes

Study = Mapping[str, Any]
Row = Mapping[str, Any] | None  # an interval with its values
SHOWN = ("active", "at_least", "law", "ratio", "zone_support", "position_code")
PROBES = ("zone_code", "zone_support", "position_code", "position_support")
COMPARED = ("off", "law", "dimension", "ratio", "ratio_deep", *PROBES)
FOLLOW = ("mean |active − target|", "median of active / target", "slope of active on target", "correlation")


def one(row: Row, digits: int = 3, signed: bool = False) -> str:
    """The estimate with its interval, and over how many where some are missing."""
    if row is None:
        return "–"
    e, low, high = (f"{row[k]:{'+' if signed else ''}.{digits}f}" for k in ("estimate", "low", "high"))
    return f"{e} [{low}, {high}]" + (f" (n={len(row['values'])})" if row.get("missing") else "")


def first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


def success_names(study: Study) -> list[str]:
    """The names of terminal success rates."""
    return [n for n in study["cells"][0]["measures"] if n.startswith("terminal success")]


def slices(axis: float) -> str:
    return f"{100 * axis:g} % coordinate slices" if axis else "plain slices"


# Tables: the heads, then the rows ----------------------------------------------------------------------------


def cells_table(study: Study) -> list[list[str]]:
    rates = success_names(study)
    out = [["p", "μ", "axis", "target", "runs", *(MEASURES[n] for n in SHOWN), *rates]]
    for row in sorted(study["cells"], key=lambda r: (r["cell"]["p"], -r["cell"]["mu"], r["cell"]["axis_fraction"])):
        m, runs = row["measures"], f"{row['runs']}" + (f", {row['dead']} dead" if row["dead"] else "")
        cell = [f"{row['cell'][k]:g}" for k in ("p", "mu", "axis_fraction")]
        numbers = [*(one(m[n]) for n in SHOWN), *(one(m[n], 2) for n in rates)]
        out.append([*cell, f"{row['target']['active']:.3f}", runs, *numbers])
    return out


def follow_table(study: Study) -> list[list[str]]:
    """How activity follows the target, over seeds: a row for each kind of slices, and for its difference from plain."""
    out = [["slices", *FOLLOW]]
    for kind, minus in (("follow", ""), ("follow_differences", " − plain")):
        for f in study[kind]:
            first = [one(f["off"], 3, bool(minus)), one(f["share"], 2, bool(minus))]
            out.append(
                [slices(f["axis_fraction"]) + minus, *first, one(f["slope"], 2, True), one(f["correlation"], 2, True)]
            )
    return out


def compared_table(study: Study) -> list[list[str]]:
    """What coordinate slices changed: a row for each measure, with both intervals; the heads alone without them."""
    out = [["coordinate − plain", "over seeds", "over (p, μ, seed)", ""]]
    for o in study["overall"]:
        tag = f", axis {o['axis_fraction']:g}" if len(study["overall"]) > 1 else ""
        for name in (*COMPARED, *success_names(study)):
            m, pairs = o["measures"].get(name), o["pairs"].get(name)
            if m is not None or pairs is not None:
                label = first_upper(MEASURES.get(name, name)) + tag
                out.append([label, one(m, 3, True), one(pairs, 3, True), verdict(m, pairs)])
    return out


# Sentences --------------------------------------------------------------------------------------------------


def direction(row: Row) -> str:
    """more or less; "" where the interval holds 0 or there is none."""
    if row is None or row["low"] <= 0 <= row["high"]:
        return ""
    return "more" if row["estimate"] > 0 else "less"


def verdict(seeds: Row, pairs: Row) -> str:
    """The interval over seeds decides."""
    over_pairs = f"{direction(pairs)} over pairs, not settled over seeds" if direction(pairs) else "no difference found"
    return direction(seeds) or over_pairs


def obedience(slope: Row, share: Row) -> str:
    """What the intervals of the slope and of the share say."""
    if slope is None:
        return ""
    if not direction(slope):
        return "; that it follows the target was not found"
    if slope["estimate"] < 0:
        return "; it goes against the target"
    if slope["low"] <= 1 <= slope["high"]:
        if share is not None and not share["low"] <= 1 <= share["high"]:
            return f"; it rises with the target, but most cells stay {'below' if share['estimate'] < 1 else 'above'} it"
        return "; from following one to one it cannot be told with these seeds"
    return "; it follows the target in part" if slope["estimate"] < 1 else "; it overshoots the target"


def sentences(study: Study) -> list[str]:
    n = len(study["seeds"])
    few = "" if n >= 8 else f" ({n} seeds: exploratory)"
    out = []
    for f in study["follow"]:
        if f["off"] is None:
            continue
        share = f"; the median cell has {one(f['share'], 2)} of what it asks for" if f["share"] else ""
        slope = f"; slope of realized on target activity {one(f['slope'], 2)}" if f["slope"] else ""
        r = f", correlation {one(f['correlation'], 2)}" if f["correlation"] else ""
        out.append(
            f"{first_upper(slices(f['axis_fraction']))}: activity is off its target by {one(f['off'])} on average over "
            f"cells{share}{slope}{r}{obedience(f['slope'], f['share'])}."
        )
    for o in study["overall"]:
        for name in ("ratio", "zone_support", "position_code", *success_names(study)):
            m, pairs = o["measures"][name], o["pairs"][name]
            if m is None and pairs is None:
                continue
            count = m["targets"] if m else o["cells"]
            out.append(
                f"{first_upper(MEASURES.get(name, name))}, {100 * o['axis_fraction']:g} % coordinate − plain over "
                f"{count} target{'s' if count > 1 else ''}: {one(m or pairs, 3, True)}: {verdict(m, pairs)}{few}."
            )
    return out


def absent(study: Study, brief: bool = False) -> list[str]:
    """How many runs are missing, which failed and why, and which were called dead (brief: not why)."""
    out = [f"Failed: {f['run']}: {f['why']}" for f in study.get("failed", ())]
    if missing := len(study.get("missing", ())):
        out.insert(0, f"{missing} of {study['expected']} runs are missing: run the study again to make them.")
    dead: dict[str, list[tuple[int, str]]] = {}
    for r in study.get("runs", ()):
        if why := r.get("failed") or r.get("dead"):
            c = r["cell"]
            cell = f"p {c['p']:g}, μ {c['mu']:g}, axis {c['axis_fraction']:g}"
            dead.setdefault(cell, []).append((r["seed"], why))
    if brief and dead:
        cells = "; ".join(f"{cell} (seeds {', '.join(str(s) for s, _ in runs)})" for cell, runs in dead.items())
        return [*out, f"Called dead by their monitors, counted all the same: {cells}."]
    return out + [f"Dead: {cell}, seed {seed}: {why}" for cell, runs in dead.items() for seed, why in runs]


# The whole --------------------------------------------------------------------------------------------------


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in lines]


def table(study: Study) -> str:
    """All of it as plain text."""
    tables = [t for t in (cells_table(study), follow_table(study), compared_table(study)) if len(t) > 1]
    blocks = [*(aligned(t) for t in tables), sentences(study), absent(study)]
    return "\n\n".join("\n".join(b) for b in blocks if b)


def section(file: str, study: Study) -> list[str]:
    """All of it in Markdown, as it stands on the page."""
    compared = compared_table(study)
    parts = [
        _protocol(file, study),
        "\n".join(f"- {line}" for line in (*sentences(study), *absent(study, brief=True))),
        pipes(cells_table(study)),
        "How activity follows the target, one number per seed over the targets (slope 1: obedience, 0: indifference):",
        pipes(follow_table(study)),
        "Coordinate − plain slices, paired on (p, μ, seed). Over seeds: a seed's mean over the targets, "
        f"{len(study['seeds'])} of them; over (p, μ, seed): every pair, as if pairs were independent. "
        "The interval over seeds decides.",
        pipes(compared),
    ]
    return parts if len(compared) > 1 else parts[:-2]


def _protocol(file: str, study: Study) -> str:
    train, model, plan = study["base"]["train"], study["base"]["model"], study["planning"]
    minutes = sum(r["train_s"] for r in study["runs"]) / 60
    commit, source = (study.get(k) or "not recorded" for k in ("commit", "source"))
    controls = [
        f"{setting}: " + ", ".join(f"{name} {100 * r['terminal']:.0f} %" for name, r in rates.items())
        for setting, rates in study["controls"].items()
    ]
    return (
        f"`{file}`: small Piecewise models (D={model['latent']}, {model['predictor']['rung']}), "
        f"{train['steps']:,} steps of {train['batch']} clips, {len(study['seeds'])} training seeds a cell, "
        f"{len(study['runs'])} of {study['expected']} runs; at most {study['frames']:,} held-out frames; "
        f"{plan['episodes']} episodes (seed {plan['seed']}) within {max(plan['budgets'])} steps, one planner seed. "
        f"Intervals are 95 %, over training seeds. On {study['device']}, {minutes:.1f} run-minutes of training, "
        f"commit {commit}, source {source}. Controls: {'; '.join(controls) or 'not run'}."
    )
