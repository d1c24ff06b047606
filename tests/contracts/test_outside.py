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


COMMANDS = """
import contextlib, io, json, sys
from lpwm.cli import main
said = []
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(line)
    said.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(said))
"""


def python(folder, script, given="", **environment):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, input=given)
    assert done.returncode == 0, done.stderr
    return done


def lpwm(folder, *lines, plugin="my_plugin"):
    """Status, output and errors of each command, all in one process."""
    lines = [[*line.split(), *(["--plugin", plugin] if plugin else [])] for line in lines]
    return json.loads(python(folder, COMMANDS, json.dumps(lines)).stdout.splitlines()[-1])


def test_from_the_command_line(outside):
    train = f"train tiny/lpwm --model.encoder.image-size 16 {SHORT} --data.world ball --json --model.predictor.rung "
    said = lpwm(outside, train + "gru", train + "residual-lti", "runs --json")
    folders = " ".join(row["folder"] for row in json.loads(said[2][1]))
    assert [status for status, *_ in said] == [0] * 3 and len(folders.split()) == 2
    quick = "--preset quick --episodes 3 --budgets 25 --device cpu"
    said = lpwm(
        outside,
        f"eval {folders} {quick} --json",
        f"interpret {folders} --what sparsity --frames 60 --device cpu",
        f"report {folders} --out page.html",
        "params --widths 16",
        "params --widths 16 --rungs gru",
        "recipes tiny/*",
        "collect ball --episodes 3 --out ball.h5",
    )
    assert [status for status, *_ in said] == [0] * 7
    evaluated, table, _, params, gru, recipes, _ = (out for _, out, _ in said)
    evaluated = json.loads(evaluated)
    assert evaluated["world"]["name"] == "ball" and len(evaluated["runs"]) == 2
    assert "Residual LTI(k)" in table and "gru" in table and "ball" in (outside / "page.html").read_text()
    assert "LTI(1)" in params and "gru" in gru and len(recipes.splitlines()) > 2
    ((status, _, alone),) = lpwm(outside, f"eval {folders.split()[0]} {quick}", plugin="")
    assert status == 2 and "unknown predictor" in alone and "--plugin" in alone and "Traceback" not in alone


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
lpwm.evaluate([run], preset="quick", episodes=3, budgets=(25,), device="cpu").to_json("result.json")
lpwm.interpret(run, frames=60, device="cpu")
world = lpwm.make_world("ball")
frame, goal = (world.render(world.sample_state(1, (k,)), 20)[0].permute(1, 2, 0).numpy() for k in (0, 1))
agent = lpwm.load(run.folder)
agent.reset(goal=goal)
action = agent.act(frame)
assert action.shape == (1,) and abs(action[0]) <= 1
lpwm.report([run.folder], "python.html")
"""
    python(outside, script)
    assert json.loads((outside / "result.json").read_text())["kind"] == "lpwm evaluation"
    assert (outside / "python.html").exists()


def test_a_plugin_that_does_not_work_is_one_sentence(outside):
    (outside / "needs_more.py").write_text("import not_installed_anywhere\n")
    (outside / "twice.py").write_text("import lpwm\nlpwm.register_world('piecewise', dict)\n")
    (outside / "boom.py").write_text("\nraise RuntimeError('no such robot')\n")
    (outside / "cut.py").write_text("def (")
    (outside / "no_module.py").write_text("import lpwm\nlpwm.register_predictor('none', lambda config, latent: 5)\n")
    (outside / "no_world.py").write_text("import lpwm\nlpwm.register_world('none', lambda: 5)\n")
    wrong = {
        "../boom": "write boom, not ../boom",
        "boom": "plugin 'boom' fails: RuntimeError: no such robot (",
        "cut": "plugin 'cut' fails: SyntaxError: invalid syntax (",
        "no_such_plugin": "there is no plugin 'no_such_plugin'",
        "my_plugin.py": "write my_plugin, not my_plugin.py",
        "needs_more": "needs the module 'not_installed_anywhere'",
        "twice": "a world named 'piecewise' is already registered",
    }
    (outside / "number.py").write_text("import lpwm\nlpwm.register_world('number', 3)\n")
    wrong["number"] = "give a class or a function that builds it, not 3"
    lines = [f"recipes tiny/* --plugin {name}" for name in wrong]
    lines += ["params --rungs none --plugin no_module", "collect none --episodes 1 --out a.h5 --plugin no_world"]
    wrong |= {"no_module": "must build a torch.nn.Module", "no_world": "must build a world"}
    said = lpwm(outside, *lines, plugin="")
    for words, (status, _, error) in zip(wrong.values(), said, strict=True):
        assert status == 2 and words in error and len(error.strip().splitlines()) == 1


def test_an_installed_plugin_is_found_when_its_name_is_not_known(outside, tmp_path):
    """The entry-point group "lpwm", as a package installed it."""
    shutil.copytree(outside, tmp_path, dirs_exist_ok=True)
    info = tmp_path / "my_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lpwm]\nmine = my_plugin\nbroken = not_there\n")
    script = "import lpwm; print(lpwm.make_world('ball').spec.name)"
    done = python(tmp_path, script)
    assert done.stdout.strip() == "ball" and "broken (not_there)" in done.stderr
