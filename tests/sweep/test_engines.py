"""Engines: the same results whoever schedules, and none lost or doubled whoever dies. Slow: run by make soak."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from lpwm.cli import main
from lpwm.recipes import recipe
from lpwm.sweep import expand, status, worker
from lpwm.sweep.engines import EngineConfig
from lpwm.sweep.engines import local as engine_local
from lpwm.sweep.engines import ray as engine_ray
from lpwm.sweep.engines import slurm as engine_slurm
from lpwm.sweep.grid import parse_grid

pytestmark = pytest.mark.soak

GRID = """recipe = "tiny/{method}"
seeds = [0, 1]

[axes]
method = ["lpwm", "lewm"]

[fixed]
"train.steps" = 40
"train.log_every" = 5
"train.checkpoint_every" = 5

[eval.quick]
preset = "quick"
goals = ["random"]
episodes = 4
budgets = [25]
options = { samples = 8, elites = 2, iterations = 2 }
curve = 0
"""
LONG = GRID.replace('"train.steps" = 40', '"train.steps" = 400')


def made(root, text=GRID):
    grid = parse_grid(text, "mini")
    cells = expand(grid, recipe)
    status.create(grid, cells, root)
    return [c.hash for c in cells]


def records(root):
    return {p.stem: json.loads(p.read_text()) for p in (root / "ledger" / "cells").glob("[!.]*.json")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a single process finds, for both grids."""
    out = {}
    for text in (GRID, LONG):
        root = tmp_path_factory.mktemp("alone") / "mini"
        names = made(root, text)
        torch.set_num_threads(1)
        worker.work(root, torch.device("cpu"), names=names)
        out.update(records(root))
    return out


def check(root, names, alone):
    """Every cell done exactly once, with the result a single process finds."""
    ended = records(root)
    assert set(ended) == set(names)
    for name, record in ended.items():
        one, other = ({**r["result"], "seconds": None} for r in (record, alone[name]))
        assert one == other, name
        ends = [a.state for a in worker.ledger_of(root).attempts(name)]
        assert ends.count("done") <= 1  # 0: killed between the record and the end of its claim
    return ended


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


# Local -------------------------------------------------------------------------------------------------------


def test_local_workers_find_what_one_process_finds(tmp_path, alone):
    names = made(tmp_path)
    engine_local.run(tmp_path, names, EngineConfig(workers=2))
    ended = check(tmp_path, names, alone)
    assert len({r["pid"] for r in ended.values()}) == 2


def test_a_killed_local_worker_is_replaced(tmp_path, alone):
    names, killed = made(tmp_path, LONG), []

    def kill_once():
        running = [s for s in map(worker.ledger_of(tmp_path).status, names) if s.state == "running"]
        logs = list((tmp_path / "runs").glob("*/checkpoints/step-*"))
        if running and logs and not killed:
            killed.append(running[0])
            os.kill(running[0].claim.pid, signal.SIGKILL)

    engine_local.run(tmp_path, names, EngineConfig(workers=2), kill_once)
    ended = check(tmp_path, names, alone)
    assert killed and ended[killed[0].hash]["attempt"] == 2


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_ctrl_c_loses_nothing(engine, tmp_path, alone):
    path = tmp_path / "mini.toml"
    path.write_text(LONG)
    command = [sys.executable, "-m", "lpwm", "sweep", str(path), "--out", str(tmp_path / "out")]
    command += ["--workers", "2", "--engine", engine]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    root = tmp_path / "out" / "mini"
    wait_for(lambda: list((root / "runs").glob("*/checkpoints/step-*")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "nothing finished is lost" in said
    states = status.view(root).counts
    assert states["running"] == 0 and states["failed"] == 0 and states["waiting"] > 0
    before = records(root)
    assert main(["sweep", "status", str(root), "--once"]) == 0
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    after = check(root, list(records(root)), alone)
    assert len(after) == 4 and before.items() <= after.items()
    resumed = [a for name in after for a in worker.ledger_of(root).attempts(name) if a.state == "released"]
    assert resumed


def test_workers_stop_when_their_engine_is_killed(tmp_path):
    path = tmp_path / "mini.toml"
    path.write_text(LONG.replace("= 400", "= 100000"))
    command = [sys.executable, "-m", "lpwm", "sweep", str(path), "--out", str(tmp_path / "out"), "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    root = tmp_path / "out" / "mini"
    wait_for(lambda: (root / "sweep.json").exists() and status.view(root).counts["running"])
    process.kill()
    process.wait()
    wait_for(lambda: not status.view(root).counts["running"])


# Slurm and Ray -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "config"),
    [
        (engine_slurm, EngineConfig(workers=2, hours=0.2, slurm_options=("cluster=local",))),
        (engine_ray, EngineConfig(workers=2)),
    ],
    ids=["slurm", "ray"],
)
def test_other_engines_find_what_one_process_finds(engine, config, tmp_path, alone):
    names = made(tmp_path)
    engine.run(tmp_path, names, config)
    check(tmp_path, names, alone)


def dies_once_in_mid_write(root, name, device, threads, lease):
    """The engine's task, in a worker that is killed half-way through writing its first record."""
    import os as os_
    import signal as signal_

    from lpwm.core import files
    from lpwm.sweep.engines import ray as engine

    marker, whole = root / "killed", files._write

    def half(path, content):
        if path.parent.name == "cells":
            try:
                os_.close(os_.open(marker, os_.O_CREAT | os_.O_EXCL))
            except FileExistsError:
                return whole(path, content)
            path.write_bytes(content[:200])
            os_.kill(os_.getpid(), signal_.SIGKILL)
        return whole(path, content)

    files._write = half
    try:
        return engine.one_cell(root, name, device, threads, lease)
    finally:
        files._write = whole


def test_three_nodes_one_killed_and_a_worker_killed_in_mid_write(tmp_path, alone, monkeypatch):
    ray = engine_ray.load()
    from ray.cluster_utils import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(engine_ray, "TASK", dies_once_in_mid_write)
    names, killed = made(tmp_path, LONG), []
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        others = [cluster.add_node(num_cpus=1) for _ in range(2)]
        config = EngineConfig(address=cluster.address, lease=20.0)

        def kill_a_node():
            if not killed and list((tmp_path / "runs").glob("*/checkpoints/step-*")):
                killed.append(1)
                cluster.remove_node(others[0], allow_graceful=False)

        engine_ray.run(tmp_path, names, config, kill_a_node)
    finally:
        cluster.shutdown()
    assert killed and (tmp_path / "killed").exists()
    ended = check(tmp_path, names, alone)
    halves = list((tmp_path / "ledger" / "cells").glob(".*.tmp"))
    assert len(halves) == 1  # what the killed writer left; it is no record
    assert max(r["attempt"] for r in ended.values()) >= 2
