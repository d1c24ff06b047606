"""LeRobot data sets and folders of videos: as their own reader gives them, there and back, and errors."""

import json
import os
import shutil
import sys
from pathlib import Path

import films
import numpy as np
import pytest
import torch
from tools import refused

from lpwm import cli, worlds
from lpwm.core.errors import UserError
from lpwm.data import StreamedClips, collect, convert, describe, read, with_cache, write
from lpwm.data.formats import lerobot

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
csv = pytest.importorskip("pyarrow.csv")
GOLDEN = Path(__file__).parents[1] / "golden" / "lerobot"
SETS = ["v30_av1", "v30_h264", "v30_images", "v21_av1", "v21_h264", "v21_images"]
TOP, WRIST = "observation.images.top", "observation.images.wrist"


@pytest.fixture
def copy(tmp_path):
    def make(name):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        return Path(shutil.copytree(GOLDEN / name, tmp_path / name))

    return make


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "wall.h5"
    collect(worlds.make("wall"), path, episodes=6, steps=20, pixels=True, size=64)
    return path


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("camera", ["top", WRIST])
def test_equal_to_what_its_own_reader_gives(name, camera):
    theirs, data = np.load(GOLDEN / f"{name}.npz"), read(GOLDEN / name, camera=camera)
    data.pixels.check()
    rows = len(theirs["state"])
    inside = ~np.isin(np.arange(rows), np.cumsum(theirs["lengths"]) - 1)
    assert data.lengths.tolist() == theirs["lengths"].tolist() == [9, 6, 11]
    np.testing.assert_array_equal(data.states, theirs["state"])
    np.testing.assert_array_equal(data.actions[inside], theirs["action"][inside])
    assert torch.isnan(data.actions[~inside]).all()
    np.testing.assert_array_equal(data.extra["next.reward"], theirs["reward"])
    tasks = json.loads(data.attributes["tasks"])
    assert [tasks[i] for i in data.extra["task_index"]] == theirs["tasks"].tolist()
    frames = data.pixels[0:rows]
    np.testing.assert_array_equal(frames[theirs["rows"]], theirs[TOP if camera == "top" else WRIST])
    assert len(np.unique(frames.reshape(rows, -1), axis=0)) == rows  # every frame is its own


def test_cameras_are_chosen_by_name_and_are_different_data():
    digests = {read(GOLDEN / "v30_h264", camera=camera).digest for camera in ("top", "wrist")}
    assert len(digests) == 2 and digests == {read(GOLDEN / "v21_av1", camera=c).digest for c in ("top", "wrist")}
    for camera in (None, "left", "images.top"):
        refused(rf"(?=.*{TOP})(?=.*{WRIST})", read, GOLDEN / "v30_h264", camera=camera)
    assert read(GOLDEN / "v30_h264", pixels=False).pixels is None
    assert cli.main(["data", "info", str(GOLDEN / "v30_h264")]) == 2


def test_statistics():
    info = describe(GOLDEN / "v21_images", camera="top")
    assert list(info["action"]) == ["dx", "dy"] and list(info["state"]) == ["x", "y", "grip"]
    assert info["pixels"] == [64, 64, 3] and info["episodes"] == 3 and info["bytes"] > 10_000


@pytest.mark.parametrize("kind", ["h264", "av1", "images"])
def test_there_and_back(kind, ours, tmp_path):
    a, line = read(ours), ["data", "convert", str(ours), str(tmp_path / "set"), "--lerobot", kind, "--fps", "30"]
    assert cli.main(line) == 0
    b = read(tmp_path / "set")
    assert torch.equal(a.states, b.states) and torch.equal(a.lengths, b.lengths) and a.spec == b.spec
    np.testing.assert_array_equal(a.actions, b.actions)
    np.testing.assert_array_equal(a.extra["proprio"][0:126], b.extra["proprio"])
    assert b.attributes["fps"] == 30 and b.attributes["policy"] == a.attributes["policy"]
    off = np.abs(a.pixels[0:126].astype(int) - b.pixels[0:126]).mean()
    assert off == 0 if kind == "images" else off < 3
    convert(tmp_path / "set", tmp_path / "back.h5")
    c = read(tmp_path / "back.h5")
    np.testing.assert_array_equal(c.pixels[0:126], b.pixels[0:126])
    np.testing.assert_array_equal(c.actions, a.actions)
    refused("exists", convert, ours, tmp_path / "set", lerobot=kind)
    convert(ours, tmp_path / "set", lerobot="images", overwrite=True, remove_pixels=True)
    assert read(tmp_path / "set").pixels is None and not list(tmp_path.glob(".*"))


def test_a_long_data_set_takes_several_files(ours, tmp_path, monkeypatch):
    from lpwm.data.formats import lerobot_writer

    monkeypatch.setattr(lerobot_writer, "_EPISODES", 2)
    monkeypatch.setattr(lerobot_writer, "_CHUNK", 2)
    convert(ours, tmp_path / "set", lerobot="h264")
    names = ["chunk-000/file-000", "chunk-000/file-001", "chunk-001/file-000"]
    for kind, end in (("data", ".parquet"), ("videos/observation.images.pixels", ".mp4")):
        files = sorted((tmp_path / "set" / kind).rglob("*" + end))
        assert files == [tmp_path / "set" / kind / (name + end) for name in names]
    a, b = read(ours), read(tmp_path / "set")
    assert torch.equal(a.states, b.states)
    assert np.abs(a.pixels[0:126].astype(int) - b.pixels[0:126]).mean() < 3


def test_a_split_of_its_makers_is_kept(copy):
    folder = copy("v21_h264")
    info = folder / "meta/info.json"
    info.write_text(info.read_text().replace('"train": "0:3"', '"train": "0:2", "val": "2:3"'))
    assert read(folder, camera="top").held_out.tolist() == [2]
    info.write_text(info.read_text().replace("2:3", "7:9"))
    refused("held-out split", read, folder, camera="top")


DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
VIDEO, INFO = f"videos/{TOP}/chunk-000/file-000.mp4", "meta/info.json"


def edit_table(path, change):
    table = pq.read_table(path).to_pydict()
    change(table)
    pq.write_table(pa.table(table), path)


def set_cell(where, column, row, value):
    return lambda folder: edit_table(folder / where, lambda t: t[column].__setitem__(row, value))


def film(frames, **options):
    def replace(folder):
        (folder / VIDEO).unlink()
        films.write_film(folder / VIDEO, [films.picture(0, t, 64) for t in range(frames)], 2, **options)

    return replace


def pipe(folder):
    (folder / VIDEO).unlink()
    os.mkfifo(folder / VIDEO)


def described(**changes):
    def change(folder):
        info = json.loads((folder / INFO).read_text())
        (folder / INFO).write_text(json.dumps(info | changes))

    return change


FAULTS = {
    "20 frames for 26": film(20),
    "25 frames per second": film(26, rate=25),
    "file-000.mp4 does not exist": lambda folder: (folder / VIDEO).unlink(),
    "not a regular file": pipe,
    "'state' is not finite inside episode 1": set_cell(DATA, "observation.state", 12, [1.0, float("nan"), 0.0]),
    "'action' differ in length": set_cell(DATA, "action", 12, None),
    "file-000.parquet does not exist": lambda folder: (folder / DATA).unlink(),
    "damaged or incomplete": lambda folder: (folder / DATA).write_bytes((folder / DATA).read_bytes()[:-20]),
    "25 rows": lambda folder: edit_table(folder / DATA, lambda t: [t[name].pop() for name in t]),
    "holds no table": lambda folder: (folder / EPISODES).unlink(),
    "does not count them": set_cell(EPISODES, "length", 0, -1),
    "does not say where camera": set_cell(EPISODES, f"videos/{TOP}/from_timestamp", 0, float("inf")),
    "info.json is not JSON": lambda folder: (folder / INFO).write_text('{"codebase_version": "v3.0", "fps": '),
    "info.json is nested deeper": lambda folder: (folder / INFO).write_text("[" * 100_000),
    "version v9.9: v2.0, v2.1, v3.0 can be read": described(codebase_version="v9.9"),
    "no description of a LeRobot data set": described(fps=None),
    "leads outside": described(data_path="../../{chunk_index}/{file_index}.parquet"),
    ".parquet does not exist": described(data_path="{file_index.__class__}.parquet"),
    "no column 'action'": described(features={TOP: {"dtype": "video", "shape": [64, 64, 3], "names": None}}),
    "no description": described(features=[1, 2]),
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_is_wrong_is_one_sentence(words, copy, tmp_path):
    folder = copy("v30_h264")
    FAULTS[words](folder)
    with pytest.raises(UserError) as caught:
        convert(folder, tmp_path / "out.h5", camera="top")
    assert words in str(caught.value) and "\n" not in str(caught.value) and not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("name", ["v30_h264", "v30_images", "v21_av1"])
def test_random_damage_is_one_sentence_or_harmless(name, copy):
    g = np.random.default_rng(0)
    for _ in range(25):
        folder = copy(name)
        files = sorted(p for p in folder.rglob("*") if p.is_file() and "stats" not in p.name and WRIST not in str(p))
        path = files[g.integers(len(files))]
        content = bytearray(path.read_bytes())
        for at in g.integers(len(content), size=g.integers(1, 9)):
            content[at] = g.integers(256)
        path.write_bytes(content[: g.integers(1, len(content))] if g.random() < 0.3 else content)
        try:
            data = read(folder, camera="top")
            data.pixels.check()
            assert data.pixels[0 : len(data.states)].shape[0] == len(data.states)
        except UserError as error:
            assert "\n" not in str(error)


def test_more_rows_than_memory_are_refused_before_they_are_read(tmp_path, copy, monkeypatch):
    monkeypatch.setattr("lpwm.core.memory.free_bytes", lambda device=None: 1000)
    refused("more than half of the", read, copy("v30_h264"), camera="top")


def test_pictures_that_are_none(copy):
    folder = copy("v30_images")
    path = folder / "data/chunk-000/file-000.parquet"
    edit_table(path, lambda t: t[TOP].__setitem__(3, {"bytes": b"no picture", "path": None}))
    with pytest.raises(UserError, match="row 3 is no picture"):
        read(folder, camera="top").pixels[0:9]


def test_without_the_packages_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(r"pip install 'lpwm\[lerobot\]'", read, GOLDEN / "v30_h264", camera="top")


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def download(name, repo_type, allow_patterns):
        calls.append((name, repo_type, *allow_patterns))
        if name != "them/robot":
            raise OSError("no network")
        return str(GOLDEN / "v30_h264")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert read("them/robot", camera="top").episodes == 3
    assert calls[-1][1:] == ("dataset", "meta/*", "data/*", f"videos/*{TOP}/*")
    refused(r"Hub does not give a data set", read, "them/other")
    for name in ("them/robot.h5", "one.h5", "a/b/c"):  # files, rather
        refused("does not exist", read, name)
    assert len(calls) == 3 and lerobot.from_hub(tmp_path, None) is None


def test_the_cache_is_keyed_movable_and_whole(copy, tmp_path):
    data = read(copy("v30_h264"), camera="top")
    kept = with_cache(data, tmp_path / "cache", 32)
    assert kept.pixels.shape == (26, 32, 32, 3) and kept.digest == data.digest and kept.pixels.slow
    options = {"clip_length": 3, "frameskip": 1, "batch": 4, "image_size": 32, "workers": 1}
    plain, fast = StreamedClips(data, **options), StreamedClips(kept, **options)
    for step in range(3):
        assert torch.equal(plain.batch(step).pixels, fast.batch(step).pixels)
    plain.close()
    fast.close()
    made = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    assert len(made) == 1  # no lock, nothing half written
    (tmp_path / "v30_h264").rename(tmp_path / "elsewhere")
    (tmp_path / "cache").rename(tmp_path / "cache2")
    moved = read(tmp_path / "elsewhere", camera="top")
    again = with_cache(moved, tmp_path / "cache2", 32)
    assert [p.stat().st_mtime_ns for p in (tmp_path / "cache2").iterdir()] == list(made.values())
    assert again.pixels.shape == kept.pixels.shape
    with_cache(moved, tmp_path / "cache2", 16)
    os.utime(tmp_path / f"elsewhere/videos/{TOP}/chunk-000/file-000.mp4", (1, 1))  # another file, as far as is known
    with_cache(read(tmp_path / "elsewhere", camera="top"), tmp_path / "cache2", 16)
    assert len(list((tmp_path / "cache2").iterdir())) == 3
    for path in (tmp_path / "cache2").iterdir():
        path.write_bytes(path.read_bytes()[:200])
    refused("delete it", with_cache, moved, tmp_path / "cache2", 16)


def videos(folder, kinds=("csv", "parquet", "csv")):
    folder.mkdir()
    g = np.random.default_rng(0)
    for e, kind in enumerate(kinds):
        n = 12 + e
        films.write_film(folder / f"take{9 + e}.mp4", [films.picture(e, t) for t in range(n)])
        columns = {
            "action_x": g.normal(size=n),
            "action_y": np.arange(n) * 1.0,
            "state.0": np.arange(n),
            "force": np.ones(n),
        }
        table = pa.table({"t": [f"{t} s" for t in range(n)], **columns})
        if kind == "csv":
            csv.write_csv(table, folder / f"take{9 + e}.csv")
        else:
            pq.write_table(table, folder / f"take{9 + e}.parquet")
    return folder


def test_a_folder_of_videos_with_tables(tmp_path):
    data = read(videos(tmp_path / "takes"))
    assert data.lengths.tolist() == [12, 13, 14] and data.pixels.shape == (39, 32, 32, 3)
    assert data.actions.shape[1] == 2 and data.states[:, 0].tolist() == [*range(12), *range(13), *range(14)]
    assert list(data.extra) == ["force"] and torch.isnan(data.actions[[11, 24, 38]]).all()
    seen = [films.read_back(frame) for frame in data.pixels[0:39]]
    assert seen == [(e, t) for e in range(3) for t in range(12 + e)]  # take9 before take10
    convert(tmp_path / "takes", tmp_path / "set", lerobot="h264")
    assert torch.equal(read(tmp_path / "set").states, data.states)
    assert describe(tmp_path / "takes")["episodes"] == 3


def test_what_is_wrong_with_a_folder_of_videos(tmp_path):
    folder = videos(tmp_path / "takes")
    table = (folder / "take9.csv").read_text()
    for text, match in (
        (table + "\n".join(["1 s,1,1,1,1"] * 5) + "\n", "take9.mp4 has 12 frames for 17"),
        (table.replace("\n", "\nx,y\n", 1), "take9.csv is damaged"),
        (table.replace("action_x", "force_x").replace("action_y", "force_y"), "other columns"),
        (table.splitlines()[0] + "\n", r"take9\.csv"),
        (table.replace('"3 s",', '"3 s",nan,3,3,1\n"3 s",', 1), "'action' is not finite inside episode 0"),
        ("", r"take9\.csv is damaged"),
        (
            table.replace('"3 s",', '"3 s",left,3,3,1\n"3 s",', 1),
            "'action_x' holds string, expected numbers: fix or rename",
        ),
    ):
        (folder / "take9.csv").write_text(text)
        refused(match, convert, folder, tmp_path / "out.h5")
    (folder / "take9.csv").unlink()
    refused(r"take9\.csv or take9\.parquet next to it", read, folder)


def test_frames_that_mp4_cannot_hold(tmp_path):
    episode = {"pixels": np.zeros((5, 9, 8, 3), np.uint8), "action": np.zeros((4, 2))}
    write(tmp_path / "odd.h5", [episode] * 2)
    refused("even sides", convert, tmp_path / "odd.h5", tmp_path / "set", lerobot="h264")
    refused("frames per second", convert, tmp_path / "odd.h5", tmp_path / "set", lerobot="images", fps=-3)
    write(tmp_path / "tiny.h5", [{**episode, "pixels": np.zeros((5, 2, 2, 3), np.uint8)}] * 2)
    refused("of the encoder", convert, tmp_path / "tiny.h5", tmp_path / "set", lerobot="av1")
    assert not (tmp_path / "set").exists() and not list(tmp_path.glob(".*"))
    convert(tmp_path / "odd.h5", tmp_path / "set", lerobot="images")
    assert read(tmp_path / "set").pixels.shape == (10, 9, 8, 3)
