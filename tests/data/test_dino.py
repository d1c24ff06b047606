"""DINO-WM's folders, made in miniature: what comes out, and one sentence for what is wrong."""

import json
import pickle
import shutil
from pathlib import Path

import films
import numpy as np
import pytest
import torch
from tools import Bomb, refused

from lpwm import cli, worlds
from lpwm.data import ResidentClips, StreamedClips, convert, read, splits

LENGTHS = {"train": [30, 22, 26, 24], "val": [28, 21]}


def make_pusht(folder):
    g, number = np.random.default_rng(0), 0
    for part, lengths in LENGTHS.items():
        at = folder / part
        (at / "obses").mkdir(parents=True)
        count, most = len(lengths), max(LENGTHS["train"])
        states = torch.from_numpy(g.uniform(100, 400, (count, most, 5))).float()
        for i, n in enumerate(lengths):
            states[i, n:] = torch.nan  # padding may hold anything
            frames = [films.picture(number, t) for t in range(n)]
            films.write_film(at / "obses" / f"episode_{i:03d}.mp4", frames)
            number += 1
        torch.save(states, at / "states.pth")
        torch.save(torch.from_numpy(g.normal(size=(count, most, 2))).float(), at / "velocities.pth")
        torch.save(torch.from_numpy(g.normal(size=(count, most, 2)) * 20).float(), at / "rel_actions.pth")
        (at / "seq_lengths.pkl").write_bytes(pickle.dumps(lengths if part == "train" else np.array(lengths)))


def make_wall(folder, steps=12, dtype=torch.float32, actions_like_states=False):
    world = worlds.make("wall")
    (folder / "obses").mkdir(parents=True)
    states = torch.stack([world.sample_state(steps, ("w", i)) for i in range(5)])
    torch.save(states, folder / "states.pth")
    torch.save(
        torch.randn(5, steps if actions_like_states else steps - 1, 2, generator=torch.manual_seed(0)),
        folder / "actions.pth",
    )
    torch.save(torch.full((5,), 30.0), folder / "door_locations.pth")
    torch.save(torch.full((5, 1), 32), folder / "wall_locations.pth")
    for i in range(5):
        torch.save(world.render(states[i], 48).to(dtype), folder / "obses" / f"episode_{i:03d}.pth")
    return states


@pytest.fixture(scope="module")
def pusht(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dino") / "pusht_noise"
    make_pusht(folder)
    return folder


@pytest.fixture
def copy(pusht, tmp_path):
    return Path(shutil.copytree(pusht, tmp_path / "pusht_noise"))


def test_pusht(pusht):
    data = read(pusht)
    lengths = LENGTHS["train"] + LENGTHS["val"]
    assert data.lengths.tolist() == lengths and data.held_out.tolist() == [4, 5]
    assert data.states.shape == (sum(lengths), 7) and data.actions.shape == (sum(lengths), 2)
    row = 0
    for part in LENGTHS:
        raw = {n: torch.load(pusht / part / f"{n}.pth") for n in ("states", "velocities", "rel_actions")}
        for i, n in enumerate(LENGTHS[part]):
            assert torch.equal(data.states[row : row + n, :5], raw["states"][i, :n])
            assert torch.equal(data.states[row : row + n, 5:], raw["velocities"][i, :n])
            torch.testing.assert_close(data.actions[row : row + n - 1] * 100, raw["rel_actions"][i, : n - 1])
            assert data.actions[row + n - 1].isnan().all()
            row += n
    said = [films.read_back(frame) for frame in data.pixels[0 : sum(lengths)]]
    assert said == [(e, t) for e, n in enumerate(lengths) for t in range(n)]


def test_its_val_is_the_held_out_set(pusht, tmp_path):
    data = read(pusht)
    train, held = splits(data, 0.3)  # whatever the share
    assert train.tolist() == [0, 1, 2, 3] and held.tolist() == [4, 5]
    kw = dict(clip_length=3, frameskip=5, batch=4, image_size=32)
    for split, expected in (("train", {0, 1, 2, 3}), ("val", {4, 5})):
        seen = set()
        source = ResidentClips(data, split=split, **kw)
        for step in range(source.steps_per_epoch):
            seen |= {films.read_back(f.permute(1, 2, 0).numpy())[0] for f in source.batch(step).pixels.flatten(0, 1)}
        assert seen == expected
    digest = convert(pusht, tmp_path / "p.h5")
    back = read(tmp_path / "p.h5")
    assert back.digest == digest and back.held_out.tolist() == [4, 5]
    assert torch.equal(back.states, data.states)
    torch.testing.assert_close(back.actions, data.actions, equal_nan=True)
    assert read(pusht / "train").held_out is None and read(pusht / "train").episodes == 4


def test_streamed_from_films_and_from_memory_alike(pusht):
    data, kw = read(pusht), dict(clip_length=3, frameskip=5, batch=4, image_size=16)
    resident, streamed = ResidentClips(data, **kw), StreamedClips(data, workers=2, **kw)
    for step in (0, 1, 2, 7):
        a, b = resident.batch(step), streamed.batch(step)
        assert torch.equal(a.pixels, b.pixels) and torch.equal(a.states, b.states)
    streamed.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_wall(tmp_path, dtype):
    states = make_wall(tmp_path / "wall_single", dtype=dtype, actions_like_states=dtype == torch.uint8)
    data = read(tmp_path / "wall_single")
    world = worlds.make("wall")
    assert data.spec == world.spec and data.held_out is None and data.lengths.tolist() == [12] * 5
    assert torch.equal(data.states, states.flatten(0, 1)) and data.pixels.shape == (60, 48, 48, 3)
    np.testing.assert_array_equal(data.pixels[13:15], world.render(states[1, 1:3], 48).permute(0, 2, 3, 1))


@pytest.mark.parametrize("words", ["wall_single --data.frameskip 2 --data.source streamed --data.workers 1", "pusht"])
def test_a_run_trains_on_the_folder_at_once(words, pusht, tmp_path, capsys):
    """On its frames; `--data.pixels auto` would let the world draw them."""
    make_wall(tmp_path / "wall_single")
    (tmp_path / "pusht").symlink_to(pusht)
    line = f"train tiny/lpwm --data.pixels stored --train.steps 2 --data.holdout 0.3 --data.file {tmp_path}/{words}"
    assert cli.main([*line.split(), "--device", "cpu", "--out", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2


def pickled(value):
    return lambda part: (part / "seq_lengths.pkl").write_bytes(pickle.dumps(value))


def saved(name, change):
    return lambda part: torch.save(change(torch.load(part / f"{name}.pth")), part / f"{name}.pth")


def without(name):
    return lambda part: (part / name).unlink()


def set_at(where, value):
    return lambda tensor: tensor.index_put([torch.tensor(i) for i in where], torch.tensor(value))


def short_film(part):
    films.write_film(part / "obses" / "episode_001.mp4", [films.picture(0, t) for t in range(9)])


FAULTS = {
    "hostile lengths": (lambda part: pickled([21, Bomb(part / "ran")])(part), "nothing in it was executed"),
    "hostile states": (lambda part: torch.save(Bomb(part / "ran"), part / "states.pth"), "nothing in it was executed"),
    "short film": (short_film, "9 frames for 21 states"),
    "no film": (without("obses/episode_001.mp4"), "episode_001.mp4 does not exist"),
    "no lengths": (without("seq_lengths.pkl"), "seq_lengths.pkl does not exist"),
    "no velocities": (without("velocities.pth"), "velocities.pth does not exist"),
    "few lengths": (pickled([21]), "2 lengths from 1 to 30"),
    "long lengths": (pickled([28, 99]), "2 lengths from 1 to 30"),
    "fractions": (pickled([28, 20.5]), "2 lengths from 1 to 30"),
    "flat states": (saved("states", lambda s: s[:, 0]), "float32 (2, 5), expected floats (episodes, steps, 5)"),
    "other count": (saved("rel_actions", lambda a: a[:1]), "expected floats (2, 30, 2)"),
    "nan state": (saved("states", set_at((1, 3, 2), torch.nan)), "not finite in episode 1, step 3"),
    "inf action": (saved("rel_actions", set_at((0, 7), torch.inf)), "not finite in episode 0, step 7"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_sentence_and_nothing_executed(copy, tmp_path, capsys, name):
    fault, says = FAULTS[name]
    fault(copy / "val")
    assert cli.main(["data", "convert", str(copy), str(tmp_path / "out.h5")]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert not (copy / "val" / "ran").exists() and not (tmp_path / "out.h5").exists()


def test_wall_frames_that_are_wrong(tmp_path):
    folder = tmp_path / "wall_single"
    make_wall(folder)
    path = folder / "obses" / "episode_002.pth"
    good = torch.load(path)
    for frames, match in (
        (good[:5], "5 frames for 12 states"),
        (good[0], "expected frames"),
        (good - 300, "outside 0 to 255"),
        (good * torch.nan, "outside 0 to 255"),
    ):
        torch.save(frames, path)
        refused(match, convert, folder, tmp_path / "o.h5")
    torch.save(Bomb(tmp_path / "ran"), path)
    refused("executed", convert, folder, tmp_path / "o.h5")
    assert not (tmp_path / "ran").exists()
