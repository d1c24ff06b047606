"""Extension from a folder outside the package: registered, checked, trained, evaluated, reported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHORT = "--data.episodes 20 --data.steps 60 --train.steps 6 --train.no-stop-dead --train.eval-every 6 --device cpu"


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(HERE / "plugin.py", folder / "my_plugin.py")
    shutil.copy(ROOT / "docs" / "worlds-and-data.md", folder)
    return folder


def lpwm(folder, *argv, plugin=True, status=0):
    words = [sys.executable, "-m", "lpwm", *argv, *(["--plugin", "my_plugin"] if plugin else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == status, f"{argv}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def test_from_the_command_line(outside):
    recipe = ["train", "tiny/lpwm", "--model.encoder.image-size", "16", *SHORT.split()]
    lpwm(outside, *recipe, "--data.world", "ball", "--model.predictor.rung", "gru", "--json")
    lpwm(outside, *recipe, "--data.world", "ball", "--model.predictor.rung", "residual-lti", "--json")
    folders = [row["folder"] for row in json.loads(lpwm(outside, "runs", "--json"))]
    assert len(folders) == 2
    quick = ["--preset", "quick", "--episodes", "3", "--budgets", "25", "--device", "cpu"]
    evaluated = json.loads(lpwm(outside, "eval", *folders, *quick, "--json"))
    assert evaluated["world"]["name"] == "ball" and len(evaluated["runs"]) == 2
    table = lpwm(outside, "interpret", *folders, "--what", "sparsity", "--frames", "60", "--device", "cpu")
    assert "Residual LTI(k)" in table and "gru" in table
    lpwm(outside, "report", *folders, "--out", "page.html")
    assert "ball" in (outside / "page.html").read_text()
    assert "LTI(1)" in lpwm(outside, "params", "--widths", "16")
    assert "gru" in lpwm(outside, "params", "--widths", "16", "--rungs", "gru")
    assert len(lpwm(outside, "recipes", "tiny/*").splitlines()) > 2
    lpwm(outside, "collect", "ball", "--episodes", "3", "--out", "ball.h5")
    alone = lpwm(outside, "eval", folders[0], *quick, plugin=False, status=2)
    assert "unknown predictor 'gru'" in alone and "--plugin" in alone


def test_from_python(outside):
    script = """
import lpwm, my_plugin
from lpwm import testing
testing.check_world("ball", friction=0.2)
testing.check_predictor("gru")
testing.check_predictor(my_plugin.ResidualLTI, history=2)
changes = {"data.world": "ball", "model.predictor.rung": "gru", "data.episodes": 20, "data.steps": 60,
           "train.steps": 6, "train.stop_dead": False}
run = lpwm.train("tiny/lpwm", out="python-runs", seed=3, overrides=changes, device="cpu")
assert lpwm.train("tiny/lpwm", out="python-runs", seed=3, overrides=changes, device="cpu").folder == run.folder
result = lpwm.evaluate([run], preset="quick", episodes=3, budgets=(25,), device="cpu")
assert "ball" in result.table() or result.table()
result.to_json("result.json")
lpwm.interpret(run, frames=60, device="cpu")
world = lpwm.make_world("ball")
frame, goal = (world.render(world.sample_state(1, (k,)), 20)[0].permute(1, 2, 0).numpy() for k in (0, 1))
agent = lpwm.load(run.folder)
agent.reset(goal=goal)
action = agent.act(frame)
assert action.shape == (1,) and abs(action[0]) <= 1
print(lpwm.report([run.folder], "python.html"))
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{outside}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=outside, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((outside / "result.json").read_text())["kind"] == "lpwm evaluation"
    assert (outside / "python.html").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_plugin", "there is no plugin 'no_such_plugin'"),
        ("my_plugin.py", "write my_plugin, not my_plugin.py"),
        ("needs_more", "needs the module 'not_installed_anywhere'"),
        ("twice", "a world named 'piecewise' is already registered"),
    ],
)
def test_a_plugin_that_does_not_work_is_one_sentence(outside, name, words):
    (outside / "needs_more.py").write_text("import not_installed_anywhere\n")
    (outside / "twice.py").write_text("import lpwm\nlpwm.register_world('piecewise', dict)\n")
    error = lpwm(outside, "recipes", "tiny/*", "--plugin", name, plugin=False, status=2)
    assert words in error and len(error.strip().splitlines()) == 1


def test_an_installed_plugin_is_found_when_its_name_is_not_known(outside, tmp_path):
    """The entry-point group "lpwm", as a package installed it."""
    shutil.copytree(outside, tmp_path, dirs_exist_ok=True)
    info = tmp_path / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lpwm]\nmine = my_plugin\nbroken = not_there\n")
    script = "import lpwm; print(lpwm.make_world('ball').spec.name)"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "ball" and "broken (not_there)" in done.stderr
