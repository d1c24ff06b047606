import numpy as np
import pytest
from PIL import Image

from lpwm.interpret.results import WorldInfo
from lpwm.report import figures, palette
from lpwm.report.figures.codes import borders
from lpwm.report.gather import Gathered
from lpwm.report.view import Report
from lpwm.report.words import world_title

SPARSE, DENSE = "sparse LpWM", "dense LeWM"
ALL = {"training", "imagination", "distance", "horizon", "success", "maps", "probes", "raster"}


def test_every_figure_as_png_and_pdf(documents, tmp_path):
    given = documents.everything()
    assert set(figures.of_report(Report(given))) == ALL
    written = figures.write(tmp_path / "figures", Gathered(given.runs, studies=given.studies[:1]))
    assert {p.name for p in written} == {
        f"{n}.{k}" for n in ("training", "maps", "probes", "raster") for k in ("png", "pdf")
    }
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 200
        else:
            assert path.read_bytes()[:5] == b"%PDF-"


def test_figures_only_of_what_is_there(documents):
    assert list(figures.of_report(Report(Gathered([documents.run()])))) == ["training"]


def test_the_success_figure_holds_the_rates(documents):
    figure = figures.of_report(Report(documents.everything()))["success"]()
    axis = figure.axes[0]
    points = [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 1]
    assert points == pytest.approx([50.0, 20.0, 0.0, 5.0, 90.0])  # in the order of the runs, controls last
    assert [t.get_text() for t in axis.get_yticklabels()][:2] == [SPARSE, DENSE]


def test_maps_show_the_jaccard_index_of_the_marked_cell(documents):
    image = figures.of_report(Report(documents.everything()))["maps"]().axes[0].images[0].get_array()
    active = documents.supports(True)
    sets = [[set(active[r, c].nonzero()[0]) for c in range(8)] for r in range(8)]
    mark = sets[2][2]
    for r in range(8):
        for c in range(8):
            either = mark | sets[r][c]
            assert image[r, c] == pytest.approx(len(mark & sets[r][c]) / len(either) if either else 1.0)


def luminance(color):
    """Relative luminance, WCAG 2."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colors", "ground"), [(palette.LIGHT, "#fcfbf8"), (palette.DARK, "#15171a")])
def test_colors_stand_out_from_their_ground(colors, ground):
    for color in colors:
        light, dark = sorted((luminance(color), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, color


def test_the_map_grows_lighter_throughout():
    shades = [luminance(c) for c in palette.stops()]
    assert shades == sorted(shades)


def test_worlds_have_titles():
    assert world_title(WorldInfo("piecewise", {"g": 3, "visible": True})) == "Piecewise 3×3, zones visible"
    assert world_title(WorldInfo("pusht")) == "PushT" and world_title(WorldInfo("elsewhere")) == "elsewhere"


def test_borders_run_between_cells_of_different_zones():
    zones = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 2]])
    upright = {((1.5, -0.5), (1.5, 0.5)), ((1.5, 0.5), (1.5, 1.5))}
    level = {((c - 0.5, 1.5), (c + 0.5, 1.5)) for c in range(3)}
    assert {(tuple(map(float, a)), tuple(map(float, b))) for a, b in borders(zones)} == upright | level


def test_sparse_and_dense_have_one_color_each_in_any_order():
    assert palette.assign([("lewm", False), ("lpwm", True)]) == {"lewm": palette.DENSE, "lpwm": palette.SPARSE}
    several = palette.assign([("a", True), ("b", True), ("b", True), ("c", False), ("d", False)])
    assert several == {"a": 0, "b": 2, "c": 1, "d": 3}
