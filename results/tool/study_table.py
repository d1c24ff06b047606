"""A target study as text: a row a cell, then what coordinate slices changed, in sentences."""

from __future__ import annotations

from typing import Any

from .study_grid import MEASURES

SHOWN = ("active", "at_least", "law", "ratio", "zone_support", "position_code")
COMPARED = (
    "off",
    "law",
    "dimension",
    "ratio",
    "ratio_deep",
    "zone_code",
    "zone_support",
    "position_code",
    "position_support",
)


def one(found: dict[str, Any] | None, digits: int = 3, signed: bool = False) -> str:
    """The estimate with its interval, and over how many where some are missing."""
    if found is None:
        return "–"
    sign = "+" if signed else ""
    e, low, high = (f"{found[k]:{sign}.{digits}f}" for k in ("estimate", "low", "high"))
    few = f" (n={len(found['values'])})" if found.get("missing") else ""
    return f"{e} [{low}, {high}]{few}"


def upper(text: str) -> str:
    return text[0].upper() + text[1:]


def ways(found: dict[str, Any]) -> list[str]:
    """The names of terminal success rates."""
    return [n for n in found["cells"][0]["measures"] if n.startswith("terminal success")]


def slices(axis: float) -> str:
    return f"{100 * axis:g} % coordinate slices" if axis else "plain slices"


def heads(found: dict[str, Any]) -> list[str]:
    return ["p", "μ", "axis", "target", "runs", *(MEASURES[n] for n in SHOWN), *ways(found)]


def rows(found: dict[str, Any]) -> list[list[str]]:
    out = []
    for row in sorted(found["cells"], key=lambda r: (r["cell"]["p"], -r["cell"]["mu"], r["cell"]["axis_fraction"])):
        cell, m = row["cell"], row["measures"]
        out.append(
            [
                f"{cell['p']:g}",
                f"{cell['mu']:g}",
                f"{cell['axis_fraction']:g}",
                f"{row['target']['active']:.3f}",
                f"{row['runs']}" + (f", {row['dead']} dead" if row["dead"] else ""),
            ]
            + [one(m[n]) for n in SHOWN]
            + [one(m[n], 2) for n in ways(found)]
        )
    return out


FOLLOW_HEADS = (
    "slices",
    "mean |active − target|",
    "median of active / target",
    "slope of active on target",
    "correlation",
)


def follow_rows(found: dict[str, Any]) -> list[list[str]]:
    """How activity follows the target: a row a kind of slices, over seeds."""
    lines = [(slices(f["axis_fraction"]), f) for f in found["follow"]]
    lines += [(f"{slices(f['axis_fraction'])} − plain", f) for f in found["follow_differences"]]
    return [
        [
            name,
            one(f["off"], 3, "−" in name),
            one(f["share"], 2, "−" in name),
            one(f["slope"], 2, True),
            one(f["correlation"], 2, True),
        ]
        for name, f in lines
    ]


def obedience(slope: dict[str, Any] | None, share: dict[str, Any] | None) -> str:
    """What the intervals of the slope and of the share say."""
    if slope is None:
        return ""
    if not settled(slope):
        return "; that it follows the target was not found"
    if slope["estimate"] < 0:
        return "; it goes against the target"
    if slope["low"] <= 1 <= slope["high"]:
        if share is not None and not share["low"] <= 1 <= share["high"]:
            return f"; it rises with the target, but most cells stay {'below' if share['estimate'] < 1 else 'above'} it"
        return "; from following one to one it cannot be told with these seeds"
    return "; it follows the target in part" if slope["estimate"] < 1 else "; it overshoots the target"


COMPARED_HEADS = ("coordinate − plain", "over seeds", "over (p, μ, seed)", "")


def compared_rows(found: dict[str, Any]) -> list[list[str]]:
    """What coordinate slices changed: a row a measure, with both intervals."""
    out = []
    for o in found["overall"]:
        tag = f", axis {o['axis_fraction']:g}" if len(found["overall"]) > 1 else ""
        for name in (*COMPARED, *ways(found)):
            m, pairs = o["measures"].get(name), o["pairs"].get(name)
            if m is not None or pairs is not None:
                label = upper(MEASURES.get(name, name)) + tag
                out.append([label, one(m, 3, True), one(pairs, 3, True), verdict(m, pairs)])
    return out


def verdict(seeds: dict[str, Any] | None, pairs: dict[str, Any] | None) -> str:
    """An interval that holds 0 is no difference found; the one over seeds decides."""
    if settled(seeds):
        assert seeds is not None
        return "more" if seeds["estimate"] > 0 else "less"
    if settled(pairs):
        assert pairs is not None
        return f"{'more' if pairs['estimate'] > 0 else 'less'} over pairs, not settled over seeds"
    return "no difference found"


def settled(found: dict[str, Any] | None) -> bool:
    return found is not None and not found["low"] <= 0 <= found["high"]


def aligned(lines: list[list[str]]) -> list[str]:
    wide = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in lines]


def table(found: dict[str, Any]) -> str:
    blocks = [
        aligned([heads(found), *rows(found)]),
        aligned([list(FOLLOW_HEADS), *follow_rows(found)]),
        aligned([list(COMPARED_HEADS), *compared]) if (compared := compared_rows(found)) else [],
        sentences(found),
        absent(found),
    ]
    return "\n\n".join("\n".join(b) for b in blocks if b)


def absent(found: dict[str, Any], brief: bool = False) -> list[str]:
    """How many runs are missing, which failed and why, and which were called dead (brief: not why)."""
    out = []
    if found.get("missing"):
        out.append(
            f"{len(found['missing'])} of {found['expected']} runs are missing: run the study again to make them."
        )
    out += [f"Failed: {f['run']}: {f['why']}" for f in found.get("failed", ())]
    dead: dict[str, list[tuple[int, str]]] = {}
    for r in found.get("runs", ()):
        why = r.get("failed") or r.get("dead")
        if why:
            c = r["cell"]
            cell = f"p {c['p']:g}, μ {c['mu']:g}, axis {c['axis_fraction']:g}"
            dead.setdefault(cell, []).append((r["seed"], why))
    if brief and dead:
        cells = "; ".join(f"{cell} (seeds {', '.join(str(s) for s, _ in runs)})" for cell, runs in dead.items())
        return [*out, f"Called dead by their monitors, counted all the same: {cells}."]
    return out + [f"Dead: {cell}, seed {seed}: {why}" for cell, runs in dead.items() for seed, why in runs]


def sentences(found: dict[str, Any]) -> list[str]:
    """What the numbers say, cautiously: an interval that holds 0 is no difference found."""
    n = len(found["seeds"])
    kind = "" if n >= 8 else f" ({n} seeds: exploratory)"
    out = []
    for f in found["follow"]:
        if f["off"] is None:
            continue
        share = f"; the median cell has {one(f['share'], 2)} of what it asks for" if f["share"] else ""
        slope = f"; slope of realized on target activity {one(f['slope'], 2)}" if f["slope"] else ""
        r = f", correlation {one(f['correlation'], 2)}" if f["correlation"] else ""
        out.append(
            f"{upper(slices(f['axis_fraction']))}: activity is off its target by {one(f['off'])} on average over "
            f"cells{share}{slope}{r}{obedience(f['slope'], f['share'])}."
        )
    for o in found["overall"]:
        for name in ("ratio", "zone_support", "position_code", *ways(found)):
            m, pairs = o["measures"][name], o["pairs"][name]
            if m is None and pairs is None:
                continue
            n_targets = m["targets"] if m else o["cells"]
            out.append(
                f"{upper(MEASURES.get(name, name))}, {100 * o['axis_fraction']:g} % coordinate − plain over "
                f"{n_targets} target{'s' if n_targets > 1 else ''}: {one(m or pairs, 3, True)}: "
                f"{verdict(m, pairs)}{kind}."
            )
    return out
