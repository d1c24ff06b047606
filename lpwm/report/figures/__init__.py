"""Static figures, PNG and PDF: one style, and the numbers and colors of the page."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from lpwm.core.files import MARK, check_output, make_folder, replacing
from lpwm.interpret.results import Study
from lpwm.report.curves import plots
from lpwm.report.figures import codes, curves
from lpwm.report.figures.codes import Shown
from lpwm.report.gather import Gathered
from lpwm.report.view import Report

Make = Callable[[], Figure]


def style() -> Any:
    return matplotlib.rc_context(fname=str(resources.files("lpwm.report") / "assets" / "lpwm.mplstyle"))


def save(
    folder: str | Path, figures: Mapping[str, Make], formats: Sequence[str] = ("png", "pdf"), *, overwrite: bool = False
) -> list[Path]:
    """Every figure as NAME.png and NAME.pdf; the files written. The same numbers give the same files. Pictures that
    lpwm did not make are not replaced, unless told so; all are checked before the first is drawn."""
    paths = {(name, kind): Path(folder) / f"{name}.{kind}" for name in figures for kind in formats}
    for path in paths.values():
        check_output(path, overwrite)
    make_folder(Path(folder))
    with style():
        for name, make in figures.items():
            figure = make()
            for kind in formats:
                about: dict[str, Any] = {"Creator": MARK, "CreationDate": None} if kind == "pdf" else {"Software": MARK}
                with replacing(paths[name, kind]) as temporary:
                    figure.savefig(temporary, metadata=about)
    return list(paths.values())


def png(make: Make, dpi: int = 110) -> str:
    """A figure as base64, for an image in a page."""
    data = io.BytesIO()
    with style():
        make().savefig(data, format="png", dpi=dpi, metadata={"Software": None})
    return base64.b64encode(data.getvalue()).decode()


def write(
    folder: str | Path, given: Gathered, formats: Sequence[str] = ("png", "pdf"), *, overwrite: bool = False
) -> list[Path]:
    """Every figure there are data for."""
    return save(folder, of_report(Report(given)), formats, overwrite=overwrite)


def of_report(report: Report) -> dict[str, Make]:
    made: dict[str, Make] = {}
    drawn = plots(report)
    for section in dict.fromkeys(p.section for p in drawn):
        made[section] = partial(curves.curves, [p for p in drawn if p.section == section])
    if report.headline:
        made |= {"success": partial(curves.success, report)}
    shown = [Shown(s, report.study_label(s), report.color(s)) for s in report.given.studies]
    if shown:
        n = shown[0].study.grid.resolution
        made |= {"maps": partial(codes.maps, shown, [(n // 4, n // 4)]), "probes": partial(codes.probes, shown)}
    if any(s.study.units for s in shown):
        made |= {"raster": partial(codes.rasters, [s for s in shown if s.study.units])}
    return made


def of_studies(studies: Sequence[Study], cells: Sequence[tuple[int, int]] = ()) -> dict[str, Make]:
    """Of studies alone: Jaccard maps of reference cells, probes, a raster a run."""
    shown = [Shown.of(s) for s in studies]
    references = list(cells) or [(r.row, r.col) for r in studies[0].grid.references][:4]
    made: dict[str, Make] = {"jaccard": partial(codes.maps, shown, references), "probes": partial(codes.probes, shown)}
    return made | {f"raster-{s.study.run.name}": partial(codes.rasters, [s]) for s in shown if s.study.units}
