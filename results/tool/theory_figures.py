"""The proposition: error against the number of cells, and Piecewise at its zone borders."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpwm.report.figures.curves import legend
from lpwm.report.palette import GRAY, LIGHT
from lpwm.theory.study import Convergence
from lpwm.worlds.piecewise import BORDER, FRAME

from .theory import PiecewiseBorders, PiecewiseMap, TheoryStudy


def slopes(systems: Sequence[Convergence]) -> Figure:
    """Error against N, a panel a system: one step (worst and mean), H steps, bounds, and the slope −1/d."""
    figure = Figure(figsize=(2.35 * len(systems), 3.0))
    for axis, s in zip(figure.subplots(1, len(systems), squeeze=False)[0], systems, strict=True):
        N, H = np.array([r.cells for r in s.rows]), s.horizon
        axis.plot(N, [r.bound for r in s.rows], color=LIGHT[0], ls="--", lw=1, label="bound, 1 step")
        axis.plot(N, [r.worst for r in s.rows], "o-", color=LIGHT[0], label="worst, 1 step")
        axis.plot(N, [r.mean for r in s.rows], "s-", color=LIGHT[1], label="mean, 1 step")
        axis.plot(N, [r.far_bound for r in s.rows], color=LIGHT[2], ls="--", lw=1, label=f"bound, {H} steps")
        axis.plot(N, [r.far_mean for r in s.rows], "^-", color=LIGHT[2], label=f"mean, {H} steps")
        guide = s.rows[0].mean * 0.45 * (N / N[0]) ** (-1 / s.d)
        axis.plot(N, guide, color=GRAY, lw=1, ls=":", label="slope −1/d")
        axis.set(xscale="log", yscale="log", xlabel="cells N", title=f"{s.name}, L = {s.lipschitz:g}")
        text = f"slope {s.slope_worst:.3f} (worst)\n{s.slope_mean:.3f} (mean)".replace("-", "−")
        axis.text(0.98, 0.97, text, transform=axis.transAxes, ha="right", va="top", fontsize=7.5, color=GRAY)
        axis.set_ylim(top=axis.get_ylim()[1] * 4)  # room for the text
    figure.axes[0].set_ylabel("decoded error")
    legend(figure, loc="outside lower center", ncols=6)
    return figure


def borders(cases: Sequence[PiecewiseBorders], drawn: PiecewiseMap) -> Figure:
    """The error map, the worst error of whole and of cut states, and the share of states beyond the bound."""
    figure = Figure(figsize=(9.6, 3.1))
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    _map(figure, left, drawn)
    for color, p in zip(LIGHT, cases, strict=False):
        N = [r.cells for r in p.rows]
        middle.plot(N, [r.worst_whole for r in p.rows], "o-", color=color, lw=1.2)
        cut = [(r.cells, r.worst_cut) for r in p.rows if r.worst_cut is not None]
        if cut:
            middle.plot(*zip(*cut, strict=True), "s--", color=color, lw=1.2)
            right.plot(N, [100 * r.cut for r in p.rows], "s--", color=color, lw=1.2)
        right.plot(N, [100 * r.parted for r in p.rows], "^:", color=color, lw=1.2, label=p.name)
    first = cases[0]
    bound = [(r.cells, r.bound) for r in first.rows]
    middle.plot(*zip(*bound, strict=True), color=GRAY, lw=1, label="bound (L + 1)ε")
    middle.axhline(first.jump, color=GRAY, lw=1, ls=":", label="largest jump between zones, 2×2")
    middle.plot([], [], "o-", color="#333333", label="center in the same zone")
    middle.plot([], [], "s--", color="#333333", label="center in another zone")
    middle.set(title="Worst one-step error (px)")
    right.plot([], [], "s--", color="#333333", label="at the first step")
    right.plot([], [], "^:", color="#333333", label=f"within {first.horizon} steps")
    right.set(title="Codes in another zone (% of states)")
    for axis, bottom in ((middle, 0.05), (right, 0.01)):
        axis.set(xscale="log", yscale="log", xlabel="cells N")
        axis.set_ylim(bottom=bottom)
        axis.legend(fontsize=6.8, loc="lower left")
    return figure


def _map(figure: Figure, axis: Axes, drawn: PiecewiseMap) -> None:
    (x0, y0), (x1, y1) = drawn.low, drawn.high
    image = axis.imshow(np.array(drawn.error), extent=(x0, x1, y1, y0), vmin=0)
    edges = [BORDER + (FRAME - 2 * BORDER) * k / drawn.g for k in range(1, drawn.g)]
    axis.set_xticks(edges, ["zone border"] * len(edges))  # a line across would hide what happens there
    axis.set_yticks(edges, [""] * len(edges))
    axis.tick_params(length=5, width=1.2, top=True, right=True)
    axis.set_title(f"One-step error, {drawn.n}² cells (px)")
    axis.set_xlabel(f"bound {drawn.bound:.1f} px (white in the scale)")
    axis.grid(visible=False)
    bar = figure.colorbar(image, ax=axis, shrink=0.85)
    bar.ax.axhline(drawn.bound, color="white", lw=1.5)


def figures(study: TheoryStudy) -> dict[str, Callable[[], Figure]]:
    of_borders = partial(borders, study.piecewise, study.map)
    return {"theory-slopes": partial(slopes, study.systems), "theory-borders": of_borders}
