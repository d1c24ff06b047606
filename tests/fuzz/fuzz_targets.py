"""What is read: data sets, shards, runs, checkpoints, evaluations, logs, ledgers, grids, records."""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import json
import pickle
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from fuzz_harness import target

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.core.provenance import read_log, sessions
from lpwm.data import collect, read
from lpwm.data.formats import verify_frames
from lpwm.data.frames.tensors import load_numbers
from lpwm.evaluate.episodes import Record, Store, read_record
from lpwm.evaluate.results import Evaluation
from lpwm.model import WorldModel
from lpwm.recipes import recipe
from lpwm.sweep.grid import expand, read_grid
from lpwm.sweep.ledger import Ledger
from lpwm.train import Run, checkpoint
from lpwm.train.weights import read_tensors

GOLDEN = Path(__file__).parents[1] / "golden"
V010 = GOLDEN / "v010"
RUN = "tiny-lpwm-1a25d8f7562c"  # trained on recording.h5
WORLD = worlds.make("piecewise")
collecting = importlib.import_module("lpwm.data.collecting")


def plain(value: Any) -> Any:
    """Comparable with ==: arrays and tensors as bytes."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else repr(value)


def contents(path: Path, camera: str | None = None) -> Any:
    data = read(path, camera=camera)
    verify_frames(path)
    rows = slice(0, len(data.states))
    columns = {name: plain(column[rows]) for name, column in data.extra.items()}
    frames = None if data.pixels is None else plain(data.pixels[rows])
    numbers = plain([data.states, data.actions, data.lengths, data.held_out])
    return data.digest, numbers, repr(data.spec), dict(data.attributes), columns, frames


def make_hdf5(folder: Path) -> None:
    collect(WORLD, folder / "a.h5", episodes=4, steps=12, pixels=True, size=16)


@target("hdf5", make_hdf5, "a.h5", sealed=True)
def read_hdf5(folder: Path) -> Any:
    return contents(folder / "a.h5")


class Enough(Exception):
    pass


small_shards = patch.object(collecting, "SHARD", 8)


@small_shards
def make_shards(folder: Path) -> None:
    def stop(done: int) -> None:
        if done >= 24:
            raise Enough

    try:
        collect(WORLD, folder / "a.h5", episodes=32, steps=3, pixels=True, size=8, progress=stop)
    except Enough:
        return


@target("shards", make_shards, "a.h5.partial/*.h5", sealed=True)
@small_shards
def read_shards(folder: Path) -> Any:
    """Collecting goes on: what was damaged is made again."""
    place = folder.with_name("go on")
    subprocess.run(["cp", "-a", folder, place], check=True)  # pipes too
    try:
        return collect(WORLD, place / "a.h5", episodes=32, steps=3, pixels=True, size=8)
    finally:
        shutil.rmtree(place)


def make_run(folder: Path) -> None:
    shutil.copytree(V010 / "recorded" / RUN, folder / RUN)
    (folder / "recording.h5").write_bytes(gzip.decompress((V010 / "recording.h5.gz").read_bytes()))
    (folder / "data").mkdir()
    (folder / "data" / "files.json").write_text('{"recording.h5": ["../recording.h5"]}')  # where it was read first


@target("run", make_run, f"{RUN}/run.json", sealed=True)
def read_run(folder: Path) -> Any:
    run = Run.open(folder / RUN)
    data = dataclasses.replace(run.config.data, source="auto", workers=0, cache="")  # what the hash leaves out
    return repr(dataclasses.replace(run.config, data=data)), run.hash


@target("log", make_run, f"{RUN}/log.jsonl")
def read_the_log(folder: Path) -> Any:
    return repr(read_log(folder / RUN))


@target("training", make_run, f"{RUN}/training.json")
def read_sessions(folder: Path) -> Any:
    return repr(sessions(folder / RUN))


@target("checkpoint", make_run, f"{RUN}/checkpoints/*/*", sealed=True)
def read_checkpoint(folder: Path) -> Any:
    last = checkpoint.latest(folder / RUN)
    return last.step, plain(read_tensors(last.folder / "model.safetensors"))


def make_model(folder: Path) -> None:
    shutil.copytree(V010 / "pretrained", folder, dirs_exist_ok=True)


@target("pretrained", make_model, "config.json")
def read_model(folder: Path) -> Any:
    return plain(dict(WorldModel.from_pretrained(folder).state_dict()))


@target("safetensors", make_model, "*.safetensors")
def read_weights(folder: Path) -> Any:
    return plain(read_tensors(folder / "model.safetensors"))


def make_evaluation(folder: Path) -> None:
    (source,) = (V010 / "trained").glob("tiny-lpwm-*/eval/golden.json")
    shutil.copy(source, folder / "eval.json")


@target("eval", make_evaluation, "eval.json")
def read_evaluation(folder: Path) -> Any:
    evaluation = Evaluation.read(folder / "eval.json")
    evaluation.table()
    return evaluation.to_json()


def make_ledger(folder: Path) -> None:
    shutil.copytree(V010 / "sweeps" / "small" / "ledger", folder / "ledger")


@target("ledger", make_ledger, "ledger/*/*.json")
def read_ledger(folder: Path) -> Any:
    ledger = Ledger(folder / "ledger").open()
    return [
        (n, ledger.planned(n), repr(ledger.record(n)), ledger.attempts(n), ledger.status(n)) for n in ledger.names()
    ]


def make_grid(folder: Path) -> None:
    text = (V010 / "small.toml").read_text()
    (folder / "grid.toml").write_text(text)
    (folder / "grid.json").write_text(json.dumps(tomllib.loads(text)))


@target("grid", make_grid, "grid.*")
def read_the_grid(folder: Path) -> Any:
    return [cell.hash for kind in ("toml", "json") for cell in expand(read_grid(folder / f"grid.{kind}"), recipe)]


def make_record(folder: Path) -> None:
    g = np.random.default_rng(0)
    states, actions = g.normal(size=(3, 6, 2)), g.normal(size=(3, 5, 2))
    record = Record(
        ids=("a", "b", "c"),
        states_BTS=states,
        actions_BTA=actions,
        success_BT=states[:, 1:, 0] > 0,
        distance_BT=states[..., 0],
        frameskip=5,
        tested=1,
        traces={"cost": actions[..., 0]},
        wall_s=1.0,
    )
    Store(folder).record({"what": "fuzz"}, lambda: record)


@target("npz", make_record, "*.npz", sealed=True)
def read_npz(folder: Path) -> Any:
    """A damaged record is as none: the episodes are run again."""
    (path,) = folder.glob("*.npz")
    record = read_record(path)
    if record is None:
        raise UserError("made anew")
    return plain(record)


def make_wall(folder: Path) -> None:
    world = worlds.make("wall")
    (folder / "obses").mkdir()
    states = torch.stack([world.sample_state(6, ("w", i)) for i in range(3)])
    torch.save(states, folder / "states.pth")
    torch.save(torch.zeros(3, 5, 2), folder / "actions.pth")
    torch.save(torch.full((3,), 30.0), folder / "door_locations.pth")
    torch.save(torch.full((3,), 32), folder / "wall_locations.pth")
    for i in range(3):
        torch.save(world.render(states[i], 16), folder / "obses" / f"episode_{i:03d}.pth")


@target("dino-wm", make_wall, "*.pth", "obses/*.pth")
def read_wall(folder: Path) -> Any:
    return contents(folder)


def make_lengths(folder: Path) -> None:
    (folder / "array.pkl").write_bytes(pickle.dumps(np.arange(9.0)))
    (folder / "list.pkl").write_bytes(pickle.dumps([np.int64(3), 4, 5.5], protocol=2))


@target("pickle", make_lengths, "*.pkl")
def read_lengths(folder: Path) -> Any:
    return [plain(load_numbers(path)) for path in sorted(folder.glob("*.pkl"))]


def make_lerobot(name: str) -> Any:
    return lambda folder: shutil.copytree(GOLDEN / "lerobot" / name, folder, dirs_exist_ok=True)


def read_lerobot(folder: Path) -> Any:
    return contents(folder, "top")


for kind in ("v21_h264", "v21_images", "v30_av1", "v30_images"):
    videos = ("videos/*/*top/*.mp4", "videos/*top/*/*.mp4")
    target(kind, make_lerobot(kind), "meta/**/*.*", "data/**/*.*", *videos)(read_lerobot)


@target("lance", lambda folder: shutil.copytree(GOLDEN / "swm_tiny.lance", folder / "a.lance"), "a.lance/*/*")
def read_lance(folder: Path) -> Any:
    return contents(folder / "a.lance")
