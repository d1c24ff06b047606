"""A target study as text: a row a cell, then what coordinate slices changed, in sentences."""

from __future__ import annotations

from typing import Any

from lpwm.interpret.targets import MEASURES

SHOWN = ("active", "at_least", "law", "ratio", "zone_support", "position_code")


def one(found: dict[str, Any] | None, digits: int = 3, signed: bool = False) -> str:
    if found is None:
        return "–"
    sign = "+" if signed else ""
    e, low, high = (f"{found[k]:{sign}.{digits}f}" for k in ("estimate", "low", "high"))
    return f"{e} [{low}, {high}]"


def upper(text: str) -> str:
    return text[0].upper() + text[1:]


def ways(found: dict[str, Any]) -> list[str]:
    """The names of terminal success rates."""
    return [n for n in found["cells"][0]["measures"] if n.startswith("terminal success")]


def heads(found: dict[str, Any]) -> list[str]:
    return ["p", "μ", "axis", "target", *(MEASURES[n] for n in SHOWN), *ways(found)]


def rows(found: dict[str, Any]) -> list[list[str]]:
    out = []
    for row in sorted(
        found["cells"], key=lambda r: (r["cell"]["p"], -r["cell"]["mu"], r["cell"]["axis_fraction"])
    ):
        cell, m = row["cell"], row["measures"]
        out.append(
            [
                f"{cell['p']:g}",
                f"{cell['mu']:g}",
                f"{cell['axis_fraction']:g}",
                f"{row['target']['active']:.3f}",
            ]
            + [one(m[n]) for n in SHOWN]
            + [one(m[n], 2) for n in ways(found)]
        )
    return out


def table(found: dict[str, Any]) -> str:
    cells = [heads(found), *rows(found)]
    wide = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, "", *sentences(found)])


def sentences(found: dict[str, Any]) -> list[str]:
    """What the numbers say, cautiously: an interval that holds 0 is no difference found."""
    n = len(found["seeds"])
    kind = "" if n >= 8 else f" ({n} seeds: exploratory)"
    out = []
    for f in found["follow"]:
        if f["off"] is None:
            continue
        slices = f"{100 * f['axis_fraction']:g} % coordinate slices" if f["axis_fraction"] else "plain slices"
        slope = f"; slope of realised on target activity {one(f['slope'], 2)}" if f["slope"] else ""
        out.append(
            f"{upper(slices)}: activity is off its target by {one(f['off'])} on average over cells{slope}."
        )
    for o in found["overall"]:
        for name in ("ratio", "zone_support", "position_code", *ways(found)):
            m = o["measures"][name]
            if m is None:
                continue
            verdict = (
                "no difference found"
                if m["low"] <= 0 <= m["high"]
                else "more"
                if m["estimate"] > 0
                else "less"
            )
            out.append(
                f"{upper(MEASURES.get(name, name))}, {100 * o['axis_fraction']:g} % coordinate − plain over "
                f"{o['cells']} targets: {one(m, 3, True)}: {verdict}{kind}."
            )
    return out
