"""The proposition on smooth systems and on the true Piecewise dynamics, as one document and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lpwm.core.version import __version__
from lpwm.report import palette
from lpwm.report.drawn import GRAY, Make, save
from lpwm.theory import SMOOTH, Grid
from lpwm.theory.study import SIZES, StudyConfig, borders, converge, error_map
from lpwm.worlds.piecewise import BORDER, FRAME, RADIUS, Piecewise

KIND = "lpwm theory"
# Where the dot can be after its first step. The border between two zones a side, 112, is its very middle, so an even
# number of cells puts an edge there and an odd number a row of centers.
LOW, HIGH = float(BORDER + RADIUS), float(FRAME - BORDER - RADIUS)
COMPASS = [(np.cos(a), np.sin(a)) for a in np.arange(8) * np.pi / 4]
ACTIONS = np.array([(0.0, 0.0), *COMPASS])
ODD, EVEN = (9, 17, 33, 65, 129, 257, 513), (8, 16, 32, 64, 128, 256, 512)
MAP_CELLS, MAP_POINTS = 33, 165  # five points a cell and side


def theory(sizes: int = 0, config: StudyConfig | None = None) -> dict[str, Any]:
    """Everything `lpwm theory` shows, ready for JSON. `sizes` > 1: only the first so many grids of each study."""
    config = config or StudyConfig()
    kept = slice(None, sizes or None)
    systems = [converge(s, SIZES[s.d][kept], config) for s in SMOOTH.values()]
    cases: tuple[tuple[str, int, tuple[int, ...]], ...] = (
        ("2×2 zones, odd grids", 2, ODD),
        ("2×2 zones, even grids", 2, EVEN),
        ("3×3 zones", 3, EVEN),
    )
    jumps = []
    for name, g, n in cases:
        world = Piecewise(g=g)
        found = borders(name, step_of(world), zone_of(world), (LOW, LOW), (HIGH, HIGH), ACTIONS, n[kept], config=config)
        jumps.append(found | {"g": g, "jump": jump_of(world)})
    world = Piecewise()
    grid = Grid((LOW, LOW), (HIGH, HIGH), MAP_CELLS)
    drawn = error_map(step_of(world), grid, ACTIONS, MAP_POINTS) | {"g": world.g, "bound": 2 * grid.epsilon}
    return {"kind": KIND, "lpwm": __version__, "systems": systems, "piecewise": jumps, "map": drawn}


def step_of(world: Piecewise) -> Any:
    """The world's own step on arrays, in double precision."""

    def f(x_Md: NDArray[np.float64], action: NDArray[np.float64]) -> NDArray[np.float64]:
        return world.step(torch.from_numpy(x_Md), torch.from_numpy(action)).numpy()

    return f


def zone_of(world: Piecewise) -> Any:
    return lambda x_Md: world.zone(torch.from_numpy(np.ascontiguousarray(x_Md))).numpy()


def jump_of(world: Piecewise) -> float:
    """The largest difference between the pushes of two zones."""
    side = (FRAME - 2 * BORDER) / world.g
    at = [BORDER + (k + 0.5) * side for k in range(world.g)]
    push = world.bias(torch.tensor([(x, y) for y in at for x in at])).double()
    return float(torch.cdist(push, push).max())


def lines(found: dict[str, Any]) -> list[str]:
    """The document in sentences and rows, for a terminal."""
    out = ["system         slope × d (worst, mean)   bounds   largest N   worst error / bound"]
    for s in found["systems"]:
        last, d = s["rows"][-1], s["d"]
        holds = "hold" if all(r["holds"] for r in s["rows"]) else "BROKEN"
        out.append(
            f"{s['name']:<14} {d * s['slope_worst']:+7.3f} {d * s['slope_mean']:+7.3f}          {holds:<8} "
            f"{last['cells']:>9,}   {last['worst']:.5f} / {last['bound']:.5f}"
        )
    out += ["", "Piecewise                n   cells cut   states cut, within H steps   worst error in px: whole, cut"]
    for p in found["piecewise"]:
        for r in (p["rows"][0], p["rows"][-1]):
            cut = "–" if r["worst_cut"] is None else f"{r['worst_cut']:.3f}"
            out.append(
                f"{p['name']:<21} {r['n']:>4}   {100 * r['cut_cells']:7.2f} %   {100 * r['cut']:8.2f} %, "
                f"{100 * r['parted']:8.2f} %       {r['worst_whole']:13.3f}, {cut}"
            )
    return out


def check_passed(found: dict[str, Any], tolerance: float = 0.1) -> list[str]:
    """What does not come out as the proposition says, in sentences; [] when all does."""
    out = []
    for s in found["systems"]:
        for what in ("slope_worst", "slope_mean"):
            if abs(s["d"] * s[what] + 1) > tolerance:
                out.append(f"{s['name']}: {what} is {s[what]:.3f}, not within 10 % of −1/{s['d']}.")
        if not all(r["holds"] for r in s["rows"]):
            out.append(f"{s['name']}: an error is above its bound.")
    return out


# Figures ----------------------------------------------------------------------------------------------------


def write(found: dict[str, Any], folder: str | Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """theory-slopes and theory-borders, as PNG and PDF."""
    figures: dict[str, Make] = {"theory-slopes": lambda: slopes(found), "theory-borders": lambda: zone_borders(found)}
    return save(folder, figures, formats)


def slopes(found: dict[str, Any]) -> Figure:
    """Error against N, a panel a system: one step (worst and mean), H steps, bounds, and the slope −1/d."""
    systems = found["systems"]
    figure = Figure(figsize=(2.35 * len(systems), 3.0))
    for axis, s in zip(figure.subplots(1, len(systems), squeeze=False)[0], systems, strict=True):
        N = np.array([r["cells"] for r in s["rows"]])

        def row(what: str, s: dict[str, Any] = s) -> list[float]:
            return [r[what] for r in s["rows"]]

        H = s["horizon"]
        axis.plot(N, row("bound"), color=palette.LIGHT[0], ls="--", lw=1, label="bound, 1 step")
        axis.plot(N, row("worst"), "o-", color=palette.LIGHT[0], label="worst, 1 step")
        axis.plot(N, row("mean"), "s-", color=palette.LIGHT[1], label="mean, 1 step")
        axis.plot(N, row("far_bound"), color=palette.LIGHT[2], ls="--", lw=1, label=f"bound, {H} steps")
        axis.plot(N, row("far_mean"), "^-", color=palette.LIGHT[2], label=f"mean, {H} steps")
        guide = row("mean")[0] * 0.45 * (N / N[0]) ** (-1 / s["d"])
        axis.plot(N, guide, color=GRAY, lw=1, ls=":", label="slope −1/d")
        axis.set(xscale="log", yscale="log", xlabel="cells N")
        axis.set_title(f"{s['name']}, L = {s['lipschitz']:g}")
        text = f"slope {s['slope_worst']:.3f} (worst)\n{s['slope_mean']:.3f} (mean)".replace("-", "−")
        axis.text(0.98, 0.97, text, transform=axis.transAxes, ha="right", va="top", fontsize=7.5, color=GRAY)
        axis.set_ylim(top=axis.get_ylim()[1] * 4)  # room for the text
    figure.axes[0].set_ylabel("decoded error")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=6)
    return figure


def zone_borders(found: dict[str, Any]) -> Figure:
    """The error map, the worst error of whole and of cut states, and the share of states beyond the bound."""
    figure = Figure(figsize=(9.6, 3.1))
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    _map(figure, left, found["map"])
    for k, p in enumerate(found["piecewise"]):
        N, color = np.array([r["cells"] for r in p["rows"]]), palette.LIGHT[k]
        middle.plot(N, [r["worst_whole"] for r in p["rows"]], "o-", color=color, lw=1.2)
        if p["rows"][0]["worst_cut"] is not None:
            middle.plot(N, [r["worst_cut"] for r in p["rows"]], "s--", color=color, lw=1.2)
        share = [100 * r["cut"] for r in p["rows"]]
        if max(share) > 0:
            right.plot(N, share, "s--", color=color, lw=1.2)
        right.plot(N, [100 * r["parted"] for r in p["rows"]], "^:", color=color, lw=1.2, label=p["name"])
    first = found["piecewise"][0]
    N = np.array([r["cells"] for r in first["rows"]])
    middle.plot(N, [r["bound"] for r in first["rows"]], color=GRAY, lw=1, label="bound (L + 1)ε")
    middle.axhline(first["jump"], color=GRAY, lw=1, ls=":", label="largest jump between zones, 2×2")
    middle.plot([], [], "o-", color="#333333", label="center in the same zone")
    middle.plot([], [], "s--", color="#333333", label="center in another zone")
    middle.set(xscale="log", yscale="log", xlabel="cells N", title="Worst one-step error (px)")
    middle.set_ylim(bottom=0.05)
    middle.legend(fontsize=6.8, loc="lower left")
    right.plot([], [], "s--", color="#333333", label="at the first step")
    right.plot([], [], "^:", color="#333333", label=f"within {first['horizon']} steps")
    right.set(xscale="log", yscale="log", xlabel="cells N", title="Codes in another zone (% of states)")
    right.set_ylim(bottom=0.01)
    right.legend(fontsize=6.8, loc="lower left")
    return figure


def _map(figure: Figure, axis: Axes, found: dict[str, Any]) -> None:
    (x0, y0), (x1, y1) = found["low"], found["high"]
    image = axis.imshow(np.array(found["error"]), extent=(x0, x1, y1, y0), vmin=0)
    edges = [BORDER + (FRAME - 2 * BORDER) * k / found["g"] for k in range(1, found["g"])]
    axis.set_xticks(edges, ["zone border"] * len(edges))  # a line across would hide what happens there
    axis.set_yticks(edges, [""] * len(edges))
    axis.tick_params(length=5, width=1.2, top=True, right=True)
    axis.set_title(f"One-step error, {found['n']}² cells (px)")
    axis.set_xlabel(f"bound {found['bound']:.1f} px (white in the scale)")
    axis.grid(visible=False)
    bar = figure.colorbar(image, ax=axis, shrink=0.85)
    bar.ax.axhline(found["bound"], color="white", lw=1.5)
