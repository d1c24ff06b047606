"""The page as text: what it says, what it leaves out, what it never does."""

import base64
import gzip
import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from lpwm.core.errors import UserError
from lpwm.core.json import to_json
from lpwm.report import page
from lpwm.report.gather import Gathered
from lpwm.report.page import train_command

WHEN = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
SPARSE, DENSE = "sparse LpWM", "dense LeWM"  # called so everywhere
VOID = {"meta", "link", "input", "img"}


class Outline(HTMLParser):
    """Sections, ids, tables as lists of rows, and whether every element is closed."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.rows, self.sections, self.cell = [], [], [], [], None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "section":
            self.sections.append(attrs["id"])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.cell = True
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.rows[-1][-1] += data


def outline(text):
    parser = Outline()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def text(documents):
    return page.render(documents.everything(), when=WHEN)


def test_every_section_is_there_once_and_well_formed(text):
    parsed = outline(text)
    order = "episodes results imagination units arena probes distance horizon training trained"
    assert " ".join(parsed.sections) == order
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "2 January 2030, 03:04 UTC" in text


def test_success_stands_next_to_its_controls_with_intervals_in_the_order_of_the_runs(text):
    rows = [r for r in outline(text).rows if r and r[-1] in ("20", "–")]
    first = [r[0].strip() for r in rows[:5]]
    assert [name.split()[0] for name in first] == ["sparse", "dense", "do", "random", "oracle"]
    assert rows[0][2] == "50.0 [40.0, 60.0]"  # 0.6 − 0.02·5, random goals first; held at the end
    assert rows[4][2] == "90.0 [80.0, 100.0]"
    assert "dense LeWM − sparse LpWM: −30.0 points [−100.0, −20.0], p = 0.010, 1 seed × 4 episodes" in html.unescape(
        text
    )


def test_it_opens_with_what_came_out(documents):
    def first(given):
        return html.unescape(re.search(r'id="opening">([^<]*)<', page.render(given, when=WHEN))[1])

    everything = documents.everything()
    came_out = "Sparse reached 2 of 4 random goals within 50 steps, dense 1, doing nothing 0"
    assert first(everything) == f"{came_out}; one seed: not a difference."
    seeds = replace(everything.evaluations[0], cells=tuple(map(of_three_seeds, everything.evaluations[0].cells)))
    said = first(Gathered(everything.runs, [seeds]))
    assert said.startswith("Sparse reached 55 % of 4 random goals within 50 steps, dense 25 %, doing nothing 5 %; ")
    assert said.endswith("; sparse is ahead by 30.0 points [20.0, 100.0].")
    error = "Error on held-out frames, where copying the last frame has 100 %: sparse 33 %, dense 33 %."
    assert first(Gathered(everything.runs)) == f"{error} Below that, motion was learned."
    assert first(Gathered([documents.run(log=False)])) == "Nothing was measured yet."


def of_three_seeds(cell):
    return replace(cell, rows=tuple(replace(row, seeds=(0, 1, 2)) for row in cell.rows))


def test_no_interval_goes_beyond_what_can_be(documents):
    given = documents.everything()
    score = next(iter(given.studies[0].probes.zone.values()))
    high = {name: replace(score, high=1.2, low=-0.1) for name in given.studies[0].probes.zone}
    study = replace(given.studies[0], probes=replace(given.studies[0].probes, zone=high))
    text = page.render(Gathered(given.runs, given.evaluations, [study]), when=WHEN)
    cells = [c for row in outline(text).rows for c in row[1:]]
    assert any("[0.000, 1.000]" in c for c in cells) and not any("1.200" in c or "−0.1" in c for c in cells)


def test_what_was_not_measured_is_left_out_with_the_command_that_measures_it(documents):
    text = page.render(Gathered([documents.run()]), when=WHEN)
    assert outline(text).sections == ["training", "trained", "missing"]
    missing = html.unescape(text[text.index('id="missing"') :])
    for command in ("lpwm eval RUN…", "lpwm interpret RUN…", "lpwm interpret --what imagination RUN…"):
        assert f"<code>{command}" in missing
    bare = Gathered([documents.run(log=False)])
    assert outline(page.render(bare, when=WHEN)).sections == ["trained", "missing"]


def test_the_page_cannot_ask_the_network_for_anything(text):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'")
    own = text[: text.index('<script type="application/octet-stream"')]
    for address in re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)""", own):
        assert address.startswith(("#", "data:")), address
    assert "@import" not in own and "url(" not in own


def test_the_plotting_library_unpacks_to_what_its_package_ships(text):
    from plotly.offline import get_plotlyjs

    packed = re.search(r'id="plotly">([^<]*)<', text)[1]
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(text.encode()) < 6_000_000


def test_whatever_files_bring_stays_text(documents):
    """EVIL in every field that a reader accepts; the same page is opened in a browser by tests/browser."""
    given = documents.poisoned_page()
    for part, least in (("runs", 10), ("evaluations", 40), ("studies", 40), ("episodes", 8), ("imagination", 2)):
        assert json.dumps(to_json(getattr(given, part))).count("window.ran") > 2 * least, part
    text = page.render(given, title=documents.EVIL, commands=[documents.EVIL], when=WHEN)
    assert "<img src" not in text and text.count("</script>") == 3
    outline(text)
    assert documents.EVIL in data_of(text)["episodes"][0]["methods"][0]["camera"]


def test_the_data_hold_every_support_and_every_trajectory(documents, text):
    data, given = data_of(text), documents.everything()
    assert [s["supports"] for s in data["studies"]] == [to_json(s.grid.supports) for s in given.studies]
    assert [e["name"] for e in data["episodes"]] == [
        f"{g} goals, plans of 5 blocks, 1 executed" for g in ("Random", "Dataset")
    ]
    assert [m["name"] for m in data["episodes"][0]["methods"]] == [SPARSE, DENSE, "oracle"]  # in the order of the runs
    assert data["episodes"][0]["sheets"] == given.episodes[0].sheets
    assert data["units"][0]["maps"] == given.studies[0].units.maps and data["units"][0]["place"] == "zone"
    names = ("loss", "error", "active", "dimension", "instability", "depth", "imagined", "distance", "horizon-random")
    assert {p["id"] for p in data["plots"]} == {f"plot-{name}" for name in names}
    error = next(p for p in data["plots"] if p["id"] == "plot-error")
    assert [t["name"] for t in error["traces"]] == [SPARSE, f"{SPARSE}, copying", DENSE, f"{DENSE}, copying"]
    assert error["traces"][0]["y"][-1] == 0.0125


def test_horizons_are_drawn_by_way_of_executing(text):
    plot = next(p for p in data_of(text)["plots"] if p["id"] == "plot-horizon-random")
    lines = {t["name"]: t for t in plot["traces"]}
    assert set(lines) == {f"{n}, {w}" for n in (SPARSE, DENSE, "oracle") for w in ("R = 1", "R = H")}
    assert lines[f"{SPARSE}, R = 1"]["x"] == [1, 2, 5]
    assert lines[f"{SPARSE}, R = H"]["y"] == [58.0, 56.0, 50.0]


def test_runs_of_one_recipe_are_told_apart(documents):
    runs = [documents.run(seed=0), documents.run(seed=1), documents.run("lewm")]
    data = data_of(page.render(Gathered(runs), when=WHEN))
    loss = next(p for p in data["plots"] if p["id"] == "plot-loss")
    assert [t["name"] for t in loss["traces"]] == [f"{SPARSE}, seed 0", f"{SPARSE}, seed 1", DENSE]
    assert [t["color"] for t in loss["traces"]] == [0, 0, 1]
    pair = Gathered([documents.run(), documents.run(latent=32, code="cccccccccccc")])
    loss = next(p for p in data_of(page.render(pair, when=WHEN))["plots"] if p["id"] == "plot-loss")
    assert len({t["name"] for t in loss["traces"]}) == 2
    assert [t["color"] for t in loss["traces"]] == [0, 2]  # 1 is the dense code's


def test_a_run_that_does_not_beat_copying_is_called_so(documents):
    run = documents.run(error=(0.5, 0.6, 0.7))
    assert "predicts no better than copying" in page.render(Gathered([run]), when=WHEN)
    assert "predicts no better than copying" not in page.render(Gathered([documents.run()]), when=WHEN)


def test_provenance_names_what_made_it(documents, text):
    foot = text[text.index("<footer") : text.index('id="data"')]
    for part in (documents.run().hash, "d" * 16, "digest-random", "torch 2.13"):
        assert part in foot
    assert train_command(documents.run(seed=3)) == "lpwm train tiny/lpwm --train.seed 3 --out ."
    unknown = documents.run(name="mine")
    assert train_command(unknown) == f"lpwm train --resume mine-{unknown.hash} --out ."


def test_a_page_that_is_too_large_leaves_episodes_out(documents, tmp_path, monkeypatch):
    everything = documents.everything()
    one = len(page.render(replace(everything, episodes=everything.episodes[:1]), when=WHEN).encode())
    monkeypatch.setattr(page, "LIMIT", one + 10)
    text = page.write(tmp_path / "page.html", everything, when=WHEN).read_text()
    assert len(data_of(text)["episodes"]) == 1


def test_writing_is_whole_or_not_at_all(documents, tmp_path, monkeypatch):
    out = page.write(tmp_path / "deep" / "page.html", Gathered([documents.run()]), when=WHEN)
    assert out.read_text() == page.render(Gathered([documents.run()]), when=WHEN)
    monkeypatch.setattr(page, "LIMIT", 1000)
    with pytest.raises(UserError, match="report fewer runs"):
        page.write(out, Gathered([documents.run()]))
    assert out.stat().st_size > 1000
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]
    with pytest.raises(UserError, match="at least one run"):
        page.write(out, Gathered([]))
