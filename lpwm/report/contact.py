"""The paper's Figure 3: what changes a support along an episode, over weights of the temporal-Jaccard term."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpwm.interpret.contact import FACTORS, sweep
from lpwm.interpret.supports import unpack
from lpwm.report import palette
from lpwm.report.drawn import GRAY, Make, picture, save
from lpwm.report.markup import table
from lpwm.report.tables import fixed
from lpwm.stats import t_interval

Study = Mapping[str, Any]
COLOR = {name: palette.LIGHT[k] for k, name in enumerate(FACTORS)}
TITLE = {"effector": "effector motion", "cube": "cube motion", "contact": "gripper contact"}
SHADE = "#E9B44C"


def by_weight(studies: Sequence[Study]) -> dict[float, list[Study]]:
    out: dict[float, list[Study]] = {}
    for s in sweep([dict(s) for s in studies]):
        out.setdefault(s["tj_weight"], []).append(s)
    return out


def pooled(group: Sequence[Study], factor: str) -> dict[str, Any] | None:
    """One checkpoint: its interval over episodes. Several: a t interval over checkpoints."""
    found = [s["correlations"][factor] for s in group]
    if any(f is None for f in found):
        return None
    return found[0] if len(found) == 1 else dataclasses.asdict(t_interval([f["estimate"] for f in found]))


def planning(evaluations: Sequence[Mapping[str, Any]], studies: Sequence[Study]) -> dict[str, list[dict[str, Any]]]:
    """Success beside each weight: {cell title: [{name, weight, rate, low, high}]}; controls have no weight.

    From the newest evaluation that has a run of these; terminal success at its largest budget.
    """
    weight = {s["run"]["hash"]: s["tj_weight"] for s in studies}
    for evaluation in reversed(evaluations):
        named = {r["method"] or r["name"]: weight[r["run_hash"]] for r in evaluation["runs"] if r["run_hash"] in weight}
        if not named:
            continue
        out: dict[str, list[dict[str, Any]]] = {}
        for cell in evaluation["cells"]:
            title = f"{cell['goals']} goals, H = {cell['horizon']}, R = {cell['receding']}"
            for row in cell["rows"]:
                if row["control"] or row["name"] in named:
                    last = max(row["budgets"], key=int)
                    value = row["budgets"][last]["terminal"]
                    out.setdefault(title, []).append(
                        {"name": row["name"], "weight": named.get(row["name"]), **value, "budget": int(last)}
                    )
        return out
    return {}


# Figures ----------------------------------------------------------------------------------------------------


def shade(axis: Axes, windows: Sequence[Sequence[float]]) -> None:
    for a, b in windows:
        axis.axvspan(a, max(b, a + 0.15), color=SHADE, alpha=0.28, lw=0)


def episode(studies: Sequence[Study]) -> Figure:
    """One held-out episode a weight: instability with effector and cube motion, contact shaded."""
    groups = [group[0] for group in by_weight(studies).values()]
    fig = Figure(figsize=(7.2, 1.9 * len(groups) + 0.5))
    for axis, s in zip(fig.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        shown = s["example"]
        at = np.arange(len(shown["instability"])) + 0.5
        shade(axis, shown["windows"])
        axis.plot(at, shown["instability"], color="#1c1e22", lw=1.6, label="1 − J of the support")
        for name in ("effector", "cube"):
            values = np.array(shown[name])
            top = max(values.max(), 1e-12)
            axis.plot(at, values / top, color=COLOR[name], lw=1.1, label=f"{TITLE[name]}, largest = 1")
        axis.fill_between([], [], color=SHADE, alpha=0.28, label=TITLE["contact"])
        r = ", ".join(
            f"r {n} {v:+.2f}" if v is not None else f"{n} never varies" for n, v in shown["correlations"].items()
        ).replace("-", "−")
        axis.set_title(f"temporal-Jaccard weight {s['tj_weight']:g}, episode {shown['episode']}: {r}", fontsize=8)
        axis.set(ylim=(0, 1.05), xlim=(0, len(at)))
    fig.axes[-1].set_xlabel(f"action block of {groups[0]['example']['frameskip']} raw steps")
    handles, names = fig.axes[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=4)
    return fig


def raster(studies: Sequence[Study]) -> Figure:
    """The supports of the same episodes, units that prefer contact on top, contact windows shaded."""
    groups = [group[0] for group in by_weight(studies).values()]
    fig = Figure(figsize=(7.2, 2.1 * len(groups) + 0.3))
    for axis, s in zip(fig.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        shown = s["example"]
        active = unpack(shown["supports"])[:, shown["unit_order"]]
        T, D = active.shape
        ink = np.where(active.T[..., None], (0.11, 0.12, 0.13, 0.85), (0.0, 0.0, 0.0, 0.0))
        shade(axis, shown["windows"])
        axis.imshow(ink, aspect="auto", extent=(-0.5, T - 0.5, D, 0), interpolation="nearest", zorder=2)
        axis.set(ylabel=f"{D} units", yticks=[], xlim=(-0.5, T - 0.5))
        axis.set_title(f"temporal-Jaccard weight {s['tj_weight']:g}, episode {shown['episode']}", fontsize=8)
        axis.grid(visible=False)
    fig.axes[-1].set_xlabel("frame, one action block apart; shaded: gripper contact")
    return fig


def weights(studies: Sequence[Study], success: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Figure:
    """Correlations against the weight, and planning success below where it was measured."""
    groups = by_weight(studies)
    at = {w: i for i, w in enumerate(groups)}
    rows = 2 if success else 1
    fig = Figure(figsize=(5.2, 2.5 * rows + 0.3))
    axes = fig.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]
    for k, name in enumerate(FACTORS):
        points = [(at[w] + 0.06 * (k - 1), pooled(g, name)) for w, g in groups.items()]
        _line(axes[0], [(x, f["estimate"], f["low"], f["high"]) for x, f in points if f], COLOR[name], TITLE[name])
    axes[0].axhline(0, color=GRAY, lw=0.8, ls=":")
    axes[0].set(ylabel="correlation with 1 − J", title="What changes the support")
    axes[0].set_ylim(min(-0.2, axes[0].get_ylim()[0]), 1)
    axes[0].legend(fontsize=7)
    if success:
        for k, (title, found) in enumerate(success.items()):
            rates = [
                (at[f["weight"]] + 0.06 * (k - (len(success) - 1) / 2), *(100 * f[n] for n in ("rate", "low", "high")))
                for f in found
                if f["weight"] is not None
            ]
            _line(axes[1], sorted(rates), palette.LIGHT[(3 + k) % len(palette.LIGHT)], title)
        _controls(axes[1], [f for f in next(iter(success.values())) if f["weight"] is None])
        budget = next(iter(success.values()))[0]["budget"]
        axes[1].set(ylabel=f"terminal success at {budget} steps (%)", ylim=(-2, 104), title="Planning")
        axes[1].legend(fontsize=7)
    axes[-1].set_xticks(range(len(at)), [f"{w:g}" for w in at])
    axes[-1].set(xlabel="temporal-Jaccard weight", xlim=(-0.5, len(at) - 0.5))
    return fig


def _controls(axis: Axes, found: Sequence[Mapping[str, Any]]) -> None:
    """A dotted line each, named in the margin; names keep their distance, for controls are often equally bad."""
    at = -99.0
    for f in sorted(found, key=lambda f: f["rate"]):
        rate = 100 * f["rate"]
        at = max(rate, at + 5.5)
        axis.axhline(rate, color=GRAY, lw=0.8, ls=":")
        axis.text(1.01, at, f["name"], transform=axis.get_yaxis_transform(), fontsize=6.5, color=GRAY, va="center")


def _line(axis: Axes, points: Sequence[tuple[float, ...]], color: str, name: str) -> None:
    if points:
        x, y, low, high = (np.array(c) for c in zip(*points, strict=True))
        axis.errorbar(x, y, np.abs(np.stack((y - low, high - y))), color=color, fmt="o-", capsize=2, lw=1.3, label=name)


def figures(studies: Sequence[Study], evaluations: Sequence[Mapping[str, Any]] = ()) -> dict[str, Make]:
    success = planning(evaluations, studies)
    return {
        "contact-weights": lambda: weights(studies, success),
        "contact-episode": lambda: episode(studies),
        "contact-raster": lambda: raster(studies),
    }


def write(
    studies: Sequence[Study],
    folder: str | Path,
    evaluations: Sequence[Mapping[str, Any]] = (),
    formats: Sequence[str] = ("png", "pdf"),
) -> list[Path]:
    return save(folder, figures(studies, evaluations), formats)


# The page ---------------------------------------------------------------------------------------------------


def section(
    studies: Sequence[Study], evaluations: Sequence[Mapping[str, Any]], name: Callable[[Study], str]
) -> str | None:
    if not studies:
        return None
    first = sweep([dict(s) for s in studies])
    intro = (
        "<p>How much of the support changes from one frame to the next, 1 − J, and what it goes with: the motion of "
        "the effector, the motion of the cube, and gripper contact, over the same action block. Pearson correlations "
        f"pooled over {first[0]['blocks']:,} blocks of {first[0]['episodes']} held-out episodes; 95 % intervals over "
        "episodes. "
        "As the three go together, the correlation given the other two stands beneath; the control pairs every "
        "episode with the factors of another.</p>"
    )
    heads = ["Run", "Weight", "1 − J", *(TITLE[f].capitalize() for f in FACTORS)]
    rows = [
        (
            "",
            [
                escape(name(s)),
                f"{s['tj_weight']:g}",
                fixed(s["instability"]),
                *(_cell(s["correlations"][f]) for f in FACTORS),
            ],
        )
        for s in first
    ]
    drawn = figures(studies, evaluations)
    alt = "The numbers are in the table above."
    return (
        intro
        + table("<b>Support instability and its causes</b>", heads, rows)
        + "".join(
            (
                picture(drawn["contact-weights"], "Correlations and planning against the temporal-Jaccard weight", alt),
                picture(
                    drawn["contact-episode"],
                    "One held-out episode a weight",
                    "Instability beside motion; contact shaded.",
                ),
                picture(
                    drawn["contact-raster"], "Their supports", "Units that are on, frame by frame; contact shaded."
                ),
            )
        )
    )


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "never varies"

    def number(f: Mapping[str, Any]) -> str:
        return f"{fixed(f['estimate'])} [{fixed(f['low'])}, {fixed(f['high'])}]"

    return (
        f'<span class="num">{number(found)}</span><br><span class="muted num">{number(found["partial"])}</span>'
        f'<br><span class="muted num">control {fixed(found["shuffled"]["estimate"])}</span>'
    )
