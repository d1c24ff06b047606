"""Reading: every way a file can be wrong is one sentence; files of others are read."""

import os
import tracemalloc
import zlib

import h5py
import numpy as np
import pytest
from tools import refused

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.data import collect, convert, read
from lpwm.data.formats import verify_frames
from lpwm.data.frames import open_reader


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("reader") / "good.h5"
    collect(worlds.make("piecewise"), path, episodes=4, steps=12, pixels=True, size=16)
    return path


def mutate(good, tmp_path, change):
    path = tmp_path / "bad.h5"
    path.write_bytes(good.read_bytes())
    with h5py.File(path, "r+") as f:
        del f.attrs["attributes_digest"]  # as in files of before 0.3, where each fault is told apart
        change(f)
    return path


def replace(name, values):
    def change(f):
        del f[name]
        f[name] = values

    return change


def assign(name, where, value):
    def change(f):
        f[name][where] = value

    return change


def drop(name):
    def change(f):
        del f[name]

    return change


CHANGES = {
    "no action": (drop("action"), "no column 'action'"),
    "no state": (drop("state"), "no column 'state'"),
    "no episodes": (lambda f: (f.__delitem__("ep_len"), f.__delitem__("ep_idx")), "no column 'ep_len'"),
    "scattered episodes": (
        lambda f: (f.__delitem__("ep_len"), f["ep_idx"].__setitem__(51, 0)),
        "rows of an episode are not together",
    ),
    "broken split": (lambda f: f.attrs.__setitem__("held_out", "[[0, 9]]"), "does not name episodes"),
    "integer action": (replace("action", np.zeros((52, 2), np.int64)), "column 'action' is int64"),
    "text state": (replace("state", np.full((52, 2), b"x")), "column 'state' is"),
    "flat state": (replace("state", np.zeros(52, np.float32)), "expected float32"),
    "short state": (replace("state", np.zeros((51, 2), np.float32)), "has 51 rows"),
    "scalar action": (replace("action", np.float32(1)), "column 'action' is"),
    "wide action": (replace("action", np.zeros((52, 3), np.float32)), "is 3 wide"),
    "float pixels": (replace("pixels", np.zeros((52, 4, 4, 3), np.float32)), "'pixels' is float32"),
    "gray pixels": (replace("pixels", np.zeros((52, 4, 4), np.uint8)), "'pixels' is uint8"),
    "short pixels": (replace("pixels", np.zeros((50, 4, 4, 3), np.uint8)), "'pixels' has 50 rows"),
    "float ep_len": (replace("ep_len", np.full(4, 13.0)), "'ep_len' is float64"),
    "long ep_len": (replace("ep_len", np.array([13, 13, 13, 14], np.int32)), "has 52 rows"),
    "zero ep_len": (replace("ep_len", np.array([26, 0, 13, 13], np.int32)), "disagree"),
    "negative ep_len": (replace("ep_len", np.array([13, 13, 13, -13], np.int32)), "disagree"),
    "shuffled offsets": (replace("ep_offset", np.array([0, 26, 13, 39])), "disagree"),
    "three offsets": (replace("ep_offset", np.array([0, 13, 26])), "disagree"),
    "no episode": (replace("ep_len", np.zeros(0, np.int32)), "holds no episode"),
    "nan action": (assign("action", 20, np.nan), "'action' is not finite inside episode 1 \\(row 20\\)"),
    "inf state": (assign("state", 38, np.inf), "'state' is not finite inside episode 2 \\(row 38\\)"),
    "nan first state": (assign("state", 0, np.nan), "episode 0"),
    "changed state": (assign("state", 5, 1.0), "does not match its digest"),
    "group for a column": (lambda f: (f.__delitem__("state"), f.create_group("state")), "no column 'state'"),
    "broken spec": (lambda f: f.attrs.__setitem__("world", "{"), "not a world's spec"),
    "other spec": (lambda f: f.attrs.__setitem__("world", '{"name": 3}'), "not a world's spec"),
    "broken digests": (lambda f: f.attrs.__setitem__("column_digests", "[]"), "digests are broken"),
    "other digest": (lambda f: f.attrs.__setitem__("digest", "00"), "digests are broken"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_one_sentence_for_each_fault(good, tmp_path, name):
    change, match = CHANGES[name]
    with pytest.raises(UserError, match=match) as caught:
        read(mutate(good, tmp_path, change))
    assert "bad.h5" in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_file_or_no_hdf5(tmp_path):
    (tmp_path / "text.h5").write_text("hello")
    os.mkfifo(tmp_path / "pipe.h5")  # opening it would wait for ever
    for name, match in (
        ("none.h5", "does not exist"),
        ("text.h5", "not an HDF5 file"),
        ("pipe.h5", "not a regular file"),
    ):
        refused(match, read, tmp_path / name)
    (tmp_path / "empty").mkdir()
    refused("is a folder", read, tmp_path / "empty")


def test_a_changed_frame_is_found_when_frames_are_verified(good, tmp_path):
    path = mutate(good, tmp_path, assign("pixels", 7, 3))
    verify_frames(good)
    read(path)
    refused("'pixels' does not match", verify_frames, path)


def test_pixels_when_asked(good, tmp_path):
    assert read(good).pixels.shape == (52, 16, 16, 3)
    assert read(good, pixels=False).pixels is None
    without = mutate(good, tmp_path, drop("pixels"))
    assert read(without).pixels is None
    refused("no pixels", read, without, pixels=True)


def test_files_of_others_need_neither_attributes_nor_indices(tmp_path):
    g = np.random.default_rng(0)
    lengths = np.array([7, 9], np.int32)
    with h5py.File(tmp_path / "foreign.h5", "w") as f:
        f["ep_len"], f["ep_offset"] = lengths, np.array([0, 7])
        f["action"] = g.normal(size=(16, 2))  # float64, and the last rows finite
        f["state"] = g.normal(size=(16, 5))
        f["env_name"] = [b"x"] * 16
        f.create_group("meta")
    data = read(tmp_path / "foreign.h5")
    assert data.spec is None and data.states.shape == (16, 5) and str(data.states.dtype) == "torch.float32"
    assert len(data.digest) == 32 and read(tmp_path / "foreign.h5").digest == data.digest


@pytest.mark.parametrize("gone", [("ep_offset",), ("ep_len", "ep_offset"), ("ep_idx", "step_idx", "ep_offset")])
def test_episodes_are_found_without_some_of_the_indices(good, tmp_path, gone):
    path = mutate(good, tmp_path, lambda f: [f.__delitem__(name) for name in gone])
    whole, data = read(good), read(path)
    assert data.lengths.tolist() == whole.lengths.tolist() == [13] * 4 and data.digest == whole.digest
    assert data.offsets.tolist() == [0, 13, 26, 39]


def test_what_only_digests_can_tell(good, tmp_path):
    """The world, the seed, a column that is not used for training; and numbers that overflow as they are used."""
    for change, match in (
        (lambda f: f.attrs.__setitem__("world", f.attrs["world"].replace(b'"g": 2', b'"g": 3')), "attributes do not"),
        (lambda f: f.attrs.__setitem__("seed", 5), "attributes do not match"),
        (assign("proprio", 5, 1.0), "'proprio' does not match"),
        (lambda f: (f.__delitem__("state"), f.__setitem__("state", np.full((52, 2), 1e300))), "'state' is not finite"),
    ):
        path = tmp_path / "changed.h5"
        path.write_bytes(good.read_bytes())
        with h5py.File(path, "r+") as f:
            change(f)
        refused(match, read, path)


@pytest.mark.parametrize("how", ["external storage", "external link", "soft link", "virtual"])
def test_nothing_outside_the_file_is_read(good, tmp_path, how):
    """A private file, and data sets that would copy it, by every road HDF5 has."""
    private, other = tmp_path / "private", tmp_path / "other.h5"
    private.write_bytes(np.arange(52 * 2, dtype=np.float32).tobytes())
    with h5py.File(other, "w") as f:
        f["secret"] = np.zeros((52, 2), np.float32)

    def lead_outside(f):
        if how == "external storage":
            f.create_dataset("secret", (52, 2), np.float32, external=[(str(private), 0, h5py.h5f.UNLIMITED)])
        elif how == "virtual":
            layout = h5py.VirtualLayout((52, 2), np.float32)
            layout[:] = h5py.VirtualSource(str(other), "secret", (52, 2))
            f.create_virtual_dataset("secret", layout)
        else:
            f.create_group("deep")["out"] = link = h5py.ExternalLink(str(other), "/secret")
            f["secret"] = link if how == "external link" else h5py.SoftLink("/deep/out")

    path = mutate(good, tmp_path, lead_outside)
    refused(r"'secret'.*(not followed|not read)", read, path)
    refused("'secret'", convert, path, tmp_path / "copy.h5")


def test_sizes_are_checked_before_anything_is_allocated(tmp_path, monkeypatch):
    def claim(path, column, shape, dtype, chunks):
        with h5py.File(path, "w") as f:
            rows = shape[0]
            f["ep_len"], f["ep_offset"] = np.array([rows]), np.array([0])
            f.create_dataset(column, shape, dtype, chunks=chunks, compression="gzip", fillvalue=0)
            for name in {"action", "state"} - {column}:
                f[name] = np.zeros((rows, 1), np.float32)

    claim(tmp_path / "rows.h5", "state", (2000, 10**7), np.float32, (1, 10**5))
    refused("claims 2000 rows", read, tmp_path / "rows.h5")
    claim(tmp_path / "frames.h5", "pixels", (2, 60000, 60000, 3), np.uint8, (1, 1000, 1000, 3))
    refused("claims 2 rows", read, tmp_path / "frames.h5")
    claim(tmp_path / "memory.h5", "state", (1000, 2), np.float32, (1000, 2))
    monkeypatch.setattr("lpwm.core.memory.free_bytes", lambda: 1000.0)
    refused("memory that are free", read, tmp_path / "memory.h5")


@pytest.mark.parametrize("size", [10**6, 10**8])
def test_a_deflated_frame_is_a_frame_at_most(good, tmp_path, size):
    """A chunk that inflates to more than its frame is damage, and is not inflated further; a large one is not read."""

    def bomb(f):
        f["pixels"].id.write_direct_chunk((3, 0, 0, 0), zlib.compress(bytes(size), 9))

    path = mutate(good, tmp_path, bomb)
    tracemalloc.start()
    with pytest.raises(UserError, match="damaged"):
        list(open_reader(read(path).pixels.where)(np.arange(8)))
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


@pytest.mark.parametrize("rows", [4, 52])
def test_chunks_of_several_frames_are_read_and_bounded_too(good, tmp_path, rows, monkeypatch):
    frames = read(good).pixels[:]

    def several(f):
        del f["pixels"]
        f.create_dataset("pixels", data=frames, chunks=(rows, 16, 16, 3), compression="gzip")

    path = mutate(good, tmp_path, several)
    shuffled = np.array([51, 3, 0, 50, 3])
    got = dict(open_reader(read(path).pixels.where)(shuffled))
    assert all((got[i] == frames[row]).all() for i, row in enumerate(shuffled))
    with h5py.File(path, "r+") as f:
        f["pixels"].id.write_direct_chunk((0, 0, 0, 0), zlib.compress(bytes(rows * 16 * 16 * 3 + 1), 9))
    with pytest.raises(UserError, match="damaged"):
        read(path).pixels[:1]
    monkeypatch.setattr("lpwm.core.memory.free_bytes", lambda: 1000.0)
    refused("memory that are free", read, path)


def test_what_hdf5_may_inflate_fits_into_memory(good, tmp_path, monkeypatch):
    """Its own filter unpacks whatever a chunk holds. An attribute's strings may all be the same one."""
    odd = mutate(good, tmp_path, lambda f: (f.__delitem__("state"), None))
    with h5py.File(odd, "r+") as f:
        state = f.create_dataset("state", (52, 2), np.float32, chunks=(52, 1), compression="gzip")
        state.id.write_direct_chunk((0, 0), zlib.compress(bytes(10**6), 9))
    many = tmp_path / "many.h5"
    with h5py.File(many, "w", libver="latest") as f:
        f.attrs.create("names", [b"a"] * 65, dtype=h5py.string_dtype())
        f["action"] = f["state"] = np.zeros((9, 2), np.float32)
        f["ep_len"], f["ep_offset"] = [9], [0]
    assert len(read(many).attributes["names"]) == 65
    monkeypatch.setattr("lpwm.core.memory.free_bytes", lambda: 1e6)
    refused("a chunk of 'state' takes", read, odd)
    monkeypatch.setattr("lpwm.core.memory.free_bytes", lambda: 120.0 * many.stat().st_size)
    refused("attribute 'names' takes", read, many)
