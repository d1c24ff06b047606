"""lpwm sweep from outside: cells run once, dead and failed ones say so, and a page comes out."""

import json
import os
from dataclasses import replace

import pytest
import torch

from lpwm.cli import main
from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.lock import one_writer
from lpwm.recipes import recipe, tiny
from lpwm.sweep import expand, status, worker
from lpwm.sweep import worker as cells_module
from lpwm.sweep.engines import EngineConfig
from lpwm.sweep.engines import local as engine_local
from lpwm.sweep.grid import Cell, parse_grid

GRID = """recipe = "tiny/{method}"
seeds = [0, 1]
select_seeds = [0]

[axes]
method = ["lpwm", "lewm"]

[fixed]
"train.steps" = 12
"train.eval_every" = 0

[eval.quick]
preset = "quick"
goals = ["random"]
episodes = 4
budgets = [25]
options = { samples = 8, elites = 2, iterations = 2 }
curve = 0
"""
CPU = torch.device("cpu")


def here(root, names, config, watch=lambda: None):
    """The local engine's work in this process: starting others costs seconds."""
    worker.work(root, CPU, names=names)
    watch()


@pytest.fixture
def grid(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_local, "run", here)
    path = tmp_path / "mini.toml"
    path.write_text(GRID)
    return path


def sweep(grid, *more):
    return main(["sweep", str(grid), "--out", str(grid.parent / "out"), *more])


def records(root):
    return {p.stem: p.read_text() for p in (root / "ledger" / "cells").glob("*.json")}


def test_from_grid_to_page_and_never_twice(grid, capsys):
    root = grid.parent / "out" / "mini"
    assert sweep(grid) == 0
    assert "4 done" in capsys.readouterr().out
    first = records(root)
    assert len(first) == 4
    for text in first.values():
        record = json.loads(text)
        (cell,) = record["result"]["evals"]["quick"]
        assert cell["goals"] == "random" and len(cell["budgets"]["25"]["terminal"]["success"][0]) == 4
        assert set(cell["budgets"]["25"]["terminal"]["controls"]) == {"do nothing", "random actions", "oracle"}
        assert record["result"]["step"] == 12 and (root / record["files"]["run"] / "run.json").exists()
        assert json.loads((root / record["files"]["eval quick"]).read_text())["kind"] == "lpwm evaluation"
        assert record["lpwm"].startswith("0.")
    capsys.readouterr()
    with one_writer(root, "a sweep"):
        assert sweep(grid) == 0 and records(root) == first  # nothing ran, nothing changed
    assert f"is in use by a sweep (process {os.getpid()} on " in (err := capsys.readouterr().err) and "shared" in err
    grid.write_text(GRID.replace('["lpwm", "lewm"]', '["lewm"]').replace("= 12", "= 13"))
    assert sweep(grid) == 0  # a changed config is a new cell
    assert len(records(root)) == 6 and first.items() <= records(root).items()
    capsys.readouterr()
    assert main(["sweep", "status", "mini", "--out", str(grid.parent / "out"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["counts"] == {"done": 2, "running": 0, "waiting": 0, "failed": 0} and len(shown["cells"]) == 2
    assert main(["report", str(root), "--figures", str(grid.parent / "f"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["finished"] == 2 and made["figures"]
    (setting,) = made["settings"]
    ((title, success),) = setting["success"].items()
    rates = [
        json.loads(records(root)[c["hash"]])["result"]["evals"]["quick"][0]["budgets"]["25"]["terminal"]["rate"]
        for c in shown["cells"]
    ]
    assert title == "quick: random goals, H = 5, R = 5, terminal at 25 steps" and setting["seeds"] == [0, 1]
    assert success["estimate"] == pytest.approx(sum(rates) / 2) and success["unit"] == "checkpoints"
    page = (root / "report.html").read_text()
    assert "tiny/lewm (method lewm)" in page and f"{100 * sum(rates) / 2:.1f} [" in page and "<script" not in page


def test_status_finds_a_sweep_by_its_folder_its_name_or_the_folder_it_lies_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    grid = parse_grid(GRID, "mini")
    made = expand(grid, recipe)
    status.create(grid, made, tmp_path / "here" / "mini")
    status.create(grid, made[:1], tmp_path / "sweeps" / "mini")

    def shown(*args):
        code = main(["sweep", "status", *args, "--json"])
        said = capsys.readouterr()
        return len(json.loads(said.out)["cells"]) if code == 0 else said.err

    assert shown("here/mini") == shown("here") == shown("mini", "--out", "here") == 4
    assert shown(str(tmp_path / "here")) == 4
    assert shown("mini") == shown("sweeps") == 1
    status.create(grid, made[:2], tmp_path / "mini")
    assert shown("mini") == 2  # the nearer of the two
    status.create(grid, made, tmp_path / "here" / "other")
    assert "here holds 2 sweeps (mini, other): name one, as in here/mini." in shown("here")
    assert "neither gone nor sweeps/gone is a sweep" in shown("gone")
    assert f"{tmp_path / 'gone'} is not a sweep" in shown(str(tmp_path / "gone"))


def test_workers_that_cannot_start_are_not_started_for_ever(tmp_path, monkeypatch):
    grid = parse_grid(
        GRID.replace('["lpwm", "lewm"]', '["lpwm"]').replace("seeds = [0, 1]\nselect_seeds = [0]", ""), "g"
    )
    cells = expand(grid, recipe)
    status.create(grid, cells, tmp_path)
    monkeypatch.setattr(engine_local.sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="die before they take a cell"):
        engine_local.run(tmp_path, [c.hash for c in cells], EngineConfig(workers=1))
    assert status.view(tmp_path).counts["waiting"] == 1


def test_dry_run_lists_every_cell_and_starts_nothing(grid, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert sweep(grid, "--dry-run") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("tiny/") == 4 and "4 cells: about" in text and not (grid.parent / "out").exists()
    assert sweep(grid, "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["total"]["cells"] == 4 and shown["cells"][0]["cost"]["gpu_minutes"] > 0
    assert shown["total"]["cpu_minutes"] == pytest.approx(sum(c["cost"]["cpu_minutes"] for c in shown["cells"]))


def test_bad_grids_and_settings_start_nothing(grid, capsys):
    grid.write_text(GRID.replace("train.steps", "train.stpes"))
    assert sweep(grid) == 2
    assert "mini.toml, line 9: unknown field 'train.stpes'" in capsys.readouterr().err
    grid.write_text(GRID)
    assert sweep(grid, "--memory-gib", "0.0001") == 2
    assert "GiB" in capsys.readouterr().err
    assert sweep(grid, "--cpus", "0") == 2
    assert main(["sweep", "status", str(grid.parent / "nothing")]) == 2
    assert not (grid.parent / "out").exists()


def test_a_failed_cell_says_why_and_is_retried_only_when_asked(grid, capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("the planner broke")

    with monkeypatch.context() as patch:
        patch.setattr(cells_module, "evaluate", broken)
        assert sweep(grid) == 1
    out = capsys.readouterr().out
    assert out.count("RuntimeError: the planner broke") == 4 and "4 failed" in out
    assert sweep(grid) == 1 and not records(grid.parent / "out" / "mini")
    assert sweep(grid, "--retry-failed") == 0 and len(records(grid.parent / "out" / "mini")) == 4


def test_a_dead_run_is_a_result(tmp_path):
    """Its monitors stop it; the record says so, and it is not evaluated."""
    health = replace(tiny().train.health, min_dimension=1e6, grace=0.0, min_steps=1, patience=1)
    config = replace(tiny(), train=replace(tiny().train, health=health))
    evals = dict(parse_grid(GRID, "g").evals)
    cell = Cell(digest({"config": config, "evals": evals}), "dead", config, evals, {})
    result, _ = cells_module.run_cell(cell, tmp_path, CPU)
    assert "this run is dead" in result.dead and result.evals == {} and 0 < result.step < 60


def test_train_with_several_seeds_is_a_sweep_without_a_grid(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(engine_local, "run", here)
    small = ["--train.steps", "6", "--train.eval-every", "0", "--out", str(tmp_path)]
    assert main(["train", "tiny/lpwm", *small, "--seeds", "3", "5", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "2 done" in out and "seed 3" in out and "seed 5" in out
    assert len(list((tmp_path / "tiny-lpwm" / "runs").glob("tiny-lpwm-*/checkpoints/*"))) == 2
    assert main(["train", "tiny/lpwm", *small, "--seeds", "3", "--weights", "x"]) == 2
    assert "leave it out" in capsys.readouterr().err


class FakeGPU:
    """Runs of 1000 MiB that share a GPU of 20000; together they make at most `fastest` steps per second."""

    def __init__(self, monkeypatch, fastest, each=1000.0):
        self.now, self.steps, self.fastest, self.each, self.running = 0.0, {}, fastest, each, 0
        monkeypatch.setattr(engine_local, "gpu_use", lambda device: (500 + self.each * self.running, 20000.0, 60.0))
        monkeypatch.setattr(engine_local.time, "monotonic", lambda: self.now)
        self.growth = engine_local.Growth(1, 16)

    def settle(self):
        counts = []
        for _ in range(60):
            self.running = self.growth.look(dict(self.steps))
            counts.append(self.running)
            self.now += 2.0
            rate = min(self.fastest, 100.0 * self.running) / self.running
            self.steps = {str(i): self.steps.get(str(i), 0.0) + 2 * rate for i in range(self.running)}
        return sorted(set(counts))


@pytest.mark.parametrize(
    "fastest, each, counts",
    [(1e9, 1000.0, [1, 4, 15]), (110.0, 1000.0, [1, 4]), (1e9, 6000.0, [1, 2]), (1e9, 30000.0, [1])],
    ids=["until memory ends", "until it is no faster", "few fit", "one fits"],
)
def test_runs_share_a_gpu_while_that_is_faster_and_they_fit(monkeypatch, fastest, each, counts):
    gpu = FakeGPU(monkeypatch, fastest, each)
    assert gpu.settle() == counts
    told = gpu.growth.summary()
    assert f"up to {counts[-1]} runs" in told and "busy 60 %" in told and "steps/s" in told


def test_without_nvidia_smi_a_gpu_has_one_run(monkeypatch):
    monkeypatch.setattr(engine_local.subprocess, "run", lambda *a, **k: (_ for _ in ()).throw(FileNotFoundError()))
    growth = engine_local.Growth(2, 16)
    assert growth.look({"a": 5.0, "b": 5.0}) == 2 and growth.summary() == ""


def test_the_engine_adds_workers_as_the_gpu_has_room(tmp_path, monkeypatch):
    """The real loop, with workers that only wait."""
    cells = expand(parse_grid(GRID, "mini"), recipe)
    status.create(parse_grid(GRID, "mini"), cells, tmp_path)
    started = []

    class Wait:
        def __init__(self, number):
            self.number = number

        def poll(self):
            return None if len(started) < 3 else 0

        def send_signal(self, number): ...

        def wait(self, seconds): ...

    def start(root, names, config, number):
        started.append(number)
        return Wait(number)

    monkeypatch.setattr(engine_local, "gpu_count", lambda config: 1)
    monkeypatch.setattr(engine_local, "gpu_use", lambda device: (0.0, 1.0, 50.0))
    monkeypatch.setattr(engine_local.Growth, "look", lambda self, steps: 3)
    monkeypatch.setattr(engine_local, "start", start)
    clock = iter(range(10**6))
    monkeypatch.setattr(engine_local.time, "monotonic", lambda: 3.0 * next(clock))
    monkeypatch.setattr(engine_local.time, "sleep", lambda seconds: None)
    engine_local.run(tmp_path, [c.hash for c in cells], EngineConfig())
    assert started == [0, 1, 2]
