"""From real run folders to a page: the layouts that train, eval and interpret write are the ones it reads."""

import base64
import io
import json

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

from lpwm import worlds
from lpwm.cli import eval as eval_verb
from lpwm.cli import interpret as interpret_verb
from lpwm.cli import report as report_verb
from lpwm.core.errors import UserError
from lpwm.data.normalize import to_blocks
from lpwm.evaluate.episodes import read_record
from lpwm.interpret.episode_frames import SIDE, forecasts
from lpwm.recipes import recipe
from lpwm.report.gather import gather
from lpwm.train import Run, load, pick_device


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
    call(interpret_verb, *out, "--what", "imagination", "--device", "cpu")
    call(interpret_verb, *out, "--resolution", 4, "--out", out[0] / "interpret" / "one.json", "--device", "cpu")
    return out


def test_everything_known_about_runs_is_gathered(folders):
    gathered = gather(folders)
    assert [r.name for r in gathered.runs] == ["tiny/lpwm", "tiny/lewm"]
    assert gathered.runs[0].step == 20
    assert len(gathered.evaluations) == 1 and len(gathered.studies) == 2 and not gathered.notes
    assert [s.run.hash for s in gathered.studies] == [r.hash for r in gathered.runs]
    (shown,) = gathered.episodes
    names = [(m.name, m.control) for m in shown.cell.methods]
    assert sorted(names) == [("oracle", True), ("random actions", True), ("tiny-lewm", False), ("tiny-lpwm", False)]
    assert [one.run.hash for one in gathered.imagination] == [r.hash for r in gathered.runs]
    assert all(gathered.strips[s.file] for one in gathered.imagination for s in one.strips)
    assert all(s.units for s in gathered.studies)


def test_frames_are_those_of_the_evaluation(folders):
    """The camera's frames are the world's at the recorded states, and the forecasts give the recorded distances."""
    gathered = gather(folders)
    evaluation, (shown,) = gathered.evaluations[0], gathered.episodes
    cell, world = shown.cell, worlds.make_world("piecewise")
    assert cell.ids == evaluation.episode_sets["random"].ids[:3] and cell.steps == tuple(range(21))
    for entry in cell.methods:
        row = next(r for r in evaluation.cells[0].rows if r.name == entry.name)
        outcome = row.at(20)
        record = read_record(folders[0].parent / "episodes" / f"{row.records[0][0]}.npz")
        for i in range(3):
            assert entry.distance[i][-1] == pytest.approx(outcome.final_distance[0][0][i], abs=0.01)
            assert (entry.success[i].find("1") + 1 or -1) == outcome.steps_to_success[0][0][i]
        camera = cut(shown.sheets[entry.camera], 3, 21)
        wanted = world.render(torch.from_numpy(record.states_BTS).flatten(0, 1), SIDE).permute(0, 2, 3, 1).numpy()
        assert np.abs(camera.reshape(wanted.shape) - wanted.astype(float)).mean() < 4  # what WebP leaves
        assert (entry.imagined is None) == entry.control
        if entry.imagined:
            assert cut(shown.sheets[entry.imagined], 3, 5).shape[-3:] == (16, 16, 3)


def cut(sheet, rows, columns):
    """(rows, columns, s, s, 3)"""
    image = np.array(Image.open(io.BytesIO(base64.b64decode(sheet))).convert("RGB")).astype(float)
    s = len(image) // rows
    return image.reshape(rows, s, columns, s, 3).swapaxes(1, 2)


def test_imagined_is_what_the_plan_in_force_expected(folders):
    gathered = gather(folders)
    row = gathered.evaluations[0].cells[0].methods[0]
    record = read_record(folders[0].parent / "episodes" / f"{row.records[0][0]}.npz")
    folder = next(f for f in folders if f.name.startswith(row.name))
    model, world, receding = load(folder), worlds.make_world("piecewise"), gathered.evaluations[0].cells[0].receding
    goal = torch.tensor(gathered.evaluations[0].episode_sets["random"].goal)
    states = torch.from_numpy(record.states_BTS[:, ::5])
    with torch.no_grad():
        z = model.model.encode(world.render(states.flatten(0, 1), model.image)).unflatten(0, states.shape[:2])
        z_goal = model.model.encode(world.render(goal, model.image))
    blocks = to_blocks(model.stats.normalize(torch.from_numpy(record.actions_BTA)), 5)
    codes = forecasts(model.model, z, blocks, receding, model.model.history)
    distance = (codes - z_goal[:, None]).square().mean(-1).sqrt()
    np.testing.assert_allclose(distance, record.traces["predicted"], rtol=2e-3, atol=1e-5)


def test_a_sheet_that_is_no_picture_is_left_out(folders, tmp_path):
    import shutil

    root = tmp_path / "runs"
    shutil.copytree(folders[0].parent, root)
    (frames,) = root.glob("*/eval/*-frames")
    copies = [root / f.name for f in folders]
    victim = next(frames.glob("*-0.webp"))
    for bad in (b"<svg onload=alert(1)>", b""):
        victim.write_bytes(bad)
        assert gather(copies).episodes == []
    victim.unlink()
    assert gather(copies).episodes == []


def test_no_weights_are_loaded(folders, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the report loaded weights")

    monkeypatch.setattr("torch.nn.Module.load_state_dict", refuse)
    monkeypatch.setattr("torch.load", refuse)
    assert len(gather(folders).episodes) == 1


def test_the_verb_writes_a_page_and_figures(folders, tmp_path, capsys):
    assert call(report_verb, *folders, "--out", tmp_path / "page", "--figures", tmp_path / "figures", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    text = (tmp_path / "page" / "report.html").read_text()
    assert said["page"].endswith("page/report.html") and said["bytes"] == len(text.encode())
    assert (said["evaluations"], said["studies"], said["episodes"]) == (1, 2, 1)
    assert {p.split("/")[-1] for p in said["figures"]} >= {"success.pdf", "maps.png", "raster.png"}
    assert 'id="missing"' not in text
    assert str(tmp_path) not in text and str(folders[0].parent) not in text


def test_one_run_of_two_leaves_their_common_evaluation_out_and_says_so(folders):
    gathered = gather(folders[:1])
    assert not gathered.evaluations and not gathered.episodes
    other = gather(folders[1:])
    assert not other.evaluations and len(other.studies) == 1  # read in the folder next to it
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
