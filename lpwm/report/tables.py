"""From logs, evaluations and studies (plain dictionaries) to the rows that page and figures share.

A run is {"name", "hash", "data", "version", "config", "world": {"name", "options"}, "train": [...], "val": [...]};
an evaluation is what `lpwm eval` writes, a study what `lpwm interpret` writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lpwm.train.run_config import method_digest

DENSE = "identity"  # the link of a dense code
POINTS = 400  # of a curve: more is not seen


def method_key(name: str) -> str:
    """A recipe's name as it stands in folders and in evaluations."""
    return name.replace("/", "-")


def family(name: str) -> str:
    """`piecewise-2x2/` of `piecewise-2x2/lpwm`; "" where there is no slash."""
    return name[: name.rfind("/") + 1]


def describe(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's line: what it is and the last numbers of its log."""
    config = run["config"]
    model, predictor = config["model"], config["model"]["predictor"]
    method = method_digest(config)[:4]
    last = run["train"][-1] if run.get("train") else {}
    held = run["val"][-1] if run.get("val") else {}
    return {
        "name": run["name"],
        "key": f"{run['name']} {method}",
        "hash": run["hash"],
        "sparse": model["link"] != DENSE,
        "seed": config["train"]["seed"],
        "latent": model["latent"],
        "predictor": predictor["rung"],
        "history": predictor["history"],
        "step": last.get("step", 0),
        "of": config["train"]["steps"],
        "error": _first(held.get("error_depth")),
        "copy": _first(held.get("copy_error_depth")),
        "deep_error": _last(held.get("error_depth")),
        "deep_copy": _last(held.get("copy_error_depth")),
        "depth": len(held.get("error_depth") or ()),
        "active": last.get("active_fraction"),
        "dimension": last.get("effective_dimension"),
    }


def label(title: str, run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """The method's title, and the seed where several runs share it; the hash where even that is the same."""
    same = [describe(r) for r in runs if describe(r)["key"] == describe(run)["key"]]
    if len(same) == 1:
        return title
    seeds = [r["seed"] for r in same]
    if len(set(seeds)) == len(seeds):
        return f"{title}, seed {run['config']['train']['seed']}"
    return f"{title} {run['hash'][:6]}"


def _first(values: Sequence[float] | None) -> float | None:
    return values[0] if values else None


def _last(values: Sequence[float] | None) -> float | None:
    return values[-1] if values else None


# Success ----------------------------------------------------------------------------------------------------


def cells(evaluations: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every cell of every evaluation with what a table of it needs, image goals left out (no state to test)."""
    out = []
    for number, evaluation in enumerate(evaluations):
        settings = evaluation["settings"]
        for cell in evaluation["cells"]:
            if cell["goals"] == "image":
                continue
            budgets = sorted(int(b) for b in cell["rows"][0]["budgets"])
            out.append(
                {
                    "evaluation": number,
                    "goals": cell["goals"],
                    "horizon": cell["horizon"],
                    "receding": cell["receding"],
                    "warm": settings["warm"] and cell["receding"] < cell["horizon"],
                    "path_discount": settings.get("path_discount", settings.get("along", 0.0)),
                    "episodes": settings["episodes"],
                    "solver": settings["solver"],
                    "test": settings["test"],
                    "budgets": budgets,
                    "rows": cell["rows"],
                    "sweep": len(settings["horizons"]) > 2,
                    "compared": compared(cell, budgets[-1]),
                }
            )
    return out


def compared(cell: Mapping[str, Any], budget: int) -> list[str]:
    """Methods against one another on terminal success at the largest budget, in sentences; controls left out."""
    names = {row["name"] for row in cell["rows"] if not row["control"]}
    found = cell["comparisons"]["terminal"].get(str(budget), {})
    if len(names) < 2:
        return []
    if "refused" in found:
        return [found["refused"]]
    return [
        text
        for row, text in zip(found.get("differences", []), found.get("text", []), strict=True)
        if row["a"] in names and row["b"] in names
    ]


def headline(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The cells to show at once: of a sweep over horizons only the one nearest to the paper's 5, R = 1 and R = H."""
    shown = [c for c in found if not c["sweep"]]
    seen = {(c["goals"], c["horizon"], c["receding"]) for c in shown}
    for cell in found:
        if not cell["sweep"]:
            continue
        near = min((c["horizon"] for c in found if c["sweep"]), key=lambda h: abs(h - 5))
        where = (cell["goals"], cell["horizon"], cell["receding"])
        if cell["horizon"] == near and where not in seen:
            shown.append(cell)
            seen.add(where)
    return sorted(shown, key=lambda c: (c["goals"] != "random", c["evaluation"]))  # random goals judge (§5)


def horizon_series(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Success against horizon: one series per goals, way of executing and row, where at least three H were run."""
    series: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in found:
        if not cell["sweep"]:
            continue
        for way, fits in (("R = 1", cell["receding"] == 1), ("R = H", cell["receding"] == cell["horizon"])):
            for row in cell["rows"] if fits else ():
                if row["name"] == "random actions":
                    continue  # does not plan
                budget = cell["budgets"][-1]
                value = row["budgets"][str(budget)]["terminal"]
                one = series.setdefault(
                    (cell["goals"], way, row["name"]),
                    {
                        "goals": cell["goals"],
                        "way": way,
                        "name": row["name"],
                        "control": row["control"],
                        "evaluation": cell["evaluation"],
                        "budget": budget,
                        "points": {},
                    },
                )
                one["points"][cell["horizon"]] = (value["rate"], value["low"], value["high"])
    return [s for s in series.values() if len(s["points"]) >= 3 and s["name"] != "do nothing"]


# Curves -----------------------------------------------------------------------------------------------------


def series(records: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float | None]]:
    """(steps, values) of one logged number, thinned evenly to POINTS, the last one kept."""
    kept = [(r["step"], r[name]) for r in records if name in r]
    if len(kept) > POINTS:
        every = math.ceil(len(kept) / POINTS)
        kept = [*kept[:-1:every], kept[-1]]
    return [s for s, _ in kept], [significant(v) for _, v in kept]


def significant(value: float | None, digits: int = 5) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def percent(value: Mapping[str, Any]) -> str:
    """`62.5 [30.6, 86.3]`."""
    if value.get("rate") is None:
        return "–"
    if value.get("low") is None or value.get("high") is None:
        return f"{100 * value['rate']:.1f}"
    return f"{100 * value['rate']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def short(value: float | None, digits: int = 3) -> str:
    """A number for a table; an en dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.1e}"
    return f"{value:.{digits}g}"


def fixed(value: float | None) -> str:
    """Three decimals with a real minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.3f}"
    return "0.000" if text == "-0.000" else text.replace("-", "−")
