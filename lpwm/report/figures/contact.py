"""The paper's Figure 3: what changes a support along an episode, over weights of the temporal-Jaccard term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpwm.evaluate.results import Evaluation, Rate
from lpwm.interpret.contact import FACTORS, sweep
from lpwm.interpret.results import Contact, clipped
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


@dataclass(frozen=True)
class Planned:
    """Terminal success at the largest budget."""

    name: str
    weight: float | None  # None: a control
    value: Rate
    budget: int


def planning(evaluations: Sequence[Evaluation], studies: Sequence[Contact]) -> dict[str, list[Planned]]:
    """Success for each weight, by the title of the cell, from the newest evaluation that has a run of these."""
    weight = {s.run.hash: s.tj_weight for s in studies}
    for evaluation in reversed(evaluations):
        named = {r.method or r.name: weight[r.run_hash] for r in evaluation.runs if r.run_hash in weight}
        if not named:
            continue
        out: dict[str, list[Planned]] = {}
        for cell in evaluation.cells:
            title, budget = f"{cell.goals} goals, H = {cell.horizon}, R = {cell.receding}", cell.budgets[-1]
            for row in cell.rows:
                if row.control or row.name in named:
                    planned = Planned(row.name, named.get(row.name), row.at(budget).terminal, budget)
                    out.setdefault(title, []).append(planned)
        return out
    return {}


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


def weights(studies: Sequence[Contact], success: Mapping[str, Sequence[Planned]] | None = None) -> Figure:
    """Correlations against the weight, and planning success below where it was measured."""
    groups = by_weight(studies)
    at = {w: i for i, w in enumerate(groups)}
    rows = 2 if success else 1
    figure = Figure(figsize=(5.2, 2.5 * rows + 0.3))
    axes = figure.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]
    for k, name in enumerate(FACTORS):
        each = [(at[w] + 0.06 * (k - 1), pooled(g, name)) for w, g in groups.items()]
        _line(axes[0], [(x, c.estimate, c.low, c.high) for x, c in each if c], COLOR[name], TITLE[name])
    axes[0].axhline(0, color=palette.GRAY, lw=0.8, ls=":")
    axes[0].set(ylabel="correlation with 1 − J", title="What changes the support")
    axes[0].set_ylim(min(-0.2, axes[0].get_ylim()[0]), 1)
    axes[0].legend(fontsize=7)
    if success:
        for k, (title, planned) in enumerate(success.items()):
            shift = 0.06 * (k - (len(success) - 1) / 2)
            points = [
                (at[p.weight] + shift, 100 * p.value.rate, 100 * p.value.low, 100 * p.value.high)
                for p in planned
                if p.weight is not None
            ]
            _line(axes[1], sorted(points), palette.LIGHT[(5 + k) % len(palette.LIGHT)], title)
        first = next(iter(success.values()))
        _controls(axes[1], [p for p in first if p.weight is None])
        axes[1].set(ylabel=f"terminal success at {first[0].budget} steps (%)", ylim=(-2, 104), title="Planning")
        axes[1].legend(fontsize=7)
    axes[-1].set_xticks(range(len(at)), [f"{w:g}" for w in at])
    axes[-1].set(xlabel="temporal-Jaccard weight", xlim=(-0.5, len(at) - 0.5))
    return figure


def _controls(axis: Axes, controls: Sequence[Planned]) -> None:
    """A dotted line each, named in the margin; names keep their distance, for controls are often equally bad."""
    at = -99.0
    for c in sorted(controls, key=lambda c: c.value.rate):
        rate = 100 * c.value.rate
        at = max(rate, at + 5.5)
        axis.axhline(rate, color=palette.GRAY, lw=0.8, ls=":")
        axis.text(1.01, at, c.name, transform=axis.get_yaxis_transform(), fontsize=6.5, color=palette.GRAY, va="center")


def _line(axis: Axes, points: Sequence[tuple[float, ...]], color: str, name: str) -> None:
    if points:
        x, y, low, high = (np.array(c) for c in zip(*points, strict=True))
        axis.errorbar(x, y, np.abs(np.stack((y - low, high - y))), color=color, fmt="o-", capsize=2, lw=1.3, label=name)
