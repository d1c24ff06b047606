"""A run from the command line's side: made, found again, interrupted, resumed to the bit, and honest when dead."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tools import refused

from lpwm import train as runs
from lpwm.cli import main
from lpwm.core.lock import Busy, one_writer
from lpwm.recipes import METHODS, dense, tiny, with_jaccard
from lpwm.train import Run, prepare_data
from lpwm.train.distributed import Ranks
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


def test_paths_and_devices_may_be_strings(whole):
    again = Run.create(tiny(), str(whole.folder.parent), "run")
    assert again.folder == Run.open(str(whole.folder)).folder == whole.folder
    said = []
    again.train("cpu", console=False, report=said.append)
    assert "already trained" in said[0]
    longer = Run.further(str(whole.folder), 70)
    assert longer.config.train.steps == 70 and longer.folder.parent == whole.folder.parent
    refused("unknown device 'tpu'", again.train, "tpu")


def test_the_record_rebuilds_the_run(whole):
    opened = Run.open(whole.folder)
    assert opened.config == whole.config and opened.data.digest == whole.data.digest
    record = json.loads((whole.folder / "run.json").read_text())
    assert record["hash"] == whole.hash


def test_logs_hold_terms_monitors_and_held_out_errors(whole):
    rows = read_log(whole.folder, "train")
    assert [r.step for r in rows] == [10, 20, 30, 40, 50, 60]
    wanted = """loss prediction regularizer relative_error copy_error active_fraction dead_units effective_dimension
        temporal_variation action_sensitivity support_instability churn gradient_norm steps_per_second
        regularizer_excess"""
    assert set(wanted.split()) <= rows[-1].values.keys()
    floor = rows[-1].number("regularizer") - rows[-1].number("regularizer_excess")
    assert floor == pytest.approx(whole.regularizer_floor(), rel=1e-5) and floor > 0.01
    held_out = read_log(whole.folder, "val")
    assert [r.step for r in held_out] == [30, 60]
    assert len(held_out[-1].by_depth("error_depth")) == len(held_out[-1].by_depth("copy_error_depth")) == 4


def test_loaded_model_knows_its_world_and_actions(whole):
    loaded = runs.load(whole.folder)
    assert loaded.spec.name == "piecewise" and loaded.frameskip == 5 and loaded.image == 16
    assert loaded.step == 60 and not loaded.model.training
    assert loaded.stats.std[0] == pytest.approx(3**-0.5, rel=0.1)
    frame = loaded.world.render(loaded.world.sample_state(2, (0,)), loaded.image)
    assert loaded.model.encode(frame).shape == (2, 16)


@pytest.mark.parametrize("change", [dense, METHODS["relu"], with_jaccard, lambda c: c])
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
    assert [r.step for r in read_log(job.folder, "train")] == [10, 20, 30, 40, 50, 60]


def test_where_every_checkpoint_is_refused_nothing_starts_over(tmp_path, whole):
    job = trained(tiny(), tmp_path)
    (job.folder / "checkpoints" / "step-00000060" / "model.safetensors").write_bytes(b"")
    said = []
    job.train(CPU, console=False, report=said.append)  # from step 40
    assert "step-00000060" in said[0] and same(weights(job.folder), weights(whole.folder))
    for path in (job.folder / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(b"")
    log, kept = (job.folder / "log.jsonl").read_bytes(), sorted((job.folder / "checkpoints").rglob("*"))
    for _ in range(2):
        refused(r"step-00000060.*truncated.*step-00000040.*--fresh", job.train, CPU, console=False)
        assert (job.folder / "log.jsonl").read_bytes() == log
        assert sorted((job.folder / "checkpoints").rglob("*")) == kept
    job.train(CPU, console=False, fresh=True)
    assert same(weights(job.folder), weights(whole.folder))


@pytest.mark.parametrize("name", ["state.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_not_damage(whole, monkeypatch, name):
    secret, real = whole.folder / "checkpoints" / "step-00000060" / name, Path.open

    def refuse(self, *args, **options):
        if self == secret:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    refused(rf"step-00000060/{name} may not be read.*chmod", whole.train, CPU, console=False)


def lpwm(capsys, *words):
    status = main(["train", *map(str, words), "--device", "cpu", "--json"])
    said = capsys.readouterr()
    return status, json.loads(said.out) if status == 0 else said.err


def test_a_run_is_trained_further_next_to_it(tmp_path, capsys):
    steady = replace(tiny(), optim=replace(tiny().optim, schedule="constant", warmup=0.0))
    job = trained(steady, tmp_path)
    before = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file() and path.suffix != ".json"}
    status, result = lpwm(capsys, "--resume", job.folder, "--train.steps", 80)
    assert status == 0 and result["step"] == 80 and result["run"] != str(job.folder)
    assert before == {path: path.read_bytes() for path in before}
    assert [r.step for r in read_log(result["run"], "train")] == [10, 20, 30, 40, 50, 60, 70, 80]
    # The rate is constant, and everything else is a function of (seed, step): as if it had been 80 from the first.
    long = trained(replace(steady, train=replace(steady.train, steps=80)), tmp_path)
    assert same(weights(result["run"]), weights(long.folder)) and result["run"] != str(long.folder)
    start = json.loads((Path(result["run"]) / "run.json").read_text())["start"]
    assert start == {"run": job.folder.name, "hash": job.hash, "step": 60, "further": True}
    assert Path(result["run"]).name.startswith("run-from-60-")
    assert lpwm(capsys, "--resume", job.folder, "--train.steps", 80)[1]["run"] == result["run"]  # found again
    assert lpwm(capsys, "--resume", result["run"])[0] == 0
    for words, said in ((("--train.steps", 50), "has 60 steps behind it"), (("--optim.lr", 1e-3), "--weights")):
        status, error = lpwm(capsys, "--resume", job.folder, *words)
        assert status == 2 and said in error


def test_a_run_starts_from_the_weights_of_another(tmp_path, capsys, whole):
    words = ("tiny/lpwm", "--train.seed", 5, "--train.steps", 20, "--train.keep", 9, "--out", tmp_path)
    status, result = lpwm(capsys, *words, "--weights", whole.folder)
    folder = Path(result["run"])
    first = load_file(folder / "checkpoints/step-00000000/model.safetensors")
    assert status == 0 and same(first, weights(whole.folder))
    start = json.loads((folder / "run.json").read_text())["start"]
    assert start["run"] == whole.folder.name and start["step"] == 60 and start["further"] is False
    assert result["train"]["relative_error"] < lpwm(capsys, *words)[1]["train"]["relative_error"]
    shutil.rmtree(folder / "checkpoints")
    status, error = lpwm(capsys, "--resume", folder)
    assert status == 2 and "--weights" in error  # not silently from fresh ones
    status, error = lpwm(capsys, *words, "--model.latent", 24, "--weights", whole.folder)
    assert status == 2 and "different configurations" in error


def test_of_two_trainings_at_once_one_trains_and_the_other_is_told_who(tmp_path, whole):
    for trial in range(2):
        jobs, gate = [Run.create(tiny(), tmp_path / str(trial), "run") for _ in range(2)], threading.Barrier(2)

        def begin(job, gate=gate):
            gate.wait()
            job.train(CPU, console=False)

        with ThreadPoolExecutor(2) as pool:
            ends = [f.exception() for f in [pool.submit(begin, job) for job in jobs]]
        assert sorted(type(e) for e in ends if e) == [Busy] and f"a training (process {os.getpid()} on" in str(ends)
        assert [r.step for r in read_log(jobs[0].folder, "train")] == [10, 20, 30, 40, 50, 60]
        assert same(weights(jobs[0].folder), weights(whole.folder))


def test_who_was_taken_over_saves_nothing(tmp_path):
    job = Run.create(tiny(), tmp_path, "run")
    with one_writer(job.folder, "a training") as writer:
        (job.folder / ".writer" / "000009.json").write_text("{}")
        save = job.callbacks(*(job.build_model(CPU), None), job.source(CPU), Ranks(), writer).save
        with pytest.raises(Busy, match="taken over"):
            save(10, None)
    assert not (job.folder / "checkpoints").exists()


def test_a_dead_run_says_so_and_stops(tmp_path):
    config = tiny()
    config = replace(config, optim=replace(config.optim, lr=1e4, clip=0.0))
    with pytest.raises(DeadRun, match=r"finite|collapsed"):
        trained(config, tmp_path)
    told = replace(config, train=replace(config.train, stop_dead=False))
    job = trained(told, tmp_path / "told")  # goes on when told to
    assert read_log(job.folder, "event")


def test_runs_from_before_kernels_had_a_name_open(tmp_path):
    job = trained(tiny(), tmp_path)
    record = json.loads((job.folder / "run.json").read_text())
    record["config"]["train"]["kernels"] = False
    (job.folder / "run.json").write_text(json.dumps(record))
    assert Run.open(job.folder).config.train.kernels == "off"


def test_data_collected_by_0_1_0_are_found_again(tmp_path):
    """Also where a kill came after the last act of collecting: the shards are removed, and nothing is made again."""
    path = tmp_path / "piecewise-5e8ea2d80ac9.h5"  # as 0.1.0 named it
    digest, shards = prepare_data(tiny().data, tmp_path).digest, path.with_name(path.name + ".partial")
    made = path.stat().st_mtime_ns
    shards.mkdir()
    (shards / "digest").write_text(digest)
    assert prepare_data(tiny().data, tmp_path).digest == digest
    assert list(tmp_path.iterdir()) == [path] and path.stat().st_mtime_ns == made


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
        if records and records[-1].number("time") >= since:
            return records[-1].step
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
    steps = [r.step for r in read_log(killed, "train")]
    assert steps == sorted(set(steps)) and steps[-1] == 1200
