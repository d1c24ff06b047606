"""Packed runs: small, loadable as any run, the same model up to rounding; and the pair that the package ships."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tools import refused

from lpwm.cli import demo, main
from lpwm.recipes import dense, tiny
from lpwm.train import Run, load, pretrained
from lpwm.train.pretrained import available, shipped, unpack

SCRIPT = Path(__file__).parents[2] / "results" / "pack_pretrained.py"
script = runpy.run_path(str(SCRIPT))
LIMIT, halved, pack = script["LIMIT"], script["halved"], script["pack"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    config = tiny()
    config = replace(
        config, data=replace(config.data, steps=60), train=replace(config.train, steps=20, stop_dead=False)
    )
    made = {}
    for name, one in (("lpwm", config), ("lewm", dense(config))):
        job = Run.create(one, root, f"tiny/{name}")
        job.train(torch.device("cpu"), console=False)
        made[name] = job.folder
    return made


def test_packed_is_the_same_run_up_to_rounding(runs, tmp_path):
    sizes = pack(runs, tmp_path)
    sessions = json.loads((runs["lpwm"] / "training.json").read_text())
    assert [(s["from_step"], s["to_step"]) for s in sessions] == [(0, 20)] and sessions[0]["device"].startswith("cpu")
    for name, folder in runs.items():
        a, b = load(folder), load(tmp_path / name)
        assert (b.run_hash, b.step, b.config, b.frameskip) == (a.run_hash, a.step, a.config, a.frameskip)
        assert a.stats.as_dict() == b.stats.as_dict()
        frames = torch.randint(0, 256, (4, 3, a.image, a.image), dtype=torch.uint8)
        z, w = a.model.encode(frames), b.model.encode(frames)
        assert not torch.equal(z, w) and torch.nn.functional.cosine_similarity(z, w, dim=-1).min() > 0.999
        stored = sum(p.stat().st_size for p in (tmp_path / name).iterdir())
        assert stored == sizes[name]


def test_matrices_are_halved_and_vectors_are_not():
    out = halved({"w": torch.ones(2, 3), "b": torch.ones(3), "n": torch.tensor(4)})
    assert [out[k].dtype for k in "wbn"] == [torch.bfloat16, torch.float32, torch.int64]


def test_too_much_is_refused_before_anything_is_written(runs, tmp_path):
    refused("smaller model", pack, runs, tmp_path / "out", limit=1000)
    assert not (tmp_path / "out").exists()


def test_the_script(runs, tmp_path, capsys, monkeypatch):
    words = [f"{n}={p}" for n, p in runs.items()]
    monkeypatch.setattr("sys.argv", ["pack_pretrained.py", *words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "lewm:" in capsys.readouterr().out and (tmp_path / "lpwm" / "config.json").exists()


def test_what_is_shipped_is_small_and_loads(tmp_path):
    assert available() == ["lewm", "lpwm"]
    assert sum(p.stat().st_size for p in shipped().rglob("*") if p.is_file()) < LIMIT
    folder = unpack("lpwm", tmp_path)
    assert unpack("lpwm", tmp_path) == folder
    loaded = load(folder)
    assert loaded.config.model.sparse and loaded.step == loaded.config.train.steps
    assert len(loaded.episodes().states)  # collected anew; another digest would be refused


def test_other_data_are_refused(tmp_path):
    folder = unpack("lewm", tmp_path)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"data": "0" * 32}))
    refused("altered", Run.open, folder)


def test_an_unknown_name(tmp_path, monkeypatch):
    refused("lewm, lpwm", unpack, "dino", tmp_path)
    monkeypatch.setattr(pretrained, "shipped", lambda: tmp_path / "nothing")
    refused("is none", unpack, "lpwm", tmp_path)


def test_a_demo_without_training(runs, tmp_path, capsys, monkeypatch):
    pack(runs, tmp_path / "assets")
    monkeypatch.setattr(pretrained, "shipped", lambda: tmp_path / "assets")
    monkeypatch.setattr(Run, "train", None)
    planner = {"samples": 16, "elites": 4, "iterations": 2}
    monkeypatch.setattr(demo, "PLANNING", replace(demo.PLANNING, episodes=6, options=planner, curve=32))
    out = tmp_path / "out"
    assert main(["demo", "--pretrained", "--out", str(out), "--json"]) == 0
    rows = {r["name"]: r for r in json.loads(capsys.readouterr().out)["rows"]}
    assert {"lpwm", "lewm", "oracle"} <= rows.keys() and rows["lpwm"]["title"] == "sparse LpWM"
    assert "lpwm demo --pretrained" in (out / "report.html").read_text()
    assert main(["report", *(str(p) for p in out.glob("l*wm-*")), "--out", str(tmp_path / "p.html")]) == 0
    assert main(["demo", "--out", str(out)]) == 2  # it would train into the same folders
    assert "with --pretrained" in capsys.readouterr().err
    assert main(["demo", "--pretrained", "--seed", "3"]) == 2
