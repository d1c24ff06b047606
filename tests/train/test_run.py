"""A run from the command line's side: made, found again, interrupted, resumed to the bit, and honest when dead."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lpwm import train as runs
from lpwm.cli import main
from lpwm.core.errors import UserError
from lpwm.recipes import dense, relu, tiny, with_jaccard
from lpwm.train import Run, prepare_data
from lpwm.train.log import read_log
from lpwm.train.loop import DeadRun

CPU = torch.device("cpu")


def weights(folder):
    last = sorted((Path(folder) / "checkpoints").glob("step-*"))[-1]
    return {k: v.clone() for k, v in load_file(last / "model.safetensors").items()}  # load_file maps the file


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def trained(config, root, **options):
    job = Run.create(config, root, "run")
    job.train(CPU, console=False, **options)
    return job


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted tiny run that others are compared with."""
    return trained(tiny(), tmp_path_factory.mktemp("whole"))


def test_the_same_config_is_the_same_run(whole):
    again = Run.create(tiny(), whole.folder.parent, "run")
    assert again.folder == whole.folder and again.hash == whole.hash
    said = []
    again.train(CPU, console=False, report=said.append)
    assert said and "already trained to step 60" in said[0]
    assert Run.create(replace(tiny(), train=replace(tiny().train, seed=1)), whole.folder.parent).hash != whole.hash


def test_the_record_rebuilds_the_run(whole):
    opened = Run.open(whole.folder)
    assert opened.config == whole.config and opened.data.digest == whole.data.digest
    record = json.loads((whole.folder / "run.json").read_text())
    assert record["hash"] == whole.hash


def test_logs_hold_terms_monitors_and_held_out_errors(whole):
    rows = read_log(whole.folder, "train")
    assert [r["step"] for r in rows] == [10, 20, 30, 40, 50, 60]
    wanted = """loss prediction regularizer relative_error copy_error active_fraction dead_units effective_dimension
        temporal_variation action_sensitivity support_instability churn gradient_norm steps_per_second
        regularizer_excess"""
    assert set(wanted.split()) <= rows[-1].keys()
    floor = rows[-1]["regularizer"] - rows[-1]["regularizer_excess"]
    assert floor == pytest.approx(whole.regularizer_floor(), rel=1e-5) and floor > 0.01
    held_out = read_log(whole.folder, "val")
    assert [r["step"] for r in held_out] == [30, 60]
    assert len(held_out[-1]["error_depth"]) == len(held_out[-1]["copy_error_depth"]) == 4
    assert {"range_10px", "range_100px"} <= held_out[-1].keys()


def test_loaded_model_knows_its_world_and_actions(whole):
    loaded = runs.load(whole.folder)
    assert loaded.spec.name == "piecewise" and loaded.frameskip == 5 and loaded.image == 16
    assert loaded.step == 60 and not loaded.model.training
    assert loaded.stats.std[0] == pytest.approx(3**-0.5, rel=0.1)
    frame = loaded.world.render(loaded.world.sample_state(2, (0,)), loaded.image)
    assert loaded.model.encode(frame).shape == (2, 16)


@pytest.mark.parametrize("change", [dense, relu, with_jaccard, lambda c: c])
def test_resumed_from_any_checkpoint_ends_bit_equal(change, tmp_path, whole):
    config = change(tiny())
    config = replace(config, train=replace(config.train, keep=10))
    job = trained(config, tmp_path)
    final = weights(job.folder)
    for later in ("step-00000060", "step-00000040"):  # as if it had died after step 40, then after step 20
        for path in (job.folder / "checkpoints" / later).iterdir():
            path.unlink()
        (job.folder / "checkpoints" / later).rmdir()
        (job.folder / "checkpoints" / "best.json").unlink(missing_ok=True)
        job.train(CPU, console=False)
        assert same(weights(job.folder), final)
    assert [r["step"] for r in read_log(job.folder, "train")] == [10, 20, 30, 40, 50, 60]


def test_an_altered_checkpoint_is_refused_by_name_and_the_previous_one_used(tmp_path, whole):
    job = trained(tiny(), tmp_path)
    final, last = weights(job.folder), job.folder / "checkpoints" / "step-00000060"
    data = bytearray((last / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (last / "model.safetensors").write_bytes(data)
    said = []
    job.train(CPU, console=False, report=said.append)
    assert any("step-00000060" in s for s in said)
    assert same(weights(job.folder), final)


def test_a_dead_run_says_so_and_stops(tmp_path):
    config = tiny()
    config = replace(config, optim=replace(config.optim, lr=1e4, clip=0.0))
    with pytest.raises(DeadRun, match=r"finite|collapsed"):
        trained(config, tmp_path)
    told = replace(config, train=replace(config.train, stop_dead=False))
    job = trained(told, tmp_path / "told")  # goes on when told to
    assert read_log(job.folder, "event")


def test_changed_data_are_noticed(tmp_path):
    job = trained(tiny(), tmp_path)
    record = json.loads((job.folder / "run.json").read_text())
    record["data"] = "0" * 64
    (job.folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="changed"):
        Run.open(job.folder)


def test_runs_from_before_kernels_had_a_name_open(tmp_path):
    job = trained(tiny(), tmp_path)
    record = json.loads((job.folder / "run.json").read_text())
    record["config"]["train"]["kernels"] = False
    (job.folder / "run.json").write_text(json.dumps(record))
    assert Run.open(job.folder).config.train.kernels == "off"


def test_data_collected_by_0_1_0_are_found_again(tmp_path):
    prepare_data(tiny().data, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["piecewise-5e8ea2d80ac9.h5"]  # as 0.1.0 named it


def test_a_run_waits_for_data_that_another_is_collecting(tmp_path, monkeypatch):
    from lpwm.train import prepare as config

    calls, real = [], config.collect

    def busy_once(*args, **options):
        calls.append(1)
        if len(calls) == 1:
            raise config.Busy("another process is collecting")
        return real(*args, **options)

    monkeypatch.setattr(config, "collect", busy_once)
    assert config.prepare_data(tiny().data, tmp_path).episodes == 60 and len(calls) == 2


def test_command_line_trains_and_reports(tmp_path, capsys):
    status = main(["train", "tiny/lpwm", "--train.steps", "20", "--out", str(tmp_path), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0 and result["step"] == 20 and result["held_out"]["error_depth"]


def start(folder, *options):
    command = [sys.executable, "-m", "lpwm", "train", "tiny/lpwm", "--out", str(folder), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def until_logged(folder, process, seconds=120):
    """Wait until this process, not one before it, has trained long enough to log."""
    since, end = time.time(), time.time() + seconds
    while time.time() < end and process.poll() is None:
        logs = list(Path(folder).glob("*/log.jsonl"))
        records = read_log(logs[0], "train") if logs else []
        if records and records[-1]["time"] >= since:
            return records[-1]["step"]
        time.sleep(0.01)
    if process.poll() == 0:
        return None  # it had too little left to do
    raise AssertionError(f"the run logged nothing: {process.communicate()}")


def test_ctrl_c_leaves_a_resumable_run(tmp_path):
    long = ["--train.steps", "3000", "--train.checkpoint-every", "1000"]
    process = start(tmp_path, *long)
    until_logged(tmp_path, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    (folder,) = tmp_path.glob("tiny-lpwm-*")
    assert list((folder / "checkpoints").glob("step-*"))


@pytest.mark.soak
def test_killed_at_twenty_random_moments_ends_bit_equal(tmp_path):
    """kill -9 while stepping, while writing checkpoints (one in three steps), while starting: twenty times."""
    import random

    words = "--train.steps 1200 --train.checkpoint-every 3 --train.eval-every 300 --train.no-stop-dead"
    options = words.split()
    assert start(tmp_path / "whole", *options).wait(timeout=300) == 0
    (whole,) = (tmp_path / "whole").glob("tiny-lpwm-*")
    chance, kills, reached = random.Random(0), 0, []
    while True:
        process = start(tmp_path / "killed", *options)
        if kills < 20:
            if kills % 5:
                reached.append(until_logged(tmp_path / "killed", process))
            time.sleep(chance.uniform(0.0, 0.6))
            process.kill()
            kills += process.wait() == -signal.SIGKILL
            assert process.returncode == -signal.SIGKILL, "it finished before it could be killed: lengthen the run"
            continue
        assert process.wait(timeout=300) == 0
        break
    assert len(set(reached)) > 8  # it was killed all along the way, not in one place
    (killed,) = (tmp_path / "killed").glob("tiny-lpwm-*")
    assert same(weights(killed), weights(whole))
    steps = [r["step"] for r in read_log(killed, "train")]
    assert steps == sorted(set(steps)) and steps[-1] == 1200
