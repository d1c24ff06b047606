"""The curves of a report as data: what the page gives to plotly and the figures to matplotlib."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lpwm.evaluate.results import Rate, Row
from lpwm.report.gather import significant
from lpwm.report.view import Report, RunView, short


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
    about: str = ""  # what the title means


def plots(report: Report) -> list[Plot]:
    """Every plot that has something to show."""
    made = [*(_logged(report, *row) for row in LOGGED), _depth(report), _imagined(report)]
    made += [*_distance(report), *_horizon(report)]
    return [p for p in made if p.traces]


# id, title, what it means, y label, logged names (the second, dashed, is what the first is compared with), log scale
LOGGED: tuple[tuple[str, str, str, str, tuple[str, ...], bool], ...] = (
    ("loss", "Loss", "prediction and regularizer", "loss", ("loss",), True),
    ("error", "One-step error", "of the next code", "relative error", ("relative_error", "copy_error"), True),
    ("active", "Active units", "on in a frame", "share of z > 0", ("active_fraction",), False),
    ("dimension", "Effective dimension", "directions in use", "tr(C)² / ‖C‖²", ("effective_dimension",), False),
    ("instability", "Change of the support", "from frame to frame", "1 − J", ("support_instability",), False),
)


def _named(run: RunView, first: bool) -> str:
    return run.label if first else f"{run.label}, copying"


def _last(traces: Iterable[Trace]) -> str:
    return "; ".join(f"{t.name} {short(t.y[-1])}" for t in traces)


def _logged(report: Report, name: str, title: str, about: str, y: str, names: tuple[str, ...], log: bool) -> Plot:
    traces = []
    for run in report.runs:
        for logged, dash in zip(names, ("solid", "dot"), strict=False):
            steps, values = run.file.log.series(logged)
            if any(v is not None for v in values):
                traces.append(Trace(_named(run, logged == names[0]), steps, values, run.color, dash))
    shown = (0.0, 1.0) if name in ("active", "instability") else None
    last = f"Last values: {_last(traces)}."
    return Plot(f"plot-{name}", title, "training", "training step", y, traces, log, shown, last, about)


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


GUESSES = (("imagined", "solid"), ("nearest", "dash"), ("copy", "dot"), ("mean", "dashdot"))


def _imagined(report: Report) -> Plot:
    """Pixel errors by depth: imagined, and without a model."""
    traces = []
    for one in report.given.imagination:
        label = report.label(one)
        for name, dash in GUESSES:
            values = [significant(v) for v in getattr(one, name)]
            traces.append(
                Trace(f"{label}, {name}", list(range(1, len(values) + 1)), values, report.color(one), dash, True)
            )
    last = f"At the greatest depth: {_last(t for t in traces if t.dash == 'solid')}." if traces else ""
    title, y = "Pixel error by depth", "mean squared error"
    return Plot("plot-imagined", title, "imagination", "blocks ahead", y, traces, True, summary=last)


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
            [significant(max(v + k * s, 0.0)) for v, s in zip(curve.relative, curve.sd, strict=True)] for k in (-1, 1)
        )
        x, y = [significant(m) or 0.0 for m in middle], [significant(v) for v in curve.relative]
        traces.append(Trace(title, x, y, color, markers=True, low=low, high=high))
        ranks.append(f"{title} {short(curve.spearman)}")
    title, x_title = "Latent distance against state distance", "state distance (world units)"
    summary = f"Rank correlation: {'; '.join(ranks)}."
    return [
        Plot("plot-distance", title, "distance", x_title, "latent distance, far pairs = 1", traces, summary=summary)
    ]


def _horizon(report: Report) -> list[Plot]:
    """Success against H of every row that plans, a plot per kind of goals, where at least three H were run."""
    rates: dict[str, dict[tuple[str, str], dict[int, Rate]]] = {}
    rows: dict[tuple[str, str, str], tuple[Row, int, int]] = {}  # a row, its evaluation, its budget
    for view in report.cells:
        cell = view.cell
        for executed, fits in (("R = 1", cell.receding == 1), ("R = H", cell.receding == cell.horizon)):
            for row in cell.rows if fits and view.sweep else ():
                if row.name not in ("random actions", "do nothing"):
                    key, budget = (executed, row.name), cell.budgets[-1]
                    rows.setdefault((cell.goals, *key), (row, view.evaluation, budget))
                    rates.setdefault(cell.goals, {}).setdefault(key, {})[cell.horizon] = row.at(budget).terminal
    out = []
    for goals, lines in rates.items():
        traces = []
        for (executed, name), points in lines.items():
            if len(points) < 3:
                continue
            row, evaluation, budget = rows[goals, executed, name]
            at = sorted(points)
            rate, low, high = (
                [significant(100 * getattr(points[h], of)) for h in at] for of in ("rate", "low", "high")
            )
            title, color = report.look(row, evaluation)
            dash = "solid" if executed == "R = 1" else "dash"
            traces.append(Trace(f"{title}, {executed}", at, rate, color, dash, True, low, high))
        y = f"at the goal after {budget} steps (%)" if traces else ""
        told = "Solid: one block executed of each plan; dashed: all of it. Bars are 95 % intervals."
        name, title = f"plot-horizon-{goals}", f"{goals.capitalize()} goals"
        out.append(Plot(name, title, "horizon", "horizon H (blocks)", y, traces, range=(0.0, 100.0), summary=told))
    return out
