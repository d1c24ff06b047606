"""The figures of a sweep: heat maps, the ladder, open and closed loop, two rungs scattered, transfer of rates."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lpwm.report import palette
from lpwm.report.drawn import save, style
from lpwm.sweep.analysis import LADDER, Best, Difference, Found, Key, Look, Transfer

TITLES = {
    "deep-adaln": "Deep-AdaLN",
    "shallow-adaln": "Shallow-AdaLN",
    "mlp-ltv": "MLP∘LTV",
    "mlp-lti": "MLP∘LTI",
    "lti": "LTI(k)",
    "lti1": "LTI(1)",
}
GRAY = "#6b6f76"
MARKS = "osD^vP*X"
Made = tuple[str, str, Figure]  # name, caption, figure


def draw(
    found: Found, bests: Sequence[Best], differences: Sequence[Difference], moved: Sequence[Transfer]
) -> list[Made]:
    """Every figure there are data for."""
    made: list[Made] = []
    with style():
        made += heat_maps(found, bests)
        for i, look in enumerate(found.looks):
            for world in dict.fromkeys(b.key.world for b in bests):
                gaps = [d for d in differences if d.look == look and d.a.key.world == world]
                figure = ladder([b for b in bests if b.key.world == world], gaps, look)
                if figure is not None:
                    caption = f"Success by predictor and width, and sparse minus dense. {world}; {look.title}."
                    made.append((f"ladder-{slug(world)}-{i + 1}", caption, figure))
        for make in (loops, scatter):
            for world in dict.fromkeys(b.key.world for b in bests):
                one = make([b for b in bests if b.key.world == world], found.looks)
                if one is not None:
                    name, caption, figure = one
                    made.append((f"{name}-{slug(world)}", f"{caption} {world}.", figure))
        made += transfer_figures(moved)
    return made


def slug(text: str) -> str:
    """For file names: plain letters, digits and single dashes."""
    plain = text.replace("μ=−", "mu-minus").replace("μ", "mu").replace("+", "with ")
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def write(folder: str | Path, made: Sequence[Made], formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Every figure as NAME.png and NAME.pdf; the files written."""
    figures = {name: figure for name, _, figure in made}
    return save(folder, {name: functools.partial(figures.__getitem__, name) for name in figures}, formats)


def colors(methods: Sequence[str]) -> Callable[[str], str]:
    order = list(dict.fromkeys(methods))
    return lambda m: palette.LIGHT[order.index(m) % len(palette.LIGHT)]


# Heat maps ---------------------------------------------------------------------------------------------------


def heat_maps(found: Found, bests: Sequence[Best]) -> list[Made]:
    """λ × η, a panel per width, a row per rung, a figure per method; where at least one of the two varies."""
    made: list[Made] = []
    if not found.looks:
        return made
    look = found.looks[0]
    for world, method, mup in dict.fromkeys((k.world, k.method, k.mup) for k in found.keys):
        points = found.of(world=world, method=method, mup=mup)
        lams, rates = sorted({p.lam for p in points}), sorted({p.lr for p in points})
        if len(lams) < 2 and len(rates) < 2:
            continue
        rungs = [r for r in LADDER if any(p.key.rung == r for p in points)]
        widths = sorted({p.key.latent for p in points})
        figure = Figure(
            figsize=(1.5 + (0.55 * len(rates) + 0.35) * len(widths), 0.9 + (0.36 * len(lams) + 0.55) * len(rungs))
        )
        axes = figure.subplots(len(rungs), len(widths), squeeze=False, sharex=True, sharey=True)
        image: Any = None
        for row, rung in zip(axes, rungs, strict=True):
            for axis, width in zip(row, widths, strict=True):
                key = Key(world, method, rung, width, mup)
                image = _heat(axis, found, key, look, lams, rates, bests)
                axis.set_title(f"{TITLES.get(rung, rung)}, D = {width}", fontsize=7.5)
        for axis in axes[-1]:
            axis.set_xlabel("η")
        for row in axes:
            row[0].set_ylabel("λ")
        figure.colorbar(image, ax=axes, label="success (%)", shrink=0.8)
        kind = "μP" if mup else "plain"
        caption = (
            f"{method} on {world}, {kind} parametrization: success in %, mean over seeds ({look.title}). Boxed: the "
            "cell that the choosing seeds preferred. ×: every seed dead; empty: not run."
        )
        made.append((f"heat-{slug(world)}-{slug(method)}-{slug(kind)}", caption, figure))
    return made


def _heat(
    axis: Any, found: Found, key: Key, look: Look, lams: Sequence[float], rates: Sequence[float], bests: Sequence[Best]
) -> Any:
    values = np.full((len(lams), len(rates)), np.nan)
    for i, lam in enumerate(lams):
        for j, lr in enumerate(rates):
            here = [p for p in found.points if p.key == key and (p.lam, p.lr) == (lam, lr)]
            scores = [p.rate(look) for p in here if not math.isnan(p.rate(look))]
            if scores:
                values[i, j] = 100 * float(np.mean(scores))
                dead = all(p.dead for p in here)
                ink = "white" if values[i, j] < 55 else "black"
                axis.text(j, i, "×" if dead else f"{values[i, j]:.0f}", ha="center", va="center", color=ink, fontsize=7)
    image = axis.imshow(values, vmin=0, vmax=100, cmap=palette.MAP, origin="lower", aspect="auto")
    axis.set_xticks(range(len(rates)), [f"{r:g}" for r in rates], rotation=45)
    axis.set_yticks(range(len(lams)), [f"{v:g}" for v in lams])
    axis.grid(visible=False)
    for b in bests:
        if b.key == key:
            at = (rates.index(b.lr) - 0.5, lams.index(b.lam) - 0.5)
            axis.add_patch(Rectangle(at, 1, 1, fill=False, ec="#b00020", lw=1.6))
    return image


# The ladder --------------------------------------------------------------------------------------------------


def ladder(bests: Sequence[Best], differences: Sequence[Difference], look: Look) -> Figure | None:
    """Success by rung, a column per width; below, sparse minus dense with its interval."""
    shown = [b for b in bests if look in b.intervals]
    if not shown:
        return None
    rungs = [r for r in LADDER if any(b.key.rung == r for b in shown)]
    widths = sorted({b.key.latent for b in shown})
    lanes = list(dict.fromkeys((b.key.method, b.key.mup) for b in shown))
    both = len({mup for _, mup in lanes}) > 1
    ink = colors([m for m, _ in lanes])
    rows = 2 if differences else 1
    figure = Figure(figsize=(max(3.4, (0.42 * len(rungs) + 0.9) * len(widths) + 0.6), 2.3 * rows + 0.5))
    axes = figure.subplots(rows, len(widths), squeeze=False, sharey="row", sharex=True)
    for axis, width in zip(axes[0], widths, strict=True):
        for i, (method, mup) in enumerate(lanes):
            off = (i - (len(lanes) - 1) / 2) * min(0.2, 0.7 / len(lanes))
            for b in shown:
                if (b.key.method, b.key.mup, b.key.latent) == (method, mup, width):
                    interval, x = b.intervals[look], rungs.index(b.key.rung) + off
                    axis.plot([x, x], [100 * interval.low, 100 * interval.high], color=ink(method), lw=1.6)
                    axis.plot(
                        [x],
                        [100 * interval.estimate],
                        MARKS[i % len(MARKS)],
                        color=ink(method),
                        ms=4.5,
                        mfc=ink(method) if b.honest else "white",
                    )
        axis.set_title(f"D = {width}")
        axis.set_ylim(-3, 103)
    for axis, width in zip(axes[1] if differences else (), widths, strict=False):
        axis.axhline(0, color=GRAY, lw=0.8)
        mine = [d for d in differences if d.a.key.latent == width]
        pairs = list(dict.fromkeys((d.a.key.method, d.a.key.mup) for d in differences))
        for d in mine:
            i = pairs.index((d.a.key.method, d.a.key.mup))
            x = rungs.index(d.a.key.rung) + (i - (len(pairs) - 1) / 2) * min(0.2, 0.7 / len(pairs))
            gap = d.comparison.difference
            axis.plot([x, x], [100 * gap.low, 100 * gap.high], color=ink(d.a.key.method), lw=1.6)
            axis.plot(
                [x],
                [100 * gap.estimate],
                MARKS[lanes.index((d.a.key.method, d.a.key.mup)) % len(MARKS)],
                color=ink(d.a.key.method),
                ms=4.5,
            )
        axis.set_ylim(-105, 105)
    for axis in axes[-1]:
        axis.set_xticks(range(len(rungs)), [TITLES.get(r, r) for r in rungs], rotation=40, ha="right")
        axis.set_xlim(-0.6, len(rungs) - 0.4)
    axes[0][0].set_ylabel("success (%)")
    if differences:
        axes[1][0].set_ylabel("sparse − dense (points)")
    for i, (method, mup) in enumerate(lanes):
        label = f"{method}{', μP' if mup else ', plain'}" if both else method
        axes[0][0].plot([], [], MARKS[i % len(MARKS)], color=ink(method), label=label, ms=4.5)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower left", ncols=4)
    return figure


# Open and closed loop, and two rungs against one another ----------------------------------------------------


def _two(looks: Sequence[Look]) -> tuple[Look, Look] | None:
    """One plan executed, and replanning: by the names of the evaluations, or the first two."""
    once = next((k for k in looks if "open" in k.eval), None)
    again = next((k for k in looks if "closed" in k.eval), None)
    if once and again:
        return once, again
    names = list(dict.fromkeys(k.eval for k in looks))
    if len(names) < 2:
        return None
    return next(k for k in looks if k.eval == names[0]), next(k for k in looks if k.eval == names[1])


def loops(bests: Sequence[Best], looks: Sequence[Look]) -> Made | None:
    """From open loop (hollow) to closed loop (filled), a row per rung and method, a column per width."""
    pair = _two(looks)
    if pair is None:
        return None
    shown = [b for b in bests if pair[0] in b.intervals and pair[1] in b.intervals]
    if not shown:
        return None
    rungs = [r for r in LADDER if any(b.key.rung == r for b in shown)]
    widths = sorted({b.key.latent for b in shown})
    methods = list(dict.fromkeys(b.key.method for b in shown))
    ink = colors(methods)
    figure = Figure(figsize=(max(3.6, 1.9 * len(widths) + 1.2), 0.26 * len(rungs) * len(methods) + 1.3))
    axes = figure.subplots(1, len(widths), squeeze=False, sharey=True)[0]
    for axis, width in zip(axes, widths, strict=True):
        for b in shown:
            if b.key.latent != width:
                continue
            step = min(0.24, 0.8 / len(methods))
            y = rungs.index(b.key.rung) + (methods.index(b.key.method) - (len(methods) - 1) / 2) * step
            a, z = (100 * b.intervals[k].estimate for k in pair)
            axis.plot([a, z], [y, y], color=ink(b.key.method), lw=1.2)
            axis.plot([a], [y], "o", mfc="white", color=ink(b.key.method), ms=5)
            axis.plot([z], [y], "o", color=ink(b.key.method), ms=5)
        axis.set(title=f"D = {width}", xlabel="success (%)", xlim=(-4, 104))
        axis.set_ylim(-0.6, len(rungs) - 0.4)
        axis.set_yticks(range(len(rungs)), [TITLES.get(r, r) for r in rungs])
    for m in methods:
        axes[0].plot([], [], "o", color=ink(m), label=m)
    axes[0].plot([], [], "o", mfc="white", color=GRAY, label=f"hollow: {pair[0].eval}; filled: {pair[1].eval}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return "loops", f"{pair[0].title} (hollow) against {pair[1].title} (filled).", figure


def scatter(bests: Sequence[Best], looks: Sequence[Look]) -> Made | None:
    """The simplest rung against the most expressive one, a point per method and width, a panel per way to plan."""
    rungs = [r for r in LADDER if any(b.key.rung == r for b in bests)]
    if len(rungs) < 2:
        return None
    low, high = rungs[0], rungs[-1]
    shown = [k for k in looks if any(k in b.intervals for b in bests)]
    methods = list(dict.fromkeys(b.key.method for b in bests))
    widths = sorted({b.key.latent for b in bests})
    ink = colors(methods)
    figure = Figure(figsize=(max(3.4, 2.7 * len(shown)), 3.9))
    axes = figure.subplots(1, len(shown), squeeze=False, sharex=True, sharey=True)[0]
    drawn = 0
    for axis, look in zip(axes, shown, strict=True):
        axis.plot([0, 100], [0, 100], color=GRAY, lw=0.7, ls=":")
        for a in bests:
            for b in bests:
                if a.key.rung != low or b.key.rung != high or look not in a.intervals or look not in b.intervals:
                    continue
                if (a.key.method, a.key.latent, a.key.mup) != (b.key.method, b.key.latent, b.key.mup):
                    continue
                y, x = a.intervals[look], b.intervals[look]
                c = ink(a.key.method)
                axis.plot([100 * x.low, 100 * x.high], [100 * y.estimate] * 2, color=c, lw=0.6, alpha=0.5)
                axis.plot([100 * x.estimate] * 2, [100 * y.low, 100 * y.high], color=c, lw=0.6, alpha=0.5)
                axis.plot(
                    [100 * x.estimate],
                    [100 * y.estimate],
                    MARKS[widths.index(a.key.latent) % len(MARKS)],
                    color=c,
                    ms=5,
                )
                drawn += 1
        axis.set(xlim=(-4, 104), ylim=(-4, 104), aspect="equal", title=f"{look.eval}, R = {look.receding}")
        axis.set_xlabel(f"{TITLES.get(high, high)} (%)")
    if not drawn:
        return None
    axes[0].set_ylabel(f"{TITLES.get(low, low)} (%)")
    for m in methods:
        axes[0].plot([], [], "-", color=ink(m), label=m)
    for i, width in enumerate(widths):
        axes[0].plot([], [], MARKS[i % len(MARKS)], color=GRAY, label=f"D = {width}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4)
    caption = f"{TITLES.get(low, low)} against {TITLES.get(high, high)}, a point per method and width, 95 % intervals."
    return "scatter", caption, figure


# Transfer of learning rates ---------------------------------------------------------------------------------


def transfer_figures(moved: Sequence[Transfer]) -> list[Made]:
    """Success against η, a curve per width; the μP panel beside the plain one."""
    made: list[Made] = []
    for world, method in dict.fromkeys((t.world, t.method) for t in moved):
        mine = [t for t in moved if (t.world, t.method) == (world, method)]
        rungs = [r for r in LADDER if any(t.rung == r for t in mine)]
        kinds = [m for m in (True, False) if any(t.mup == m for t in mine)]
        figure = Figure(figsize=(2.9 * len(kinds) + 0.5, 2.1 * len(rungs) + 0.5))
        axes = figure.subplots(len(rungs), len(kinds), squeeze=False, sharey=True, sharex=True)
        widths = sorted({d for t in mine for d in t.curves})
        shades = matplotlib.colormaps[palette.MAP](np.linspace(0.05, 0.85, len(widths)))
        for row, rung in zip(axes, rungs, strict=True):
            for axis, kind in zip(row, kinds, strict=True):
                one = next((t for t in mine if (t.rung, t.mup) == (rung, kind)), None)
                for d, shade in zip(widths, shades, strict=True):
                    if one is None or d not in one.curves:
                        continue
                    axis.plot(one.rates, [100 * v for v in one.curves[d]], "o-", color=shade, label=f"D = {d}")
                    top = one.rates.index(one.best[d])
                    axis.plot([one.best[d]], [100 * one.curves[d][top]], "o", mfc="none", mec=shade, ms=9)
                axis.set(xscale="log", ylim=(-4, 104))
                axis.set_title(f"{TITLES.get(rung, rung)}, {'μP' if kind else 'plain'}")
        for row in axes:
            row[0].set_ylabel("success (%)")
        for axis in axes[-1]:
            axis.set_xlabel("learning rate η")
        handles = {name: h for axis in figure.axes for h, name in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=5)
        caption = f"{method} on {world}: success against η, mean over seeds; ringed: the best η of each width."
        made.append((f"transfer-{slug(world)}-{slug(method)}", caption, figure))
    return made
