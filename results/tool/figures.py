"""The figures of results/README.md, from the same evidence as its tables."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from lpwm.core.files import disk_errors, make_folder
from lpwm.stats import Interval, success_interval

from .claims import METHODS, RANDOM, Claim
from .evidence import groups, result_of
from .line import Evidence
from .read import Results, Studied
from .study_cells import MEASURES
from .study_tables import first_upper, success_names
from .verdict import NOT_TESTED

# Okabe and Ito's colors, without the yellow that paper swallows: told apart with any color vision.
COLORS = ("#0072B2", "#C04F00", "#00795A", "#A8508A", "#8A6100", "#3B6FA0", "#4D4D4D")
PAPER, GRAY = "#c9c5ba", "#6b6f76"
OUTLINE = [withStroke(linewidth=2.6, foreground="#00000088")]  # white on yellow too
ORDER = ("lpwm", "lpwm-tj", "lewm")
TARGETS = "target-study"  # the name of its figure
MARKS = {0.5: "v", 1.0: "o", 2.0: "s"}  # by p
CURVES = {
    "relative_error": "relative error",
    "copy_error": "… of copying the last frame",
    "effective_dimension": "effective dimension",
    "active_fraction": "active fraction",
}
Ours = Mapping[Claim, list[Evidence]]


def write(folder: Path, ours: Ours, results: Results) -> list[Path]:
    """Those there are data for; the files written, older ones of the same names removed."""
    parts: dict[str, Callable[[], Figure | None]] = {
        "differences": lambda: differences(ours),
        "piecewise": lambda: piecewise(ours),
        "horizons": lambda: horizons(results),
        "jaccard": lambda: jaccard(results),
        TARGETS: lambda: targets(list(results.targets.values())[-1]) if results.targets else None,
    }
    for file, document in results.curves.items():
        parts[Path(file).stem] = partial(curves, document)
    return [path for name, make in parts.items() for path in save(folder / f"{name}.png", make)]


def save(path: Path, make: Callable[[], Figure | None]) -> list[Path]:
    path.unlink(missing_ok=True)
    with matplotlib.rc_context(fname=str(Path(__file__).parent / "figures.mplstyle")):
        figure = make()  # inside: the style decides on the layout when a figure is made
        if figure is None:
            return []
        make_folder(path.parent)
        with disk_errors(path):
            figure.savefig(path, metadata={"Software": None})
    return [path]


def jaccard(results: Results) -> Figure | None:
    """Jaccard maps of the first seed of each method, of the study with most seeds."""
    mapped = [s for s in results.studied if "grid" in s.study]
    if not mapped:
        return None
    most = max(sorted({s.files for s in mapped}), key=lambda f: sum(s.files == f for s in mapped))
    first: dict[str, Studied] = {}
    for one in sorted((s for s in mapped if s.files == most), key=lambda s: str(s.run.seed)):
        first.setdefault(one.run.method, one)
    chosen = sorted(first.items(), key=lambda m: ORDER.index(m[0]) if m[0] in ORDER else len(ORDER))
    return _maps([one.study for _, one in chosen])


def _maps(studies: Sequence[Mapping[str, Any]]) -> Figure:
    """A row of maps for each run, one for each of the first reference cells."""
    cells = [(r["row"], r["col"]) for r in studies[0]["grid"]["references"]][:4]
    fig = Figure(figsize=(2.1 * len(cells) + 0.9, 2.5 * len(studies)), layout="constrained")
    for part, study in zip(fig.subfigures(len(studies), 1, squeeze=False)[:, 0], studies, strict=True):
        axes, run, sharp = part.subplots(1, len(cells), squeeze=False)[0], study["run"], study["sharpness"]
        for axis, (row, col) in zip(axes, cells, strict=True):
            image = axis.imshow(_jaccard_map(study, row, col), vmin=0, vmax=1, cmap="viridis")
            _borders(axis, np.array(study["grid"]["zones"]))
            axis.plot(col, row, "+", color="white", ms=9, mew=2, path_effects=OUTLINE)
            axis.set(xticks=[], yticks=[], xlabel=f"row {row}, column {col}")
            axis.spines[:].set_visible(False)
        kind = "sparse" if run["sparse"] else "dense, sign pattern"
        title = f"{run['name'].removesuffix('-' + run['hash'])}, seed {run['seed']} ({kind})"
        title += f"\nsharpness {sharp['sharpness']['estimate']:.2f}, at equal displacement {sharp['matched']:.2f}"
        part.suptitle(title, x=0.01, ha="left", fontsize=9)
        part.colorbar(image, ax=list(axes), shrink=0.9, label="Jaccard index with +")
    return fig


def _jaccard_map(study: Mapping[str, Any], row: int, col: int) -> np.ndarray:
    """|a ∧ b| / |a ∨ b| of the support at one cell of the grid with that at every other: (n, n)."""
    packed = study["grid"]["supports"]
    *lead, units = packed["shape"]
    bits = np.frombuffer(base64.b64decode(packed["data"]), dtype=np.uint8).reshape(*lead, packed["bytes_per_row"])
    on_nnD = np.unpackbits(bits, axis=-1, count=units).astype(bool)
    both, either = (pair.sum(-1) for pair in (on_nnD & on_nnD[row, col], on_nnD | on_nnD[row, col]))
    return np.where(either > 0, both / np.maximum(either, 1), 1.0)


def _borders(axis: Axes, zones_nn: np.ndarray) -> None:
    """Dashed lines where neighboring cells lie in different zones."""
    for row, col in zip(*np.nonzero(np.diff(zones_nn, axis=0)), strict=True):
        axis.plot([col - 0.5, col + 0.5], [row + 0.5] * 2, "--", color="white", lw=1, path_effects=OUTLINE)
    for row, col in zip(*np.nonzero(np.diff(zones_nn, axis=1)), strict=True):
        axis.plot([col + 0.5] * 2, [row - 0.5, row + 0.5], "--", color="white", lw=1, path_effects=OUTLINE)


def _dot(axis: Axes, interval: Interval, at: float, color: str, hollow: bool, upright: bool = False) -> None:
    """An estimate with its interval in %, at a height, or upright at a place."""
    ends, place = [100 * interval.low, 100 * interval.high], [at, at]
    axis.plot(*((place, ends) if upright else (ends, place)), color=color, lw=2)
    dot = ([100 * interval.estimate], [at])
    axis.plot(*(dot[::-1] if upright else dot), "o", color=color, ms=5, mfc="white" if hollow else color)


def differences(ours: Ours) -> Figure | None:
    """Every difference in points that was run, at its first line; the paper's range behind it."""
    of_success = [lines[0] for c, lines in ours.items() if lines and c.query.source in ("success", "replanning")]
    judged = [e for e in of_success if e.verdict.direction != NOT_TESTED]
    lines = [e for e in judged if e.claim.kind in ("difference", "parity") and e.interval]
    if not lines:
        return None
    figure = Figure(figsize=(6.6, 0.32 * len(lines) + 1.0))
    axis = figure.subplots()
    for y, line in enumerate(lines):
        assert line.interval is not None
        low, high = 100 * line.claim.low, 100 * line.claim.high
        if high - low < 1:
            axis.plot([low, low], [y - 0.3, y + 0.3], color=PAPER, lw=4)
        elif line.claim.low or line.claim.kind == "parity":
            axis.barh(y, high - low, left=low, height=0.6, color=PAPER)
        _dot(axis, line.interval, y, COLORS[0], line.reduced)
    axis.axvline(0, color="#33363b", lw=0.8)
    axis.set_yticks(range(len(lines)), [e.claim.title for e in lines])
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xlabel("points of success; hollow: a reduced size")
    return figure


def piecewise(ours: Ours) -> Figure | None:
    """Random goals reached: each method with R = 1 and R = 5, the paper's number as a band, the first line of ours as a
    dot for each planning cost."""
    ran = {c.id: lines[0] for c, lines in ours.items() if c.row in RANDOM and c.kind == "level" and lines}
    if not ran:
        return None
    figure = Figure(figsize=(6.6, 2.6))
    for axis, (family, paper) in zip(figure.subplots(1, 2, sharey=True), RANDOM.items(), strict=True):
        for i, receding in enumerate((1, 5)):
            for j, method in enumerate(ORDER):
                mean, spread = paper[method][i]
                axis.bar(4 * i + j, 2 * spread, bottom=mean - spread, width=0.8, color=PAPER)
                for cost, aside in (("", -0.18), ("-path", 0.18)):
                    line = ran.get(f"{family}-r{receding}-{method}{cost}")
                    if line is not None and line.reached_interval is not None:
                        place = 4 * i + j + aside
                        _dot(axis, line.reached_interval, place, COLORS[j], hollow=not cost, upright=True)
        ticks = [4 * i + j for i in range(2) for j in range(3)]
        axis.set_xticks(ticks, [METHODS[m] for m in ORDER * 2], rotation=40, ha="right")
        axis.set(title=f"{family[-3:].replace('x', '×')}: R = 1 (left), R = 5 (right)", ylim=(0, 100))
    figure.axes[0].set_ylabel("reached (%)\nhollow: end cost, full: path cost")
    return figure


def horizons(results: Results) -> Figure | None:
    """Success against H on random goals, R = 1, one panel for each size, where at least three H were run."""
    every: dict[tuple[str, str], dict[str, dict[int, Interval]]] = {}
    chosen = [p for p in results.planned if p.goals == "random" and p.receding == 1 and p.cost == "end"]
    for group in groups(chosen, by_method=True).values():
        p = next(iter(group.values()))
        interval = success_interval(result_of("x", group, sorted(group, key=str), "terminal"))
        planner = f"{p.planner}, {p.episodes} goals"  # one for a whole curve
        panel = every.setdefault((p.run.family, f"{p.run.suffix or 'paper'}, {p.budget} steps\n{planner}"), {})
        panel.setdefault(p.run.parts[2], {})[p.horizon] = interval
    long = {title: {m: c for m, c in panel.items() if len(c) >= 3} for title, panel in every.items()}
    panels = sorted((title, panel) for title, panel in long.items() if panel)
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, 2.4 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, ((family, size), panel) in zip(axes, panels, strict=False):
        for method, points in sorted(panel.items()):
            at = sorted(points)
            color = COLORS[ORDER.index(method) if method in ORDER else 3]
            low, mid, high = ([100 * getattr(points[h], k) for h in at] for k in ("low", "estimate", "high"))
            axis.plot(at, mid, "o-", color=color, ms=3, label=METHODS.get(method, method))
            axis.fill_between(at, low, high, color=color, alpha=0.13, lw=0)
        axis.set(title=f"{family} {size}", xlabel="horizon H", ylabel="at the goal at the end (%)", ylim=(0, 100))
        axis.legend()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def curves(document: Mapping[str, Any]) -> Figure:
    """A panel for each monitor, a line for each run, a color for each recipe (and λ, η where a recipe has several)."""
    cells: dict[tuple[str, float, float], list[Mapping[str, Any]]] = {}
    for run in document["runs"]:
        cells.setdefault((run["recipe"], run["lam"], run["lr"]), []).append(run)
    names = [name for name, _, _ in cells]
    fig = Figure(figsize=(3.2 * len(CURVES), 2.9), layout="constrained")
    axes = fig.subplots(1, len(CURVES))
    for axis, (key, title) in zip(axes, CURVES.items(), strict=True):
        for ((name, lam, lr), runs), color in zip(cells.items(), COLORS * len(cells), strict=False):
            label = name if names.count(name) == 1 else f"{name}, λ={lam:g}, η={lr:g}"
            for i, run in enumerate(runs):
                line = run["curves"]
                axis.plot(line["step"], line[key], color=color, lw=1, label=None if i else label)
        axis.set_title(title)
        axis.set_xlabel("step", color=GRAY)
        if key.endswith("_error"):
            axis.set_yscale("log")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(cells)))
    return fig


def targets(study: Mapping[str, Any]) -> Figure:
    """Left: realized against the target's activity. Then a panel for each measure: plain and coordinate slices."""
    shown = ["ratio", "zone_support", *success_names(study)[:1]]
    fig = Figure(figsize=(2.6 * (len(shown) + 1), 3.1))
    first, *rest = fig.subplots(1, len(shown) + 1)
    shares = sorted({r["cell"]["axis_fraction"] for r in study["cells"]})
    color = {a: COLORS[k % len(COLORS)] for k, a in enumerate(shares)}
    first.plot([0, 0.6], [0, 0.6], color=GRAY, lw=0.8, ls=":", label="as targeted")
    named = None
    for row in study["cells"]:
        axis_fraction, m = row["cell"]["axis_fraction"], row["measures"]["active"]
        if m is None:
            continue
        x = row["target"]["active"] + 0.004 * (shares.index(axis_fraction) - 0.5)
        mark, ends = MARKS.get(row["cell"]["p"], "D"), [[m["estimate"] - m["low"]], [m["high"] - m["estimate"]]]
        first.errorbar(x, m["estimate"], ends, color=color[axis_fraction], fmt=mark, ms=4, lw=1, capsize=1.5)
        if axis_fraction != named:
            named = axis_fraction
            name = "plain slices" if axis_fraction == 0 else f"{100 * axis_fraction:g} % coordinate"
            first.plot([], [], "o", color=color[axis_fraction], ms=4, label=name)
    for p in sorted({r["cell"]["p"] for r in study["cells"]}):
        first.plot([], [], MARKS.get(p, "D"), color=GRAY, ms=4, label=f"p = {p:g}")
    first.set(xlabel="P(y > 0) of the target", ylabel="active fraction", title="Activity")
    first.set_ylim(bottom=0)
    first.legend(fontsize=6.5)
    for axis, name in zip(rest, shown, strict=True):
        _paired(axis, study, name, color)
    return fig


def _paired(axis: Axes, study: Mapping[str, Any], name: str, color: Mapping[float, str]) -> None:
    targets = sorted({(r["cell"]["p"], -r["cell"]["mu"]) for r in study["cells"]})
    each = []
    for row in study["cells"]:
        cell, m = row["cell"], row["measures"][name]
        if m is None:
            continue
        y, ink = (
            targets.index((cell["p"], -cell["mu"])) + 0.3 * (cell["axis_fraction"] > 0),
            color[cell["axis_fraction"]],
        )
        axis.plot([m["low"], m["high"]], [y, y], color=ink, lw=1.5)
        axis.plot([m["estimate"]], [y], "o", color=ink, ms=4)
        axis.plot(m["values"], np.full(len(m["values"]), y), "|", color=ink, ms=4, alpha=0.6)
        each += m["values"]
    if each:  # the interval of two seeds that differ may run off the panel
        room = 0.25 * (max(each) - min(each)) + 1e-3
        axis.set_xlim(min(each) - room, max(each) + room)
    axis.set_yticks(range(len(targets)), [f"p {p:g}, μ {-mu:g}" for p, mu in targets], fontsize=7)
    axis.set_ylim(len(targets) - 0.4, -0.6)
    axis.set_title(first_upper(MEASURES.get(name, name.replace(", random", ",\nrandom goals"))), fontsize=8)
    axis.grid(axis="y", visible=False)
