"""The curves of a report as data: what the page gives to plotly and the figures to matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lpwm.report.data import significant
from lpwm.report.view import CellView, Report, RunView, short


@dataclass(frozen=True)
class Trace:
    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: int  # index into the palette; −1 is gray
    dash: str = "solid"
    markers: bool = False
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Plot:
    id: str
    title: str
    section: str
    x: str
    y: str
    traces: Sequence[Trace]
    log: bool = False
    range: tuple[float, float] | None = None
    summary: str = ""


def plots(report: Report) -> list[Plot]:
    """Every plot that has something to show."""
    made = [*(_logged(report, *row) for row in LOGGED), _depth(report), *_distance(report), *_horizon(report)]
    return [p for p in made if p.traces]


# id, title, y label, logged names (the second, dashed, is what the first is to be compared with), log scale
LOGGED: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("loss", "Loss", "loss", ("loss",), True),
    ("error", "One-step error", "relative error", ("relative_error", "copy_error"), True),
    ("active", "Active units", "share of z > 0", ("active_fraction",), False),
    ("dimension", "Effective dimension", "tr(C)² / ‖C‖²", ("effective_dimension",), False),
    ("instability", "Change of the support", "1 − J", ("support_instability",), False),
)


def _named(run: RunView, first: bool) -> str:
    return run.label if first else f"{run.label}, copying"


def _last(traces: Iterable[Trace]) -> str:
    return "; ".join(f"{t.name} {short(t.y[-1])}" for t in traces)


def _logged(report: Report, name: str, title: str, y: str, names: tuple[str, ...], log: bool) -> Plot:
    traces = []
    for run in report.runs:
        for logged, dash in zip(names, ("solid", "dot"), strict=False):
            steps, values = run.file.log.series(logged)
            if any(v is not None for v in values):
                traces.append(Trace(_named(run, logged == names[0]), steps, values, run.color, dash))
    shown = (0.0, 1.0) if name in ("active", "instability") else None
    last = f"Last values: {_last(traces)}."
    return Plot(f"plot-{name}", title, "training", "training step", y, traces, log, shown, last)


def _depth(report: Report) -> Plot:
    traces = []
    for run in report.runs:
        for logged, dash in (("error_depth", "solid"), ("copy_error_depth", "dot")):
            values = [significant(v) for v in run.file.log.held_out(logged)]
            if values:
                at = list(range(1, len(values) + 1))
                traces.append(Trace(_named(run, logged == "error_depth"), at, values, run.color, dash, markers=True))
    title, last = "Held-out error by rollout depth", f"At the greatest depth: {_last(traces)}."
    return Plot(
        "plot-depth", title, "training", "blocks predicted ahead", "relative error", traces, log=True, summary=last
    )


def _distance(report: Report) -> list[Plot]:
    """Latent against state distance, from the last evaluation that measured it."""
    measured = [e for e in report.given.evaluations if e.curves]
    if not measured:
        return []
    hashes, traces, ranks = {r.name: r.run_hash for r in measured[-1].runs}, [], []
    for name, curve in measured[-1].curves.items():
        run = report.by_hash(hashes.get(name, ""))
        title, color = (run.label, run.color) if run else (name, -1)
        middle = [(a + b) / 2 for a, b in zip(curve.edges[:-1], curve.edges[1:], strict=True)]
        low, high = (
            [significant(v + sign * s) for v, s in zip(curve.relative, curve.sd, strict=True)] for sign in (-1, 1)
        )
        x, y = [significant(m) or 0.0 for m in middle], [significant(v) for v in curve.relative]
        traces.append(Trace(title, x, y, color, markers=True, low=low, high=high))
        ranks.append(f"{title} {short(curve.spearman)}")
    title, x_title = "Latent distance against state distance", "state distance (world units)"
    summary = f"Rank correlation: {'; '.join(ranks)}."
    return [
        Plot("plot-distance", title, "distance", x_title, "latent distance, far pairs = 1", traces, summary=summary)
    ]


@dataclass(frozen=True)
class _Series:
    """Success against horizon of one row, executed in one manner."""

    goals: str
    executed: str  # "R = 1" or "R = H"
    name: str
    control: bool
    evaluation: int
    budget: int
    points: dict[int, tuple[float, float, float]]


def _series(every: Sequence[CellView]) -> list[_Series]:
    """Where at least three H were run; rows that do not plan left out."""
    series: dict[tuple[str, str, str], _Series] = {}
    for view in every:
        cell = view.cell
        for executed, fits in (("R = 1", cell.receding == 1), ("R = H", cell.receding == cell.horizon)):
            for row in cell.rows if fits and view.sweep else ():
                if row.name in ("random actions", "do nothing"):
                    continue
                budget, key = cell.budgets[-1], (cell.goals, executed, row.name)
                if key not in series:
                    series[key] = _Series(*key, row.control, view.evaluation, budget, {})
                value = row.at(budget).terminal
                series[key].points[cell.horizon] = (value.rate, value.low, value.high)
    return [s for s in series.values() if len(s.points) >= 3]


def _horizon(report: Report) -> list[Plot]:
    out = []
    swept = _series(report.cells)
    for goals in dict.fromkeys(s.goals for s in swept):
        traces = []
        for one in (s for s in swept if s.goals == goals):
            at = sorted(one.points)
            rate, low, high = ([significant(100 * one.points[h][i]) for h in at] for i in range(3))
            title, color = report.look(one, one.evaluation)
            dash = "solid" if one.executed == "R = 1" else "dash"
            traces.append(Trace(f"{title}, {one.executed}", at, rate, color, dash, True, low, high))
        budget = next(s.budget for s in swept if s.goals == goals)
        out.append(
            Plot(
                f"plot-horizon-{goals}",
                f"{goals.capitalize()} goals",
                "horizon",
                "horizon H (blocks)",
                f"terminal success at {budget} steps (%)",
                traces,
                range=(0.0, 100.0),
                summary="Solid: one block executed of each plan; dashed: all of it. Bars are 95 % intervals.",
            )
        )
    return out
