"""Files and folders appear whole or not at all, with the user's umask."""

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import h5py
import pytest
import torch

from lpwm.core import files
from lpwm.core.errors import UserError
from lpwm.core.files import new_file, put, remove, replacing, scratch, write_once, write_whole
from lpwm.train.weights import write_tensors


def write_hdf5(path):
    with new_file(path) as (file, _):
        file["x"] = [1.0, 2.0]


def write_picture(path):
    with replacing(path) as temporary:
        assert temporary.suffix == path.suffix and temporary.parent == path.parent
        temporary.write_bytes(b"picture")


WRITERS = {
    "whole.json": lambda path: write_whole(path, "text"),
    "once.json": lambda path: write_once(path, "text"),
    "data.h5": write_hdf5,
    "page.png": write_picture,
    "model.safetensors": lambda path: write_tensors(path, {"x": torch.ones(2)}),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes_follow_the_umask(tmp_path, name, umask):
    before = os.umask(umask)
    try:
        WRITERS[name](tmp_path / name)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", [n for n in WRITERS if n != "model.safetensors"])
def test_a_failed_write_leaves_nothing_new(tmp_path, name, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    path = tmp_path / name
    if name != "once.json":
        path.write_text("before")
    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(UserError, match=f"cannot write .*{name}: the disk is full"):
        WRITERS[name](path)
    left = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert left == ({} if name == "once.json" else {name: "before"})


def test_an_error_of_the_caller_is_the_caller_s(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), new_file(tmp_path / "x.h5") as (file, _):
        file["x"] = [1]
        raise FileNotFoundError("elsewhere")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("links", [True, False])
def test_the_first_of_many_writers_wins(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:  # a disk that has none
        monkeypatch.setattr(os, "link", refuse)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: write_once(tmp_path / "x", str(i)), range(64)))
    assert sum(won) == 1 and (tmp_path / "x").read_text() == str(won.index(True))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_folder_replaces_another_whole(tmp_path):
    for content in ("one", "two"):
        with scratch(tmp_path, "model") as temporary:
            (temporary / "file").write_text(content)
            put(temporary, tmp_path / "model")
        assert [p.name for p in tmp_path.iterdir()] == ["model"]
        assert (tmp_path / "model" / "file").read_text() == content
    with scratch(tmp_path, "model") as one, scratch(tmp_path, "model") as other:  # as a killed process's of the same id
        assert one != other
    with pytest.raises(RuntimeError), scratch(tmp_path, "model") as temporary:
        raise RuntimeError
    remove(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"), [("none", "does not exist"), ("", "not a regular file"), ("n" * 300, "too long")]
)
def test_what_is_no_file_to_read_is_one_sentence(tmp_path, name, said):
    with pytest.raises(UserError, match=said):
        files.regular(tmp_path / name)


def test_hdf5_is_readable_by_others(tmp_path):
    write_hdf5(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["x"][:].tolist() == [1.0, 2.0]
