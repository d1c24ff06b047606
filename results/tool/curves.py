"""Training curves among the results: of runs whose weights are not kept, by `results/pack_curves.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from lpwm.report import palette
from lpwm.report.drawn import GRAY

SHOWN = {
    "relative_error": "relative error",
    "copy_error": "… of copying the last frame",
    "effective_dimension": "effective dimension",
    "active_fraction": "active fraction",
}


def figure(document: Mapping[str, Any]) -> Figure:
    """A panel for each monitor, a line for each run, a color for each recipe (and λ, η where a recipe has several)."""
    runs = document["runs"]
    cells = {(r["recipe"], r["lam"], r["lr"]): r["recipe"] for r in runs}
    names = list(cells.values())
    labels = {c: n if names.count(n) == 1 else f"{n}, λ={c[1]:g}, η={c[2]:g}" for c, n in cells.items()}
    fig = Figure(figsize=(3.2 * len(SHOWN), 2.9), layout="constrained")
    axes = fig.subplots(1, len(SHOWN))
    for axis, (key, title) in zip(axes, SHOWN.items(), strict=True):
        for cell, color in zip(labels, palette.LIGHT * len(labels), strict=False):
            for i, run in enumerate(r for r in runs if (r["recipe"], r["lam"], r["lr"]) == cell):
                label = labels[cell] if i == 0 else None
                axis.plot(run["curves"]["step"], run["curves"][key], color=color, lw=1, label=label)
        axis.set_title(title)
        axis.set_xlabel("step", color=GRAY)
        if key.endswith("_error"):
            axis.set_yscale("log")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(labels)))
    return fig
