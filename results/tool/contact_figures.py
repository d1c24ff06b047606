"""The paper's Figure 3: what changes a support along an episode, over weights of the temporal-Jaccard term."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpwm.report import palette
from lpwm.report.figures.curves import legend

from .contact import FACTORS, Contact, sweep

COLOR = {name: palette.LIGHT[2 + k] for k, name in enumerate(FACTORS)}
TITLE = {"effector": "effector motion", "cube": "cube motion", "contact": "gripper contact"}


def figures(studies: Sequence[Contact]) -> dict[str, Callable[[], Figure]]:
    return {"contact-episode": partial(episode, studies), "contact-raster": partial(raster, studies)}


def _first_of_each(studies: Sequence[Contact]) -> list[Contact]:
    """A study of each weight."""
    return list({s.tj_weight: s for s in reversed(sweep(studies))}.values())[::-1]


def _shade(axis: Axes, windows: Sequence[Sequence[float]]) -> None:
    for a, b in windows:
        axis.axvspan(a, max(b, a + 0.15), color=palette.SHADE, alpha=0.28, lw=0)


def episode(studies: Sequence[Contact]) -> Figure:
    """One held-out episode a weight: instability with effector and cube motion, contact shaded."""
    groups = _first_of_each(studies)
    figure = Figure(figsize=(7.2, 1.9 * len(groups) + 0.5))
    for axis, s in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        shown = s.example
        at = np.arange(len(shown.instability)) + 0.5
        _shade(axis, shown.windows)
        axis.plot(at, shown.instability, color=palette.INK, lw=1.6, label="1 − J of the support")
        for name, values in (("effector", shown.effector), ("cube", shown.cube)):
            scaled = np.array(values) / max(*values, 1e-12)
            axis.plot(at, scaled, color=COLOR[name], lw=1.1, label=f"{TITLE[name]}, largest = 1")
        axis.fill_between([], [], color=palette.SHADE, alpha=0.28, label=TITLE[FACTORS[2]])
        r = ", ".join(
            f"r {n} {v:+.2f}" if v is not None else f"{n} never varies" for n, v in shown.correlations.items()
        ).replace("-", "−")
        axis.set_title(f"temporal-Jaccard weight {s.tj_weight:g}, episode {shown.episode}: {r}", fontsize=8)
        axis.set(ylim=(0, 1.05), xlim=(0, len(at)))
    figure.axes[-1].set_xlabel(f"action block of {groups[0].example.frameskip} raw steps")
    legend(figure, loc="outside lower center")
    return figure


def raster(studies: Sequence[Contact]) -> Figure:
    """The supports of the same episodes, units that prefer contact on top, contact windows shaded."""
    groups = _first_of_each(studies)
    figure = Figure(figsize=(7.2, 2.1 * len(groups) + 0.3))
    for axis, s in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        shown = s.example
        active = shown.supports.unpack()[:, list(shown.unit_order)]
        T, D = active.shape
        ink = np.where(active.T[..., None], (0.11, 0.12, 0.13, 0.85), (0.0, 0.0, 0.0, 0.0))
        _shade(axis, shown.windows)
        axis.imshow(ink, aspect="auto", extent=(-0.5, T - 0.5, D, 0), interpolation="nearest", zorder=2)
        axis.set(ylabel=f"{D} units", yticks=[], xlim=(-0.5, T - 0.5))
        axis.set_title(f"temporal-Jaccard weight {s.tj_weight:g}, episode {shown.episode}", fontsize=8)
        axis.grid(visible=False)
    figure.axes[-1].set_xlabel("frame, one action block apart; shaded: gripper contact")
    return figure
