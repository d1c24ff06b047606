"""From real run folders to a page: the layouts that train, eval and interpret write are the ones it reads."""

import json
import re

import pytest
import tyro

from lpwm.cli import eval as eval_verb
from lpwm.cli import interpret as interpret_verb
from lpwm.cli import report as report_verb
from lpwm.core.errors import UserError
from lpwm.recipes import recipe
from lpwm.report.gather import gather
from lpwm.train import Run, pick_device


def call(verb, *words):
    return verb.run(tyro.cli(verb.Args, args=[str(w) for w in words]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from dataclasses import replace

    root, out = tmp_path_factory.mktemp("runs"), []
    for method in ("lpwm", "lewm"):
        config = recipe(f"tiny/{method}")
        config = replace(config, data=replace(config.data, steps=40), train=replace(config.train, steps=20))
        run = Run.create(config, root, f"tiny/{method}")
        run.train(pick_device("cpu"), console=False)
        out.append(run.folder)
    quick = "--preset quick --episodes 3 --budgets 20 --goals random --device cpu"
    call(eval_verb, *out, *quick.split(), "--solver-options", "samples=8", "elites=2", "iterations=1")
    call(interpret_verb, *out, "--resolution", 4, "--out", out[0] / "interpret" / "one.json", "--device", "cpu")
    return out


def test_everything_known_about_runs_is_gathered(folders):
    found = gather(folders)
    assert [r.name for r in found.runs] == ["tiny/lpwm", "tiny/lewm"]
    assert found.runs[0].step == 20
    assert len(found.evaluations) == 1 and len(found.studies) == 2 and not found.notes
    assert [s.run.hash for s in found.studies] == [r.hash for r in found.runs]
    names = [(e.name, e.control) for e in found.episodes]
    assert sorted(names) == [("oracle", True), ("random actions", True), ("tiny-lewm", False), ("tiny-lpwm", False)]


def test_replayed_episodes_are_those_of_the_evaluation(folders):
    found = gather(folders)
    evaluation = found.evaluations[0]
    for entry in found.episodes:
        row, outcome = evaluation.cells[0].row(entry.name), evaluation.cells[0].row(entry.name).at(20)
        assert entry.ids == evaluation.episode_sets["random"].ids
        for i, path in enumerate(entry.path):
            assert len(path) == 21
            assert path[0] == pytest.approx(evaluation.episode_sets["random"].start[i], abs=0.01)
            assert entry.distance[i][-1] == pytest.approx(outcome.final_distance[0][0][i], abs=0.01)
            reached = entry.success[i].find("1") + 1 or -1
            assert reached == outcome.steps_to_success[0][0][i]
        if not entry.control:
            mean = [sum(column) / 3 for column in zip(*entry.latent, strict=True)]
            assert mean == pytest.approx(row.mean_latent_distance["latent"][0][0], rel=1e-3)


def test_no_weights_are_loaded(folders, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the report loaded weights")

    monkeypatch.setattr("torch.nn.Module.load_state_dict", refuse)
    monkeypatch.setattr("torch.load", refuse)
    assert len(gather(folders).episodes) == 4
    for stored in (folders[0].parent / "episodes").glob("*.npz"):
        moved = stored.rename(stored.with_suffix(".away"))
        assert len(gather(folders).episodes) in (3, 4)  # what is not kept any more is left out
        moved.rename(stored)


def test_the_verb_writes_a_page_and_figures(folders, tmp_path, capsys):
    assert call(report_verb, *folders, "--out", tmp_path / "page", "--figures", tmp_path / "figures", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    text = (tmp_path / "page" / "report.html").read_text()
    assert said["page"].endswith("page/report.html") and said["bytes"] == len(text.encode())
    assert (said["evaluations"], said["studies"], said["episodes"]) == (1, 2, 4)
    assert {p.split("/")[-1] for p in said["figures"]} >= {"success.pdf", "maps.png", "episodes.pdf", "raster.png"}
    missing = text[text.index('id="missing"') : text.index("<footer")]
    assert re.findall(r"<li>([^:]*):", missing) == ["Success against horizon"]
    assert str(tmp_path) not in text and str(folders[0].parent) not in text


def test_one_run_of_two_leaves_their_common_evaluation_out_and_says_so(folders):
    found = gather(folders[:1])
    assert not found.evaluations and not found.episodes
    other = gather(folders[1:])
    assert not other.evaluations and len(other.studies) == 1  # read in the folder beside it
    with_files = gather(folders[1:], sorted((folders[0] / "eval").glob("*.json")))
    assert "name those runs too" in with_files.notes[0]


def test_where_the_page_goes(folders, tmp_path):
    args = report_verb.Args
    assert report_verb.target(args((folders[0],))) == folders[0] / "report.html"
    assert report_verb.target(args(tuple(folders))) == folders[0].parent / "report.html"
    assert report_verb.target(args((folders[0],), out=tmp_path / "a.html")) == tmp_path / "a.html"
    assert report_verb.target(args((folders[0],), out=tmp_path)) == tmp_path / "report.html"


def test_mistakes_are_one_sentence(folders, tmp_path):
    with pytest.raises(UserError, match="which runs"):
        call(report_verb)
    with pytest.raises(UserError, match=r"python -m results\.tool page"):
        report_verb.parse(["--claims", "results"])
    with pytest.raises(UserError, match=r"no run\.json"):
        gather([tmp_path])
    with pytest.raises(UserError, match="given twice"):
        gather([folders[0], folders[0]])
    with pytest.raises(UserError, match="the page is HTML"):
        call(report_verb, folders[0], "--out", tmp_path / "page.pdf")
    with pytest.raises(UserError, match="there is no file"):
        gather(folders, [tmp_path / "none.json"])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="not written by lpwm eval"):
        gather(folders, [tmp_path / "other.json"])
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        gather(folders, [tmp_path / "torn.json"])
