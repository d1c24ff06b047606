"""The paper's Figure 3: what changes a support along an episode, over weights of the temporal-Jaccard term."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpwm.interpret.contact import FACTORS, Contact, sweep
from lpwm.interpret.results import clipped
from lpwm.report import palette
from lpwm.report.figures.curves import legend
from lpwm.stats import Interval, t_interval

COLOR = {name: palette.LIGHT[2 + k] for k, name in enumerate(FACTORS)}
TITLE = {"effector": "effector motion", "cube": "cube motion", "contact": "gripper contact"}


def by_weight(studies: Sequence[Contact]) -> dict[float, list[Contact]]:
    out: dict[float, list[Contact]] = {}
    for s in sweep(studies):
        out.setdefault(s.tj_weight, []).append(s)
    return out


def pooled(group: Sequence[Contact], factor: str) -> Interval | None:
    """One checkpoint: its interval over episodes. Several: a t interval over checkpoints."""
    each = [s.correlations[factor] for s in group]
    kept = [c for c in each if c is not None]
    if len(kept) < len(each):
        return None
    return kept[0] if len(kept) == 1 else clipped(t_interval([c.estimate for c in kept]), -1.0)


def _shade(axis: Axes, windows: Sequence[Sequence[float]]) -> None:
    for a, b in windows:
        axis.axvspan(a, max(b, a + 0.15), color=palette.SHADE, alpha=0.28, lw=0)


def episode(studies: Sequence[Contact]) -> Figure:
    """One held-out episode a weight: instability with effector and cube motion, contact shaded."""
    groups = [group[0] for group in by_weight(studies).values()]
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
    groups = [group[0] for group in by_weight(studies).values()]
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


def weights(studies: Sequence[Contact]) -> Figure:
    """Correlations against the weight."""
    groups = by_weight(studies)
    figure = Figure(figsize=(5.2, 2.8))
    axis = figure.subplots()
    for k, name in enumerate(FACTORS):
        each = [(i + 0.06 * (k - 1), pooled(group, name)) for i, group in enumerate(groups.values())]
        points = [(x, c.estimate, c.estimate - c.low, c.high - c.estimate) for x, c in each if c]
        if points:
            x, y, *bars = (np.array(column) for column in zip(*points, strict=True))
            axis.errorbar(x, y, np.abs(bars), color=COLOR[name], fmt="o-", capsize=2, lw=1.3, label=TITLE[name])
    axis.axhline(0, color=palette.GRAY, lw=0.8, ls=":")
    axis.set(ylabel="correlation with 1 − J", title="What changes the support", xlabel="temporal-Jaccard weight")
    axis.set_xticks(range(len(groups)), [f"{w:g}" for w in groups])
    axis.set(xlim=(-0.5, len(groups) - 0.5), ylim=(min(-0.2, axis.get_ylim()[0]), 1))
    axis.legend(fontsize=7)
    return figure
