"""The figures of results/README.md, from the same evidence as its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from lpwm.core.files import disk_errors, make_folder
from lpwm.interpret.figures import maps
from lpwm.report import palette
from lpwm.report.drawn import style
from lpwm.stats import success_interval

from . import curves, study_figure
from .claims import METHODS, RANDOM, Claim
from .evidence import Evidence, groups, result_of
from .read import Results, Studied
from .study_page import FIGURE as TARGETS

PAPER, INK = "#c9c5ba", palette.LIGHT[0]
ORDER = ("lpwm", "lpwm-tj", "lewm")
Found = Mapping[Claim, list[Evidence]]


def write(folder: Path, found: Found, results: Results) -> list[Path]:
    """Those there are data for; the files written, older ones of the same names removed."""
    parts: dict[str, Callable[[], Figure | None]] = {
        "differences": lambda: differences(found),
        "piecewise": lambda: piecewise(found),
        "horizons": lambda: horizons(results),
        "jaccard": lambda: jaccard(results),
        TARGETS: lambda: study_figure.figure(list(results.targets.values())[-1]) if results.targets else None,
    }
    for file, document in results.curves.items():
        parts[Path(file).stem] = partial(curves.figure, document)
    written = []
    with style():
        for name, make in parts.items():
            path = folder / f"{name}.png"
            path.unlink(missing_ok=True)
            figure = make()  # inside: the style decides on the layout when a figure is made
            if figure is not None:
                make_folder(folder)
                with disk_errors(path):
                    figure.savefig(path, metadata={"Software": None})
                written.append(path)
    return written


def jaccard(results: Results) -> Figure | None:
    """Jaccard maps of the first seed of each method, of the study with most seeds."""
    read = [s for s in results.studied if "grid" in s.study]
    if not read:
        return None
    file = max(sorted({s.files[0] for s in read}), key=lambda f: sum(s.files[0] == f for s in read))
    first: dict[str, Studied] = {}
    for one in sorted((s for s in read if s.files[0] == file), key=lambda s: str(s.run.seed)):
        first.setdefault(one.run.method, one)
    chosen = sorted(first.items(), key=lambda m: ORDER.index(m[0]) if m[0] in ORDER else len(ORDER))
    return maps([dict(one.study) for _, one in chosen])


def differences(found: Found) -> Figure | None:
    """Every difference in points that was run, at its first line; the paper's range behind it."""
    lines = [
        e[0]
        for c, e in found.items()
        if c.kind in ("difference", "parity") and c.query.source == "success" and e and e[0].interval
    ]
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
        axis.plot([100 * line.interval.low, 100 * line.interval.high], [y, y], color=INK, lw=2)
        axis.plot([100 * line.interval.estimate], [y], "o", color=INK, ms=5, mfc="white" if line.reduced else INK)
    axis.axvline(0, color="#33363b", lw=0.8)
    names = [f"{e.claim.row}: {e.claim.text}" for e in lines]
    axis.set_yticks(range(len(lines)), names)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xlabel("points of success; hollow: a reduced size")
    return figure


def piecewise(found: Found) -> Figure | None:
    """Random goals: each method with R = 1 and R = 5, the paper's number as a band, the first line of ours as a dot."""
    ran = {c.id: e[0] for c, e in found.items() if c.row in RANDOM and c.kind == "level" and e}
    if not ran:
        return None
    figure = Figure(figsize=(6.6, 2.6))
    for axis, (family, paper) in zip(figure.subplots(1, 2, sharey=True), RANDOM.items(), strict=True):
        for i, receding in enumerate((1, 5)):
            for j, method in enumerate(ORDER):
                x = 4 * i + j
                mean, spread = paper[method][i]
                axis.bar(x, 2 * spread, bottom=mean - spread, width=0.8, color=PAPER)
                line = ran.get(f"{family}-r{receding}-{method}")
                if line is not None and line.interval is not None:
                    ink = palette.LIGHT[j]
                    axis.plot([x, x], [100 * line.interval.low, 100 * line.interval.high], color=ink, lw=2)
                    axis.plot(
                        [x], [100 * line.interval.estimate], "o", color=ink, ms=5, mfc="white" if line.reduced else ink
                    )
        ticks = [4 * i + j for i in range(2) for j in range(3)]
        axis.set_xticks(ticks, [METHODS[m] for _ in range(2) for m in ORDER], rotation=40, ha="right")
        axis.set(title=f"{family[-3:].replace('x', '×')}: R = 1 (left), R = 5 (right)", ylim=(0, 100))
    figure.axes[0].set_ylabel("success (%); hollow: reduced")
    return figure


def horizons(results: Results) -> Figure | None:
    """Success against H on random goals, R = 1, one panel for each size, where at least three H were run."""
    curves: dict[tuple[str, str], dict[str, dict[int, tuple[float, float, float]]]] = {}
    chosen = [p for p in results.planned if p.goals == "random" and p.receding == 1]
    for group in groups(chosen, by_method=True).values():
        p = next(iter(group.values()))
        got = success_interval(result_of("x", group, sorted(group, key=str), "latched"))
        planner = f"{p.planner}, {p.episodes} goals"  # one for a whole curve
        panel = curves.setdefault((p.run.family, f"{p.run.suffix or 'paper'}, {p.budget} steps\n{planner}"), {})
        panel.setdefault(p.run.parts[2], {})[p.horizon] = (got.estimate, got.low, got.high)
    panels = {
        k: {m: c for m, c in v.items() if len(c) >= 3}
        for k, v in curves.items()
        if any(len(c) >= 3 for c in v.values())
    }
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, 2.4 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, ((family, size), panel) in zip(axes, sorted(panels.items()), strict=False):
        for method, points in sorted(panel.items()):
            at = sorted(points)
            ink = palette.LIGHT[ORDER.index(method) if method in ORDER else 3]
            axis.plot(at, [100 * points[h][0] for h in at], "o-", color=ink, ms=3, label=METHODS.get(method, method))
            axis.fill_between(at, *([100 * points[h][k] for h in at] for k in (1, 2)), color=ink, alpha=0.13, lw=0)
        axis.set(title=f"{family} {size}", xlabel="horizon H", ylabel="success (%)", ylim=(0, 100))
        axis.legend()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure
