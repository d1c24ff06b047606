"""`lpwm eval` on real run folders: tiny models with fresh weights, which no test needs to be good."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from lpwm import cli
from lpwm.evaluate.episodes import run_episodes
from lpwm.evaluate.runs import _ends
from lpwm.model import ModelConfig, PredictorConfig
from lpwm.model.encoder import EncoderConfig, ProjectorConfig
from lpwm.optim import build
from lpwm.train import DataConfig, Run, RunConfig

SIDE = 28
SMALL = ["--preset", "quick", "--episodes", "4", "--budgets", "25", "--device", "cpu"]
SMALL += ["--frames", "0", "--solver-options", "samples=8", "elites=2", "iterations=2"]


def config(seed=0, latent=8, steps=60):
    vit = EncoderConfig(image_size=SIDE, patch=14, width=16, depth=1, heads=1, head_dim=16, mlp=16)
    model = ModelConfig(
        latent=latent,
        encoder=vit,
        projector=ProjectorConfig(hidden=16),
        predictor=PredictorConfig(rung="mlp-lti", history=2),
    )
    base = RunConfig(data=DataConfig(episodes=20, steps=steps, holdout=0.3), model=model)
    return replace(base, train=replace(base.train, seed=seed, batch=4))


def make_run(root, name="tiny", save=True, **changes):
    run = Run.create(config(**changes), root, name)
    if save:
        cpu = torch.device("cpu")
        model = run.build_model(cpu)
        run.save(model, build(model, run.config.optim), 7, run.source(cpu).stats)
    return run.folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(root):
    return [str(make_run(root, seed=s)) for s in (0, 1)]


def call(*argv):
    return cli.main(["eval", *map(str, argv)])


def test_the_seeds_of_one_method_in_a_table_with_a_json_and_gifs(runs, tmp_path, capsys):
    out = tmp_path / "deep" / "result.json"
    assert call(*runs, *SMALL, "--receding", "1", "5", "--out", out, "--video", "1") == 0
    printed = capsys.readouterr()
    assert re.match(r"predicted time: about \d+:\d\d on cpu", printed.err)
    for part in (
        "random goals, horizon 5, executes 1 (warm)",
        "dataset goals",
        "seeds  reached              at the end",
        "latent distance",
    ):
        assert part in printed.out
    data = json.loads(out.read_text())
    assert [r["seed"] for r in data["runs"]] == [0, 1] and {r["method"] for r in data["runs"]} == {"tiny"}
    assert [r["step"] for r in data["runs"]] == [7, 7]
    assert data["runs"][0]["path"] == runs[0] and runs[0].endswith(data["runs"][0]["run_hash"])
    assert np.shape(data["cells"][0]["rows"][0]["budgets"]["25"]["success"]["latched"]) == (2, 1, 4)
    assert data["cells"][0]["rows"][0]["planner"]["context"] == 2  # the model's history
    for ending in ("gif", "mp4"):
        assert len(list((tmp_path / "deep" / f"result-{ending}").glob(f"*.{ending}"))) == 4


def test_repeating_a_json_and_noticing_when_it_does_not_repeat(runs, tmp_path, capsys):
    out = tmp_path / "a.json"
    assert call(*runs, *SMALL, "--goals", "random", "--out", out) == 0
    assert call("--repeat", out, "--device", "cpu") == 0
    assert "every outcome is that of" in capsys.readouterr().out
    assert call("--repeat", out, "--device", "cpu", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["cells"][0]["rows"]
    assert [r["stored_records"] for r in rows] == [0, 0, 0, 0]  # read from the store it would prove nothing
    data = json.loads(out.read_text())
    first = data["cells"][0]["rows"][0]["budgets"]["25"]["success"]["latched"][0][0]
    first[0] = 1 - first[0]
    out.write_text(json.dumps(data))
    assert call("--repeat", out, "--device", "cpu") == 1
    assert "it came out differently: random goals" in capsys.readouterr().err
    data["runs"][0]["weights"] = "other"
    out.write_text(json.dumps(data))
    assert call("--repeat", out) == 2
    assert "is not the checkpoint that was evaluated" in capsys.readouterr().err


def test_json_goes_to_stdout_and_into_the_run_folder_and_episodes_are_kept(runs, root, capsys):
    argv = [runs[0], *SMALL, "--goals", "random", "--seed", "5", "--json"]
    assert call(*argv) == 0
    first = json.loads(capsys.readouterr().out)
    assert list((root / "episodes").glob("*.npz"))
    (written,) = list((root / runs[0] / "eval").glob("*.json"))
    assert json.loads(written.read_text())["cells"] == first["cells"]
    assert call(*argv) == 0
    again = capsys.readouterr()
    assert "4 of 4 runs of the episodes are kept from before" in again.err
    assert json.loads(again.out)["cells"][0]["rows"][0]["stored_records"] == 1
    assert call(*argv, "--fresh") == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["rows"][0]["stored_records"] == 0


def test_what_is_finished_serves_after_an_interruption(runs, tmp_path, capsys, monkeypatch):
    """Stopped in the third of its runs of the episodes: two are kept, and not repeated."""
    out, kept = tmp_path / "a.json", tmp_path / "kept"
    argv = [*runs, *SMALL, "--goals", "random", "--cache", kept, "--out", out]
    made = []

    def stopping(*args, **options):
        if len(made) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        made.append(run_episodes(*args, **options))
        return made[-1]

    monkeypatch.setattr("lpwm.evaluate.evaluate.run_episodes", stopping)
    assert call(*argv) == 130
    err = capsys.readouterr().err
    assert "2 of 5 runs of the episodes are kept" in err and "the same command goes on" in err and "interrupted" in err
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and not out.exists()
    monkeypatch.setattr("lpwm.evaluate.evaluate.run_episodes", run_episodes)
    assert call(*argv) == 0
    assert "2 of 5 runs of the episodes are kept from before" in capsys.readouterr().err
    assert [row["stored_records"] for row in json.loads(out.read_text())["cells"][0]["rows"]] == [2, 0, 0, 0]
    next(kept.glob("*.npz")).write_bytes(b"torn")  # counts as absent
    assert call(*argv) == 0
    assert sum(row["stored_records"] for row in json.loads(out.read_text())["cells"][0]["rows"]) == 4


def test_episodes_of_a_compiled_planner_serve_where_the_choice_is_automatic(runs, tmp_path, capsys):
    """On the CPU nothing is compiled, so the two differ in the name of the record alone."""
    argv = [runs[0], *SMALL, "--goals", "random", "--cache", tmp_path, "--out", tmp_path / "a.json"]
    assert call(*argv, "--compile", "yes") == 0
    capsys.readouterr()
    assert call(*argv) == 0
    assert "4 of 4 runs of the episodes are kept" in capsys.readouterr().err
    assert call(*argv, "--compile", "no") == 0
    assert "3 of 4 runs of the episodes are kept" in capsys.readouterr().err


def test_options_reach_the_planner(runs, tmp_path, capsys):
    def planner(*argv):
        assert call(runs[0], *SMALL, "--goals", "random", "--json", "--out", tmp_path / "a.json", *argv) == 0
        rows = json.loads(capsys.readouterr().out)["cells"][0]["rows"]
        return rows[0]["planner"], rows[3]["planner"]

    ours, oracle = planner("--receding", "1")
    assert (ours["warm"], ours["receding"], ours["context"]) == (True, 1, 2) and oracle["context"] == 1
    assert ours["options"] == oracle["options"] == {"samples": 8, "elites": 2, "iterations": 2, "std": 1.0}
    ours, oracle = planner("--cold", "--context", "1", "--oracle-options", "samples=16", "--receding", "0")
    assert (ours["warm"], ours["receding"], ours["context"]) == (False, 5, 1)
    assert (ours["options"]["samples"], oracle["options"]["samples"]) == (8, 16)


def test_two_methods_of_one_name_are_told_apart(runs, root, tmp_path, capsys):
    other = make_run(root, "tiny", latent=6)
    assert call(runs[0], other, *SMALL, "--goals", "random", "--out", tmp_path / "a.json") == 0
    assert "exploratory: fewer than 8 seeds" in " ".join(capsys.readouterr().out.split())
    names = [r["method"] for r in json.loads((tmp_path / "a.json").read_text())["runs"]]
    assert names == ["tiny latent=8", "tiny latent=6"]


def test_methods_are_named_by_what_tells_them_apart():
    """By one field, of the model rather than of the data, and not by the seed; by two; else by the hash."""
    rungs = [{"data.steps": i, "model.rung": r, "train.seed": i} for i, r in enumerate(("lti", "lti1"))]
    assert _ends({"a 1111": rungs[0], "a 2222": rungs[1]}) == {"a 1111": " rung=lti", "a 2222": " rung=lti1"}
    cells = {f"a {i}": {"objective.lam": lam, "optim.lr": lr} for i, (lam, lr) in enumerate(((1, 3), (1, 6), (3, 3)))}
    assert list(_ends(cells).values()) == [" lam=1 lr=3", " lam=1 lr=6", " lam=3 lr=3"]
    assert _ends({"a 1111": {}, "a 2222": {}}) == {"a 1111": " 1111", "a 2222": " 2222"}
    assert _ends({"a 1111": {"data.file": "x" * 30}, "a 2222": {"data.file": "y"}})["a 1111"] == " 1111"
    assert _ends({"a 1111": rungs[0]}) == {"a 1111": ""}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--preset", "quik"], "unknown preset 'quik': did you mean 'quick'"),
        (["--solver-options", "elites=0"], "elites is 0: give at least 2"),
        (["--solver-options", "elites"], "is no option"),
        (["--horizon", "13", "--preset", "quick"], "planning horizon of 65 raw steps is longer than the held-out"),
        (["--offset", "61", "--preset", "quick"], "goal of 61 raw steps is longer than the held-out"),
        (["--episodes", "100000", "--preset", "quick"], "have only"),
        (["--gif", "-1"], "number of episodes to draw"),
        (["--device", "cuda:99"], "GPU"),
        (["--repeat", "no-such.json"], "there is no file no-such.json"),
    ],
)
def test_bad_input_is_one_sentence(runs, argv, words, capsys):
    if "cuda:99" in argv and torch.cuda.is_available():
        pytest.skip("CUDA is here")
    assert call(runs[0], *argv) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1 and "Traceback" not in err


def test_folders_that_are_no_trained_runs(runs, root, tmp_path, capsys):
    assert call(tmp_path / "nowhere") == 2
    assert "does not exist" in capsys.readouterr().err
    assert call(make_run(tmp_path, "empty", save=False)) == 2
    assert "no model" in capsys.readouterr().err
    assert call(runs[0], runs[0]) == 2
    assert "given twice" in capsys.readouterr().err
    assert call() == 2
    assert "at least one run folder" in capsys.readouterr().err
    twin = tmp_path / "twin-of-a-seed"
    shutil.copytree(runs[0], twin)
    shutil.copytree(root / "data", tmp_path / "data", dirs_exist_ok=True)
    other = make_run(tmp_path, "longer", steps=70)
    assert call(runs[0], other, *SMALL) == 2
    assert "trained on different data" in capsys.readouterr().err
    assert call(runs[0], other, *SMALL, "--goals", "random", "--out", tmp_path / "b.json") == 0
