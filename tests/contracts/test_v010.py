"""What lpwm 0.1.0 wrote keeps working: run folders load, continue, plan and interpret to the same numbers.

The folders in tests/golden/v010 were written by the wheel of 0.1.0, with the commands in expected.json; they are never
made again (the script is in the history: tests/golden/make_v010.py).
"""

import gzip
import hashlib
import json
import platform
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from tools import load

from lpwm.cli import main
from lpwm.core.config import digest
from lpwm.model import WorldModel
from lpwm.recipes import recipe
from lpwm.sweep import expand, read_grid

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "v010"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
RUNS = EXPECTED["runs"]
FRAMES = (torch.arange(1536) ** 2 // 11 % 256).to(torch.uint8).reshape(2, 3, 16, 16)
NEEDS = {"pusht": "pymunk", "cube": "mujoco"}


def encode(folder, frames):
    with torch.no_grad():
        return WorldModel.from_pretrained(folder).encode(frames)


# With its table of renamed keys.
differences = load("bench/compare_versions.py").differences


def same_machine():
    """Whether bits can be expected: the torch, the processor and the number of threads that made the files."""
    made, info = EXPECTED["made_with"], Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    here = {"torch": str(torch.__version__), "machine": platform.machine(), "cpu": cpu}
    here |= {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
    return here == made


def assert_equal(old, new):
    """Number by number: within 1e-6 where the files were made, a little more elsewhere."""
    measured = list(differences(old, new, 1e-6 if same_machine() else 1e-3))
    assert not measured, "\n".join(measured[:10])


def weights(run):
    """The weights of the last checkpoint."""
    return sorted(run.glob("checkpoints/step-*"))[-1] / "model.safetensors"


def assert_weights(old, new):
    """Bits where the files were made, elsewhere what the weights compute. (Key biases, and biases before BatchNorm,
    have no gradient but rounding, which Adam scales up: they differ between processors.)"""
    if same_machine():
        assert old.read_bytes() == new.read_bytes()
    before, after = load_file(old), load_file(new)
    assert {name: value.shape for name, value in before.items()} == {name: value.shape for name, value in after.items()}
    torch.testing.assert_close(encode(new.parent, FRAMES), encode(old.parent, FRAMES), rtol=1e-3, atol=1e-3)


def records(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A copy of the golden folder as the working directory, its data files unpacked."""
    root = tmp_path / "v010"
    shutil.copytree(GOLDEN, root)
    for path in root.rglob("*.h5.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    shutil.copytree(root / "trained" / "data", root / "interrupted" / "data")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def lpwm(capsys):
    """Calls the command line; its JSON, or its text."""

    def run(*argv):
        capsys.readouterr()
        status = main(list(argv))
        out, err = capsys.readouterr()
        assert status == 0, err[-1000:]
        return json.loads(out) if out.startswith(("{", "[")) else out

    return run


def need(world):
    if world in NEEDS:
        pytest.importorskip(NEEDS[world], reason=f"pip install 'lpwm[{world}]'")


def named(name):
    """Since 0.2.0 the paper's own Piecewise recipes have names of their own: they did not learn at their size."""
    return re.sub(r"^(piecewise-(2x2|3x3|\{zones\})(-visible)?)/", r"\1-paper/", name)


def test_recipes_keep_their_names_and_configs():
    now = {name: digest(recipe(named(name))) for name in EXPECTED["recipes"]}
    assert {name: now.get(name) for name in EXPECTED["recipes"]} == EXPECTED["recipes"]


@pytest.mark.parametrize("name", EXPECTED["grids"])
def test_named_grids_keep_their_cells(name):
    grid = read_grid(name)
    hashes = [cell.hash for cell in expand(replace(grid, recipe=named(grid.recipe)), recipe)]
    text = json.dumps(hashes, separators=(",", ":"))
    assert {"cells": len(hashes), "digest": hashlib.sha256(text.encode()).hexdigest()[:12]} == EXPECTED["grids"][name]


def test_parameter_counts(lpwm):
    assert_equal(EXPECTED["params"], lpwm("params", "--json"))


def test_the_other_golden_files_are_those_of_0_1_0():
    """Loss curves, worlds and frames: a change of the layout is no reason to make them anew."""
    for name, expected in EXPECTED["golden"].items():
        assert hashlib.sha256((TESTS / "golden" / name).read_bytes()).hexdigest() == expected, name


@pytest.mark.parametrize("name", EXPECTED["data"])
def test_data_files_are_read_as_before(name, here, lpwm):
    assert_equal(EXPECTED["data"][name]["info"], lpwm("data", "info", name, "--json"))


@pytest.mark.parametrize("name", [n for n, e in EXPECTED["data"].items() if "command" in e])
def test_the_same_command_collects_the_same_data(name, tmp_path, monkeypatch, lpwm):
    monkeypatch.chdir(tmp_path)
    entry = EXPECTED["data"][name]
    made = lpwm(*entry["command"], "--out", name, "--json")
    assert made["digest"] == entry["collected"]["digest"]
    assert_equal(entry["collected"], made)


def test_states_are_drawn_as_before(here, lpwm):
    lpwm("data", "convert", "states.h5", "converted.h5", "--add-pixels", "--size", "16")
    assert_equal(EXPECTED["data"]["states.h5"]["converted"], lpwm("data", "info", "converted.h5", "--json"))


@pytest.mark.parametrize("folder", EXPECTED["codes"])
def test_a_model_encodes_as_before(folder):
    """Runs, and a folder of save_pretrained."""
    codes = torch.tensor(EXPECTED["codes"][folder])
    torch.testing.assert_close(encode(GOLDEN / folder, FRAMES), codes, rtol=1e-4, atol=1e-6)


def test_a_sealed_checkpoint_loads():
    frames = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    for entry in RUNS.values():
        run = GOLDEN / entry["folder"]
        (checkpoint,) = run.glob("checkpoints/step-*")
        assert torch.equal(encode(checkpoint, frames), encode(run, frames))


@pytest.mark.parametrize("name", RUNS)
def test_the_same_command_finds_the_run_again_and_trains_the_same_weights(name, here, lpwm):
    """The hash in a folder's name is that of 0.1.0. A run that is trained stays as it is."""
    need(name)
    entry, golden = RUNS[name], GOLDEN / RUNS[name]["folder"]
    run = here / entry["folder"]
    result = lpwm(*entry["command"])
    assert result["run"] == entry["folder"]
    assert_equal(entry["result"], result)
    assert weights(run).read_bytes() == weights(golden).read_bytes()
    assert len(records(run)) == len(records(golden))
    shutil.rmtree(run)
    result = lpwm(*entry["command"])
    assert result["run"] == entry["folder"]
    assert_equal(entry["result"], result)
    assert_weights(weights(golden), weights(run))


@pytest.mark.parametrize("resume", ["command", "folder"])
def test_an_interrupted_run_ends_where_the_undisturbed_one_did(resume, here, lpwm):
    entry, whole = EXPECTED["interrupted"], GOLDEN / RUNS["piecewise"]["folder"]
    run = here / entry["folder"]
    steps = [r["step"] for r in records(run) if r["kind"] == "train"]
    assert 30 <= steps[-1] < 60 and len(list(run.glob("checkpoints/*"))) == 1
    again = ["train", "--resume", entry["folder"], "--device", "cpu", "--json"]
    result = lpwm(*(entry["command"] if resume == "command" else again))
    assert result["run"] == entry["folder"] and result["step"] == 60
    assert_weights(weights(whole), weights(run))
    assert_equal([r for r in records(whole) if r["kind"] != "event"], [r for r in records(run) if r["kind"] != "event"])


@pytest.mark.parametrize("name", [n for n, e in RUNS.items() if "eval" in e])
def test_an_evaluation_repeats(name, here, lpwm):
    """The same episodes, successes and latent distances; `--repeat` itself compares the successes."""
    need(name)
    entry = RUNS[name]
    stored = (here / entry["eval"]).read_text()
    before = json.loads(re.sub(r"([+-]\d+\.\d) % \[", r"\1 points [", stored))  # since 0.2 differences are in points
    after = lpwm("eval", entry["folder"], "--repeat", entry["eval"], "--device", "cpu", "--json")
    assert after.pop("repeats")["differences"] == []
    assert len(before["cells"]) == len(after["cells"]) > 0
    assert_equal(before, after)


@pytest.mark.parametrize("entry", EXPECTED["interpret"], ids=lambda e: Path(e["file"]).stem)
def test_an_interpretation_repeats(entry, here, lpwm):
    assert_equal(json.loads((here / entry["file"]).read_text()), lpwm(*entry["command"], "--out", "new.json", "--json"))


@pytest.mark.parametrize("name", EXPECTED["report"])
def test_a_report_reads_old_results(name, here, lpwm):
    """Evaluations and interpretations; the run of recordings has none, and gets a page too."""
    before = EXPECTED["report"][name]
    after = lpwm("report", RUNS[name]["folder"], "--out", "page.html", "--json")
    assert_equal(before | {"episodes": None}, after | {"episodes": None})  # cached ones are not kept here
    assert (here / "page.html").stat().st_size > 10_000


def test_a_sweep_is_read_and_stays_finished(here, lpwm):
    before = EXPECTED["sweep"]
    for cell in before["status"]["cells"]:
        cell["steps"] = 10  # since 0.2 a cell says how long its training is
    assert_equal(before["status"], lpwm("sweep", "status", "sweeps/small", "--json"))
    made = {p: p.stat().st_mtime_ns for p in (here / "sweeps").rglob("*.safetensors")}
    again = lpwm("sweep", "small.toml", "--out", "sweeps", "--workers", "1", "--device", "cpu", "--json")
    assert_equal(before["status"], again)
    assert made == {p: p.stat().st_mtime_ns for p in (here / "sweeps").rglob("*.safetensors")}
    report, old = lpwm("report", "sweeps/small", "--out", "page.html", "--json"), before["report"]
    assert (report["cells"], report["finished"]) == (old["cells"], old["finished"])
    for setting, cell in zip(report["settings"], old["best"], strict=True):  # best cells are the study's (results/)
        numbers = {name: rate.pop("estimate") for name, rate in setting["success"].items()}
        assert_equal({name: rate.pop("rate") for name, rate in cell["success"].items()}, numbers)
        assert all(rate.pop("level") == 0.95 for rate in setting["success"].values())
        assert_equal(cell["success"], setting["success"])
        assert_equal([cell["reported_on"], cell["active_fraction"]], [setting["seeds"], setting["active"]])
