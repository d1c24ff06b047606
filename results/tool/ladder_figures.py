"""The figures of a sweep: heat maps, the ladder, open and closed loop, two rungs scattered, transfer of rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lpwm.model.predictors import in_order
from lpwm.model.predictors import title_of as title
from lpwm.report import palette
from lpwm.report.figures.curves import legend
from lpwm.report.palette import GRAY
from lpwm.stats import Interval

from .ladder import Best, Difference, Key, Look, SweepResults, Transfer

MARKS = "osD^vP*X"


class Made(NamedTuple):
    name: str
    caption: str
    figure: Figure


def draw(
    results: SweepResults, bests: Sequence[Best], differences: Sequence[Difference], moved: Sequence[Transfer]
) -> list[Made]:
    """Every figure there are data for."""
    from lpwm.report.figures import style

    worlds = list(dict.fromkeys(b.key.world for b in bests))
    with style():
        made = heat_maps(results, bests)
        for i, look in enumerate(results.looks, start=1):
            for world in worlds:
                gaps = [d for d in differences if d.look == look and d.a.key.world == world]
                figure = ladder([b for b in bests if b.key.world == world], gaps, look)
                if figure is not None:
                    caption = f"Success by predictor and width, and sparse minus dense. {world}; {look.title}."
                    made.append(Made(f"ladder-{slug(world)}-{i}", caption, figure))
        for make in (loops, scatter):
            for world in worlds:
                one = make([b for b in bests if b.key.world == world], results.looks)
                if one is not None:
                    made.append(Made(f"{one.name}-{slug(world)}", f"{one.caption} {world}.", one.figure))
        return made + transfer_figures(moved)


def ladder_of(rungs: Iterable[str]) -> list[str]:
    """From the simplest to the most expressive."""
    return in_order(rungs)[::-1]


def slug(text: str) -> str:
    """For file names: plain letters, digits and single dashes."""
    plain = text.replace("μ=−", "mu-minus").replace("μ", "mu").replace("+", "with ")
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def colors(bests: Sequence[Best]) -> Callable[[str], str]:
    index = palette.assign((b.key.method, b.sparse) for b in bests)
    return lambda method: palette.color(index[method])


def _point(axis: Axes, x: float, interval: Interval, color: str, mark: str, filled: bool = True) -> None:
    axis.plot([x, x], [100 * interval.low, 100 * interval.high], color=color, lw=1.6)
    axis.plot([x], [100 * interval.estimate], mark, color=color, ms=4.5, mfc=color if filled else "white")


def _spread(i: int, count: int, most: float = 0.2, room: float = 0.7) -> float:
    """Where the i-th of several stands next to its tick."""
    return (i - (count - 1) / 2) * min(most, room / count)


# Heat maps ---------------------------------------------------------------------------------------------------


def heat_maps(results: SweepResults, bests: Sequence[Best]) -> list[Made]:
    """λ × η, a panel per width, a row per rung, a figure per method; where at least one of the two varies."""
    made: list[Made] = []
    if not results.looks:
        return made
    look = results.looks[0]
    for world, method, mup in dict.fromkeys((k.world, k.method, k.mup) for k in results.keys):
        points = results.of(world=world, method=method, mup=mup)
        lams, rates = sorted({p.lam for p in points}), sorted({p.lr for p in points})
        if len(lams) < 2 and len(rates) < 2:
            continue
        rungs, widths = ladder_of(p.key.rung for p in points), sorted({p.key.latent for p in points})
        size = (1.5 + (0.55 * len(rates) + 0.35) * len(widths), 0.9 + (0.36 * len(lams) + 0.55) * len(rungs))
        figure = Figure(figsize=size)
        axes = figure.subplots(len(rungs), len(widths), squeeze=False, sharex=True, sharey=True)
        image: Any = None
        for row, rung in zip(axes, rungs, strict=True):
            row[0].set_ylabel("λ")
            for axis, width in zip(row, widths, strict=True):
                key = Key(world, method, rung, width, mup)
                image = _heat(axis, results, key, look, lams, rates, bests)
                axis.set_title(f"{title(rung)}, D = {width}", fontsize=7.5)
        for axis in axes[-1]:
            axis.set_xlabel("η")
        figure.colorbar(image, ax=axes, label="success (%)", shrink=0.8)
        kind = "μP" if mup else "plain"
        caption = (
            f"{method} on {world}, {kind} parametrization: success in %, mean over seeds ({look.title}). Boxed: the "
            "cell that the choosing seeds preferred. ×: every seed dead; empty: not run."
        )
        made.append(Made(f"heat-{slug(world)}-{slug(method)}-{slug(kind)}", caption, figure))
    return made


def _heat(
    axis: Any,
    results: SweepResults,
    key: Key,
    look: Look,
    lams: Sequence[float],
    rates: Sequence[float],
    bests: Sequence[Best],
) -> Any:
    values = np.full((len(lams), len(rates)), np.nan)
    for i, lam in enumerate(lams):
        for j, lr in enumerate(rates):
            here = [p for p in results.points if p.key == key and (p.lam, p.lr) == (lam, lr)]
            scores = [p.rate(look) for p in here if not np.isnan(p.rate(look))]
            if scores:
                values[i, j] = 100 * float(np.mean(scores))
                text = "×" if all(p.dead for p in here) else f"{values[i, j]:.0f}"
                ink = "white" if values[i, j] < 55 else "black"
                axis.text(j, i, text, ha="center", va="center", color=ink, fontsize=7)
    image = axis.imshow(values, vmin=0, vmax=100, cmap=palette.MAP, origin="lower", aspect="auto")
    axis.set_xticks(range(len(rates)), [f"{r:g}" for r in rates], rotation=45)
    axis.set_yticks(range(len(lams)), [f"{v:g}" for v in lams])
    axis.grid(visible=False)
    for b in bests:
        if b.key == key:
            at = (rates.index(b.lr) - 0.5, lams.index(b.lam) - 0.5)
            axis.add_patch(Rectangle(at, 1, 1, fill=False, ec=palette.MARK, lw=1.6))
    return image


# The ladder --------------------------------------------------------------------------------------------------


def ladder(bests: Sequence[Best], differences: Sequence[Difference], look: Look) -> Figure | None:
    """Success by rung, a column per width; below, sparse minus dense with its interval."""
    shown = [b for b in bests if look in b.intervals]
    if not shown:
        return None
    rungs, widths = ladder_of(b.key.rung for b in shown), sorted({b.key.latent for b in shown})
    lanes = list(dict.fromkeys((b.key.method, b.key.mup) for b in shown))
    ink, rows = colors(shown), 2 if differences else 1
    mark = {lane: MARKS[i % len(MARKS)] for i, lane in enumerate(lanes)}
    figure = Figure(figsize=(max(3.4, (0.42 * len(rungs) + 0.9) * len(widths) + 0.6), 2.3 * rows + 0.5))
    axes = figure.subplots(rows, len(widths), squeeze=False, sharey="row", sharex=True)
    pairs = list(dict.fromkeys((d.a.key.method, d.a.key.mup) for d in differences))
    for column, width in zip(axes.T, widths, strict=True):
        for b in (b for b in shown if b.key.latent == width):
            lane = (b.key.method, b.key.mup)
            x = rungs.index(b.key.rung) + _spread(lanes.index(lane), len(lanes))
            _point(column[0], x, b.intervals[look], ink(b.key.method), mark[lane], b.honest)
        column[0].set(title=f"D = {width}", ylim=(-3, 103))
        for d in (d for d in differences if d.a.key.latent == width):
            lane = (d.a.key.method, d.a.key.mup)
            x = rungs.index(d.a.key.rung) + _spread(pairs.index(lane), len(pairs))
            _point(column[1], x, d.comparison.difference, ink(d.a.key.method), mark[lane])
        if differences:
            column[1].axhline(0, color=GRAY, lw=0.8)
            column[1].set_ylim(-105, 105)
        column[-1].set_xticks(range(len(rungs)), [title(r) for r in rungs], rotation=40, ha="right")
        column[-1].set_xlim(-0.6, len(rungs) - 0.4)
    axes[0][0].set_ylabel("success (%)")
    if differences:
        axes[1][0].set_ylabel("sparse − dense (points)")
    both = len({mup for _, mup in lanes}) > 1
    for method, mup in lanes:
        label = f"{method}{', μP' if mup else ', plain'}" if both else method
        axes[0][0].plot([], [], mark[method, mup], color=ink(method), label=label, ms=4.5)
    legend(figure)
    return figure


# Open and closed loop, and two rungs against one another ----------------------------------------------------


def _two(looks: Sequence[Look]) -> tuple[Look, Look] | None:
    """One plan executed, and replanning: by the names of the evaluations, or the first two."""
    once = next((k for k in looks if "open" in k.eval), None)
    again = next((k for k in looks if "closed" in k.eval), None)
    if once and again:
        return once, again
    first = {k.eval: k for k in reversed(looks)}
    names = list(dict.fromkeys(k.eval for k in looks))
    return (first[names[0]], first[names[1]]) if len(names) > 1 else None


def loops(bests: Sequence[Best], looks: Sequence[Look]) -> Made | None:
    """From open loop (hollow) to closed loop (filled), a row per rung and method, a column per width."""
    pair = _two(looks)
    shown = [b for b in bests if pair and pair[0] in b.intervals and pair[1] in b.intervals]
    if pair is None or not shown:
        return None
    rungs, widths = ladder_of(b.key.rung for b in shown), sorted({b.key.latent for b in shown})
    methods, ink = list(dict.fromkeys(b.key.method for b in shown)), colors(shown)
    figure = Figure(figsize=(max(3.6, 1.9 * len(widths) + 1.2), 0.26 * len(rungs) * len(methods) + 1.3))
    axes = figure.subplots(1, len(widths), squeeze=False, sharey=True)[0]
    for axis, width in zip(axes, widths, strict=True):
        for b in (b for b in shown if b.key.latent == width):
            y = rungs.index(b.key.rung) + _spread(methods.index(b.key.method), len(methods), 0.24, 0.8)
            a, z = (100 * b.intervals[k].estimate for k in pair)
            axis.plot([a, z], [y, y], color=ink(b.key.method), lw=1.2)
            axis.plot([a], [y], "o", mfc="white", color=ink(b.key.method), ms=5)
            axis.plot([z], [y], "o", color=ink(b.key.method), ms=5)
        axis.set(title=f"D = {width}", xlabel="success (%)", xlim=(-4, 104), ylim=(-0.6, len(rungs) - 0.4))
        axis.set_yticks(range(len(rungs)), [title(r) for r in rungs])
    for m in methods:
        axes[0].plot([], [], "o", color=ink(m), label=m)
    axes[0].plot([], [], "o", mfc="white", color=GRAY, label=f"hollow: {pair[0].eval}; filled: {pair[1].eval}")
    legend(figure, ncols=2)
    return Made("loops", f"{pair[0].title} (hollow) against {pair[1].title} (filled).", figure)


def scatter(bests: Sequence[Best], looks: Sequence[Look]) -> Made | None:
    """The simplest rung against the most expressive one, a point per method and width, a panel per look."""
    rungs = ladder_of(b.key.rung for b in bests)
    if len(rungs) < 2:
        return None
    low, high = rungs[0], rungs[-1]
    partner = {(b.key.method, b.key.latent, b.key.mup): b for b in bests if b.key.rung == high}
    pairs = [
        (a, b)
        for a in bests
        if a.key.rung == low and (b := partner.get((a.key.method, a.key.latent, a.key.mup))) is not None
    ]
    shown = [k for k in looks if any(k in b.intervals for b in bests)]
    if not any(k in a.intervals and k in b.intervals for a, b in pairs for k in shown):
        return None
    widths, ink = sorted({b.key.latent for b in bests}), colors(bests)
    figure = Figure(figsize=(max(3.4, 2.7 * len(shown)), 3.9))
    axes = figure.subplots(1, len(shown), squeeze=False, sharex=True, sharey=True)[0]
    for axis, look in zip(axes, shown, strict=True):
        axis.plot([0, 100], [0, 100], color=GRAY, lw=0.7, ls=":")
        for a, b in ((a, b) for a, b in pairs if look in a.intervals and look in b.intervals):
            y, x, c = a.intervals[look], b.intervals[look], ink(a.key.method)
            axis.plot([100 * x.low, 100 * x.high], [100 * y.estimate] * 2, color=c, lw=0.6, alpha=0.5)
            axis.plot([100 * x.estimate] * 2, [100 * y.low, 100 * y.high], color=c, lw=0.6, alpha=0.5)
            mark = MARKS[widths.index(a.key.latent) % len(MARKS)]
            axis.plot([100 * x.estimate], [100 * y.estimate], mark, color=c, ms=5)
        axis.set(xlim=(-4, 104), ylim=(-4, 104), aspect="equal", title=f"{look.eval}, R = {look.receding}")
        axis.set_xlabel(f"{title(high)} (%)")
    axes[0].set_ylabel(f"{title(low)} (%)")
    for m in dict.fromkeys(b.key.method for b in bests):
        axes[0].plot([], [], "-", color=ink(m), label=m)
    for i, width in enumerate(widths):
        axes[0].plot([], [], MARKS[i % len(MARKS)], color=GRAY, label=f"D = {width}")
    legend(figure)
    return Made("scatter", f"{title(low)} against {title(high)}, a point per method and width, 95 % intervals.", figure)


# Transfer of learning rates ---------------------------------------------------------------------------------


def transfer_figures(moved: Sequence[Transfer]) -> list[Made]:
    """Success against η, a curve per width; the μP panel next to the plain one."""
    made: list[Made] = []
    for world, method in dict.fromkeys((t.world, t.method) for t in moved):
        mine = [t for t in moved if (t.world, t.method) == (world, method)]
        rungs = ladder_of(t.rung for t in mine)
        kinds = [m for m in (True, False) if any(t.mup == m for t in mine)]
        figure = Figure(figsize=(2.9 * len(kinds) + 0.5, 2.1 * len(rungs) + 0.5))
        axes = figure.subplots(len(rungs), len(kinds), squeeze=False, sharey=True, sharex=True)
        widths = sorted({d for t in mine for d in t.curves})
        shades = matplotlib.colormaps[palette.MAP](np.linspace(0.05, 0.85, len(widths)))
        for row, rung in zip(axes, rungs, strict=True):
            row[0].set_ylabel("success (%)")
            for axis, kind in zip(row, kinds, strict=True):
                one = next((t for t in mine if (t.rung, t.mup) == (rung, kind)), None)
                for d, shade in zip(widths, shades, strict=True):
                    if one is not None and d in one.curves:
                        axis.plot(one.rates, [100 * v for v in one.curves[d]], "o-", color=shade, label=f"D = {d}")
                        top = 100 * one.curves[d][one.rates.index(one.best[d])]
                        axis.plot([one.best[d]], [top], "o", mfc="none", mec=shade, ms=9)
                axis.set(xscale="log", ylim=(-4, 104), title=f"{title(rung)}, {'μP' if kind else 'plain'}")
        for axis in axes[-1]:
            axis.set_xlabel("learning rate η")
        legend(figure, ncols=5)
        caption = f"{method} on {world}: success against η, mean over seeds; ringed: the best η of each width."
        made.append(Made(f"transfer-{slug(world)}-{slug(method)}", caption, figure))
    return made
