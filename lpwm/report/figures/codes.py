"""What codes say: Jaccard maps, probes, units in frames sorted by zone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lpwm.interpret.results import Ints, Score, Study
from lpwm.report import palette
from lpwm.report.figures.curves import legend, name_rows

GIVEN_SUPPORT = "given_support"
FEATURES = {
    "code": "From the code z",
    "support": "From its support",
    "magnitudes": "From magnitudes given the support",
    "position": "From the true position",
    GIVEN_SUPPORT: "Magnitudes, of what the support leaves",
}


@dataclass(frozen=True)
class Shown:
    """A study with its name and color."""

    study: Study
    label: str
    color: int

    @classmethod
    def of(cls, study: Study) -> "Shown":
        run = study.run
        name = palette.called(run.name.removesuffix(f"-{run.hash}"), run.sparse)
        return cls(study, f"{name}, seed {run.seed}", palette.SPARSE if run.sparse else palette.DENSE)


def maps(shown: Sequence[Shown], cells: Sequence[tuple[int, int]]) -> Figure:
    """Jaccard maps against marked cells: a row a study, or all in a row for a single cell."""
    panels = [(s, cell) for s in shown for cell in cells]
    columns = len(cells) if len(cells) > 1 else min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.5 * columns + 0.5, 2.6 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, (s, (row, col)) in zip(axes, panels, strict=False):
        image = axis.imshow(s.study.jaccard_map(row, col), vmin=0, vmax=1, cmap=palette.MAP)
        lines = LineCollection(borders(s.study.zones_nn), colors="white", linewidths=1.0, linestyles="dashed")
        axis.add_collection(lines)
        axis.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, fill=False, ec=palette.MARK, lw=1.5))
        axis.set(xticks=[], yticks=[], title=s.label if (row, col) == cells[0] else "")
        axis.grid(visible=False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.8, label="Jaccard index with the marked cell")
    return figure


def borders(zones_nn: Ints) -> list[list[tuple[float, float]]]:
    """Segments between cells of different zones, in the coordinates of imshow."""
    upright = np.argwhere(zones_nn[:, 1:] != zones_nn[:, :-1])
    level = np.argwhere(zones_nn[1:] != zones_nn[:-1])
    lines = [[(c + 0.5, r - 0.5), (c + 0.5, r + 0.5)] for r, c in upright]
    return lines + [[(c - 0.5, r + 0.5), (c + 0.5, r + 0.5)] for r, c in level]


def probes(shown: Sequence[Shown]) -> Figure:
    """Zone accuracy and position R² from each part of the code, next to the controls."""
    figure = Figure(figsize=(7.4, 0.8 + 0.5 * len(shown) + 0.9))
    for axis, (target, title) in zip(
        figure.subplots(1, 2), (("zone", "Zone accuracy"), ("position", "Position R²")), strict=True
    ):
        each = [_scores(s.study, target) for s in shown]
        features = list(dict.fromkeys(f for scores in each for f in scores))
        for i, (s, scores) in enumerate(zip(shown, each, strict=True)):
            ink, filled = palette.color(s.color), {"mfc": "white"} if s.study.settings.visible else {}
            for feature, score in scores.items():
                y = features.index(feature) + (i - (len(shown) - 1) / 2) * 0.6 / len(shown)
                axis.plot([score.low, score.high], [y, y], color=ink, lw=2)
                axis.plot([score.estimate], [y], "o", color=ink, ms=4.5, label=s.label, **filled)
                control = "labels shuffled"
                axis.plot([score.shuffled.estimate], [y], "|", color=palette.GRAY, ms=7, label=control)
        if target == "zone":
            label = "commonest zone"
            axis.axvline(shown[0].study.probes.majority, color=palette.GRAY, lw=0.8, ls=":", label=label)
        name_rows(axis, [FEATURES.get(f, f).removeprefix("From ") for f in features])
        axis.set_xlim(max(min(-0.02, axis.get_xlim()[0]), -1), 1.02)
        axis.set_title(title)
    legend(figure, ncols=3)
    return figure


def _scores(study: Study, target: str) -> dict[str, Score]:
    scores = dict(study.probes.of(target))
    return scores if target == "zone" else {**scores, GIVEN_SUPPORT: study.probes.position_given_support}


def rasters(shown: Sequence[Shown]) -> Figure:
    """How strongly units answer in held-out frames, both sorted by zone; a panel a study."""
    figure = Figure(figsize=(6.6, 2.3 * len(shown)))
    for axis, s in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        units = s.study.units
        assert units is not None
        ramp = LinearSegmentedColormap.from_list("", ["#f4f2ec", palette.color(s.color)])
        axis.imshow(units.frames_FU.T, aspect="auto", interpolation="nearest", cmap=ramp, vmin=0, vmax=255)
        zones = np.asarray(units.zones)
        for zone in np.unique(zones):
            at = np.flatnonzero(zones == zone)
            axis.axvline(at[-1] + 0.5, color=palette.INK, lw=0.6)
            place = {"ha": "center", "va": "bottom", "transform": axis.get_xaxis_transform()}
            axis.text(at.mean(), 1.01, f"zone {zone}", fontsize=7, color=palette.GRAY, **place)
        axis.set(ylabel=f"{len(units.numbers)} units", yticks=[], xticks=[])
        axis.set_title(s.label, pad=12)
        axis.grid(visible=False)
    figure.axes[-1].set_xlabel("held-out frames")
    return figure
