"""stable-worldmodel's files, made by its own writers (tests/golden/make_swm_files.py), read and converted."""

import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from tools import refused

from lpwm import cli, worlds
from lpwm.data import ResidentClips, StreamedClips, collect, convert, read

GOLDEN = Path(__file__).parents[1] / "golden"
LENGTHS = [7, 5, 9]


@pytest.mark.parametrize("name", ["swm_tiny.h5", "swm_tiny.lance"])
def test_what_its_writers_wrote(name):
    data = read(GOLDEN / name)
    rows = torch.arange(21.0)
    assert data.lengths.tolist() == LENGTHS and data.offsets.tolist() == [0, 7, 12] and data.spec is None
    torch.testing.assert_close(data.states, torch.stack((rows, rows**2, rows / 7), 1))
    last = [6, 11, 20]
    assert data.actions[last].isnan().all()
    inside = [r for r in range(21) if r not in last]
    assert torch.equal(data.actions[inside], torch.stack((rows, -rows), 1)[inside])
    assert list(data.extra) == ["proprio"] and data.extra["proprio"][3:5].ravel().tolist() == [3, 4]
    color = np.stack([10 * rows, 200 - 5 * rows, 50 + rows], 1)[:, None, None]
    tolerance = 0 if name.endswith("h5") else 4  # JPEG
    assert data.pixels.shape == (21, 16, 16, 3)
    assert np.abs(data.pixels[0:21].astype(float) - color).max() <= tolerance


def test_streamed_from_lance_as_from_memory(tmp_path):
    data, kw = read(GOLDEN / "swm_tiny.lance"), dict(clip_length=2, frameskip=2, batch=3, holdout=0.3)
    streamed, resident = StreamedClips(data, workers=2, **kw), ResidentClips(data, **kw)
    for step in range(4):
        assert torch.equal(streamed.batch(step).pixels, resident.batch(step).pixels)
    streamed.close()


def test_between_the_formats(tmp_path, capsys):
    world = worlds.make("wall")
    collect(world, tmp_path / "ours.h5", episodes=6, steps=10, pixels=True, size=32, seed=3)
    ours = read(tmp_path / "ours.h5")
    assert cli.main(["data", "convert", str(tmp_path / "ours.h5"), str(tmp_path / "t.lance")]) == 0
    table = read(tmp_path / "t.lance")
    assert table.spec == ours.spec and table.attributes["seed"] == 3 and table.attributes["policy"] == "drift"
    for name in ("states", "lengths", "offsets"):
        assert torch.equal(getattr(table, name), getattr(ours, name))
    torch.testing.assert_close(table.actions, ours.actions, rtol=0, atol=0, equal_nan=True)
    assert np.abs(table.pixels[0:66].astype(float) - ours.pixels[0:66]).mean() < 3  # JPEG at quality 95
    convert(tmp_path / "t.lance", tmp_path / "back.h5")
    back = read(tmp_path / "back.h5")
    np.testing.assert_array_equal(back.pixels[0:66], table.pixels[0:66])
    with h5py.File(tmp_path / "ours.h5") as a, h5py.File(tmp_path / "back.h5") as b:
        assert set(a) == set(b)
        np.testing.assert_array_equal(a["proprio"], b["proprio"])
    states = convert(tmp_path / "t.lance", tmp_path / "states.h5", remove_pixels=True)
    assert states == convert(tmp_path / "ours.h5", tmp_path / "plain.h5", remove_pixels=True)
    assert convert(GOLDEN / "swm_tiny.h5", tmp_path / "s.h5") == read(tmp_path / "s.h5").digest
    convert(tmp_path / "ours.h5", tmp_path / "t.lance", remove_pixels=True, overwrite=True)
    assert read(tmp_path / "t.lance").pixels is None and not list(tmp_path.glob(".*"))


def rewrite(suffix, change):
    def damage(folder):
        (file,) = folder.rglob(f"*{suffix}")
        file.write_bytes(change(file.read_bytes()))

    return damage


DAMAGE = {
    "empty": lambda folder: [shutil.rmtree(p) for p in folder.iterdir()],
    "no manifest": lambda folder: next(folder.rglob("*.manifest")).unlink(),
    "cut data": rewrite(".lance", lambda data: data[:200]),
    "zeroed data": rewrite(".lance", lambda data: bytes(len(data))),
    "garbled manifest": rewrite(".manifest", lambda data: b"\x00\xff" * 300),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_table_is_one_sentence(tmp_path, capsys, name):
    table = Path(shutil.copytree(GOLDEN / "swm_tiny.lance", tmp_path / "bad.lance"))
    DAMAGE[name](table)
    assert cli.main(["data", "convert", str(table), str(tmp_path / "o.h5")]) == 2
    said = capsys.readouterr().err
    assert "bad.lance" in said and "no Lance table that can be read" in said and said.count("\n") == 1
    assert not (tmp_path / "o.h5").exists()


def test_tables_of_others(tmp_path):
    import lance
    import pyarrow as pa

    vector = lambda values: pa.FixedSizeListArray.from_arrays(pa.array(np.float32(values)), 2)  # noqa: E731
    index, pair = pa.array([0, 0, 1, 1], pa.int32()), vector(np.arange(8))
    cases = {
        "no column 'episode_idx'": {"action": pair, "state": pair},
        "no column 'action'": {"episode_idx": index, "state": pair},
        "no column 'state'": {"episode_idx": index, "action": pair},
        "not together": {"episode_idx": pa.array([0, 1, 0, 1], pa.int32()), "action": pair, "state": pair},
        "not finite inside episode 0": {"episode_idx": index, "action": pair, "state": vector([np.nan] + [0] * 7)},
        "expected encoded pictures": {"episode_idx": index, "action": pair, "pixels": pair},
        "is no picture": {"episode_idx": index, "action": pair, "pixels": pa.array([b"x"] * 4, pa.binary())},
    }
    for match, columns in cases.items():
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.lance"
        lance.write_dataset(pa.table(columns), str(path))
        refused(match, read, path)


def test_without_lance_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    refused(r"pip install 'lpwm\[lance\]'", read, GOLDEN / "swm_tiny.lance")
