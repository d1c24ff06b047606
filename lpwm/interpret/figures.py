"""Static figures of studies, as PNG and PDF, from their JSON alone: nothing is computed again but the maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from lpwm.core.files import disk_errors, make_folder
from lpwm.interpret.compare import Study
from lpwm.interpret.supports import Floats, check_cell, jaccard, unpack

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "image.interpolation": "nearest",
    "svg.hashsalt": "lpwm",
}
# Okabe and Ito's colors, which color-blind readers can tell apart.
SPARSE, DENSE, INK = "#0072B2", "#D55E00", "#333333"
OUTLINE = [withStroke(linewidth=2.6, foreground="#00000088")]  # white on yellow too
ZONES = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999", "#444444")


def jaccard_map(study: Study, row: int, col: int) -> Floats:
    """The map of any reference cell from the supports packed in a study: (n, n)."""
    active = unpack(study["grid"]["supports"])
    check_cell(row, col, len(active))
    n, _, units = active.shape
    return jaccard(active[row, col][None], active.reshape(-1, units))[0].reshape(n, n)


def title_of(study: Study) -> str:
    run = study["run"]
    kind = "sparse" if run["sparse"] else "dense, sign pattern"
    return f"{run['name'].removesuffix('-' + run['hash'])}, seed {run['seed']} ({kind})"


def maps(studies: Sequence[Study], cells: Sequence[tuple[int, int]] = ()) -> Figure:
    """A row of Jaccard maps for each run, one for each reference cell."""
    chosen = list(cells) or [(r["row"], r["col"]) for r in studies[0]["grid"]["references"]][:4]
    fig = Figure(figsize=(2.1 * len(chosen) + 0.9, 2.5 * len(studies)), layout="constrained")
    parts = fig.subfigures(len(studies), 1, squeeze=False)[:, 0]
    for part, study in zip(parts, studies, strict=True):
        axes = part.subplots(1, len(chosen), squeeze=False)[0]
        zones = np.array(study["grid"]["zones"])
        for ax, (row, col) in zip(axes, chosen, strict=True):
            image = ax.imshow(jaccard_map(study, row, col), vmin=0, vmax=1, cmap="viridis")
            _borders(ax, zones)
            ax.plot(col, row, "+", color="white", ms=9, mew=2, path_effects=OUTLINE)
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"row {row}, column {col}")
            ax.spines[:].set_visible(False)
        value = study["sharpness"]["sharpness"]["estimate"]
        matched = study["sharpness"]["matched"]
        text = f"{title_of(study)}\nsharpness {value:.2f}, at equal displacement {matched:.2f}"
        part.suptitle(text, x=0.01, ha="left", fontsize=9)
        part.colorbar(image, ax=list(axes), shrink=0.9, label="Jaccard index with +")
    return fig


def _borders(ax: Axes, zones_nn: Any) -> None:
    """Dashed lines where neighboring cells lie in different zones."""
    for row, col in zip(*np.nonzero(np.diff(zones_nn, axis=0)), strict=True):
        ax.plot([col - 0.5, col + 0.5], [row + 0.5] * 2, "--", color="white", lw=1, path_effects=OUTLINE)
    for row, col in zip(*np.nonzero(np.diff(zones_nn, axis=1)), strict=True):
        ax.plot([col + 0.5] * 2, [row - 0.5, row + 0.5], "--", color="white", lw=1, path_effects=OUTLINE)


def probes(studies: Sequence[Study]) -> Figure:
    """Zone accuracy and position R² from each part of the code, beside the controls."""
    fig = Figure(figsize=(8.2, 3.2), layout="constrained")
    left, right = fig.subplots(1, 2, width_ratios=(3, 4))
    zone = ("code", "support", "magnitudes")
    _dots(left, studies, [(name, ("zone", name)) for name in zone])
    first = studies[0]["probes"]
    left.axhline(first["zone"]["position"]["estimate"], color=INK, lw=0.8, ls="--", label="from the true position")
    left.axhline(first["majority"], color=INK, lw=0.8, ls=":", label="commonest zone")
    left.set(title="zone accuracy", ylim=(0, 1.03))
    rows = [(name, ("position", name)) for name in zone]
    _dots(right, studies, [*rows, ("magnitudes, of\nwhat support\nleaves open", ("position_given_support",))])
    right.axhline(0, color=INK, lw=0.8, ls=":")
    low = min(-0.05, right.get_ylim()[0])
    right.set(title="position R²", ylim=(max(low, -1), 1.03))
    handles = {h.get_label(): h for ax in (left, right) for h in ax.get_legend_handles_labels()[0]}
    fig.legend(handles=list(handles.values()), loc="outside lower center", ncols=2, fontsize=8)
    return fig


def _dots(ax: Axes, studies: Sequence[Study], rows: list[tuple[str, tuple[str, ...]]]) -> None:
    step = 0.6 / max(len(studies), 1)
    shades = {True: 0, False: 0}
    for k, study in enumerate(studies):
        sparse = study["run"]["sparse"]
        marker = "osD^v"[shades[sparse] % 5]
        shades[sparse] += 1
        at = np.arange(len(rows)) + (k - (len(studies) - 1) / 2) * step
        found = [_follow(study["probes"], path) for _, path in rows]
        value = np.array([f["estimate"] for f in found])
        spread = np.abs(np.array([[f["low"], f["high"]] for f in found]).T - value)
        color = SPARSE if sparse else DENSE
        ax.errorbar(at, value, spread, fmt=marker, ms=5, color=color, capsize=2, label=title_of(study))
        control = [f["shuffled"]["estimate"] for f in found]
        label = "labels shuffled by trajectory" if k == 0 else None
        ax.plot(at, control, "x", ms=5, color="#888888", label=label)
    ax.set_xticks(range(len(rows)), [name for name, _ in rows])
    ax.set_xlim(-0.6, len(rows) - 0.4)


def _follow(found: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path:
        found = found[key]
    return found


def raster(study: Study) -> Figure:
    """Which units are on along one episode, the zone above, the change of the support below."""
    found = study["raster"]
    order = np.array(study["supports"]["unit_order"])
    active = unpack(found["supports"])[:, order]
    fig = Figure(figsize=(7, 4.2), layout="constrained")
    top, middle, bottom = fig.subplots(3, 1, sharex=True, height_ratios=(0.35, 4, 1.1))
    T, zones = len(active), np.array(found["zones"])
    edge = (-0.5, T - 0.5)
    count = int(np.max(study["grid"]["zones"])) + 1
    cmap = ListedColormap([ZONES[k % len(ZONES)] for k in range(count)])
    top.imshow(zones[None], aspect="auto", cmap=cmap, vmin=-0.5, vmax=count - 0.5, extent=(*edge, 0, 1))
    for part in np.split(np.arange(T), np.flatnonzero(np.diff(zones)) + 1):
        if len(part) > T / 40:  # room for a number
            top.text(part.mean(), 0.45, str(zones[part[0]]), ha="center", va="center", fontsize=8)
    top.set(yticks=[], ylabel="zone")
    top.spines[:].set_visible(False)
    top.set_title(f"{title_of(study)}: held-out episode {found['episode']}", loc="left")
    middle.imshow(active.T, aspect="auto", cmap="Grays", extent=(*edge, active.shape[1], 0))
    middle.set_ylabel("unit, by preferred zone")
    bottom.step(np.arange(1, T), found["instability"], where="mid", color=SPARSE if study["run"]["sparse"] else DENSE)
    bottom.set(xlabel="raw step", ylabel="1 − J(t−1, t)", xlim=edge, ylim=(0, None))
    for ax in (middle, bottom):
        for change in np.flatnonzero(np.diff(zones)):
            ax.axvline(change + 0.5, color=DENSE if ax is middle else "#BBBBBB", lw=0.6, ls="--")
    return fig


def draw(studies: Sequence[Study], folder: str | Path, cells: Sequence[tuple[int, int]] = ()) -> list[Path]:
    """Writes jaccard, probes and one raster a run, each as PNG and PDF."""
    folder, written = Path(folder), []
    make_folder(folder)
    with matplotlib.rc_context(STYLE):
        figures = {"jaccard": maps(studies, cells), "probes": probes(studies)}
        figures |= {f"raster-{s['run']['name']}": raster(s) for s in studies}
        for name, fig in figures.items():
            for kind in ("png", "pdf"):
                path = folder / f"{name}.{kind}"
                with disk_errors(path):
                    fig.savefig(path, metadata={"CreationDate": None} if kind == "pdf" else None)
                written.append(path)
    return written
