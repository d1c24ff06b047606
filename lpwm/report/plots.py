"""The curves of a report as data: what the page gives to plotly and the figures to matplotlib.

A plot is {"id", "title", "section", "x", "y", "log", "range", "summary", "traces"}; a trace is {"name", "x", "y",
"color" (an index into the palette; −1 is gray), "dash", "low", "high", "markers"}.
"""

from __future__ import annotations

from typing import Any

from lpwm.report.found import Found
from lpwm.report.tables import cells, horizon_series, series, short, significant


def plots(found: Found) -> list[dict[str, Any]]:
    """Every plot that has something to show."""
    made = [*(_logged(found, *row) for row in LOGGED), _depth(found), *_distance(found), *_horizon(found)]
    return [p for p in made if p["traces"]]


# id, title, y label, logged names (the second, dashed, is what the first is to be compared with), log scale
LOGGED: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("loss", "Loss", "loss", ("loss",), True),
    ("error", "One-step error", "relative error", ("relative_error", "copy_error"), True),
    ("active", "Active units", "share of z > 0", ("active_fraction",), False),
    ("dimension", "Effective dimension", "tr(C)² / ‖C‖²", ("effective_dimension",), False),
    ("instability", "Change of the support", "1 − J", ("support_instability",), False),
)


def _logged(found: Found, name: str, title: str, y: str, names: tuple[str, ...], log: bool) -> dict[str, Any]:
    traces = []
    for run in found.runs:
        for logged, dash in zip(names, ("solid", "dot"), strict=False):
            steps, values = series(run["record"].get("train", []), logged)
            if any(v is not None for v in values):
                traces.append(
                    _trace(
                        run["label"] + ("" if logged == names[0] else ", copying"),
                        steps,
                        values,
                        color=found.color(run),
                        dash=dash,
                    )
                )
    last = "; ".join(f"{t['name']} {short(t['y'][-1])}" for t in traces)
    shown = [0.0, 1.0] if name in ("active", "instability") else None
    summary = f"Last values: {last}."
    return _plot(name, title, "training", "training step", y, traces, log=log, shown=shown, summary=summary)


def _depth(found: Found) -> dict[str, Any]:
    traces = []
    for run in found.runs:
        val = run["record"].get("val") or [{}]
        for logged, dash in (("error_depth", "solid"), ("copy_error_depth", "dot")):
            values = val[-1].get(logged) or []
            if values:
                name = run["label"] + ("" if logged == "error_depth" else ", copying")
                traces.append(
                    _trace(
                        name,
                        list(range(1, len(values) + 1)),
                        [significant(v) for v in values],
                        color=found.color(run),
                        dash=dash,
                        markers=True,
                    )
                )
    last = "; ".join(f"{t['name']} {short(t['y'][-1])}" for t in traces)
    return _plot(
        "depth",
        "Held-out error by rollout depth",
        "training",
        "blocks predicted ahead",
        "relative error",
        traces,
        log=True,
        summary=f"At the greatest depth: {last}.",
    )


def _distance(found: Found) -> list[dict[str, Any]]:
    """Latent against state distance, from the last evaluation that measured it."""
    measured = [e for e in found.evaluations if e.get("curves")]
    if not measured:
        return []
    traces = []
    by_name = {r["name"]: r for r in measured[-1]["runs"]}
    for name, curve in measured[-1]["curves"].items():
        middle = [(a + b) / 2 for a, b in zip(curve["edges"][:-1], curve["edges"][1:], strict=True)]
        entry = by_name.get(name, {})
        run = found.by_hash(entry.get("run_hash", ""))
        mean, sd = curve["relative"], curve["sd"]
        traces.append(
            _trace(
                run["label"] if run else name,
                [significant(m) for m in middle],
                [significant(v) for v in mean],
                color=found.color(run),
                markers=True,
                low=[_minus(v, s, -1) for v, s in zip(mean, sd, strict=True)],
                high=[_minus(v, s, 1) for v, s in zip(mean, sd, strict=True)],
            )
        )
    ranks = "; ".join(
        f"{t['name']} {short(c['spearman'])}" for t, c in zip(traces, measured[-1]["curves"].values(), strict=True)
    )
    return [
        _plot(
            "distance",
            "Latent distance against state distance",
            "distance",
            "state distance (world units)",
            "latent distance, far pairs = 1",
            traces,
            summary=f"Rank correlation: {ranks}.",
        )
    ]


def _minus(value: float | None, sd: float | None, sign: int) -> float | None:
    return None if value is None or sd is None else significant(value + sign * sd)


def _horizon(found: Found) -> list[dict[str, Any]]:
    out = []
    swept = horizon_series(cells(found.evaluations))
    for goals in dict.fromkeys(s["goals"] for s in swept):
        traces = []
        for one in (s for s in swept if s["goals"] == goals):
            at = sorted(one["points"])
            rate, low, high = ([significant(100 * one["points"][h][i]) for h in at] for i in range(3))
            title, color = found.look(one, one["evaluation"])
            traces.append(
                _trace(
                    f"{title}, {one['way']}",
                    at,
                    rate,
                    low=low,
                    high=high,
                    markers=True,
                    color=color,
                    dash="solid" if one["way"] == "R = 1" else "dash",
                )
            )
        budget = next(s["budget"] for s in swept if s["goals"] == goals)
        out.append(
            _plot(
                f"horizon-{goals}",
                f"{goals.capitalize()} goals",
                "horizon",
                "horizon H (blocks)",
                f"terminal success at {budget} steps (%)",
                traces,
                shown=[0.0, 100.0],
                summary="Solid: one block executed of each plan; dashed: all of it. Bars are 95 % intervals.",
            )
        )
    return out


def _trace(
    name: str,
    x: list[Any],
    y: list[float | None],
    *,
    color: int,
    dash: str = "solid",
    markers: bool = False,
    low: list[float | None] | None = None,
    high: list[float | None] | None = None,
) -> dict[str, Any]:
    return {"name": name, "x": x, "y": y, "color": color, "dash": dash, "markers": markers, "low": low, "high": high}


def _plot(
    name: str,
    title: str,
    section: str,
    x: str,
    y: str,
    traces: list[dict[str, Any]],
    *,
    log: bool = False,
    shown: list[float] | None = None,
    summary: str = "",
) -> dict[str, Any]:
    return {
        "id": f"plot-{name}",
        "title": title,
        "section": section,
        "x": x,
        "y": y,
        "log": log,
        "range": shown,
        "summary": summary,
        "traces": traces,
    }
