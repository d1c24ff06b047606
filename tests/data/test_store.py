"""Writing: what bare h5py finds in the file, the digest, and what is refused."""

import errno
import hashlib

import h5py
import numpy as np
import pytest
from tools import refused

from lpwm.core import files
from lpwm.data import read, write
from lpwm.data.episodes import combine, hash_column


def episode(length, seed, pixels=False):
    g = np.random.default_rng(seed)
    made = {"state": g.normal(size=(length, 3)), "action": g.normal(size=(length - 1, 2))}
    if pixels:
        made["pixels"] = g.integers(0, 256, (length, 4, 5, 3), dtype=np.uint8)
    return made


def test_a_bare_reader_finds_the_columns(tmp_path):
    given = [episode(n, n, pixels=True) for n in (4, 1, 7)]
    digest = write(tmp_path / "a.h5", given)
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["ep_len"].dtype == np.int32 and f["ep_len"][:].tolist() == [4, 1, 7]
        assert f["ep_offset"].dtype == np.int64 and f["ep_offset"][:].tolist() == [0, 4, 5]
        assert f["ep_idx"][:].tolist() == [0] * 4 + [1] + [2] * 7
        assert f["step_idx"][:].tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6]
        assert f["state"].dtype == f["action"].dtype == np.float32 and f["pixels"].dtype == np.uint8
        np.testing.assert_array_equal(f["state"][5:], given[2]["state"].astype(np.float32))
        np.testing.assert_array_equal(f["pixels"][:4], given[0]["pixels"])
        np.testing.assert_array_equal(f["action"][:3], given[0]["action"].astype(np.float32))
        nan_rows = np.isnan(f["action"][:]).all(axis=1)
        assert nan_rows.nonzero()[0].tolist() == [3, 4, 11]
        assert not np.isnan(f["action"][:][~nan_rows]).any()
        assert f.attrs["digest"].decode() == digest and f.attrs["lpwm_version"]
    back = read(tmp_path / "a.h5")
    assert back.digest == digest and back.episodes == 3 and back.steps == 9
    states, actions = back.episode(2)
    assert states.shape == (7, 3) and actions.shape == (6, 2)
    np.testing.assert_array_equal(back.pixels[4:6], np.concatenate((given[1]["pixels"], given[2]["pixels"][:1])))


def test_the_digest_is_the_formula_of_its_docstring(tmp_path):
    given = [episode(3, 0), episode(5, 1)]
    write(tmp_path / "a.h5", given)

    def h(data):
        return hashlib.blake2b(data, digest_size=16).digest()

    with h5py.File(tmp_path / "a.h5") as f:
        lines = []
        for name in sorted(f):
            rows = f[name][:]
            pieces = [rows] if name in ("ep_len", "ep_offset") else [rows[:3], rows[3:]]
            head = f"{name}|{rows.dtype.str}|{rows.shape[1:]}|{len(rows)}|".encode()
            column = h(head + h(b"".join(h(p.tobytes()) for p in pieces)))
            lines.append(f"{name} {column.hex()}")
        assert f.attrs["digest"].decode() == h("\n".join(lines).encode()).hex()


def test_the_digest_sees_the_contents_and_nothing_else(tmp_path):
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    base = hash_column("x", rows, np.array([5, 7]))
    changed = rows.copy()
    changed[11, 1] = np.nextafter(np.float32(23), np.float32(24))
    assert hash_column("x", np.asfortranarray(rows), np.array([5, 7])) == base
    assert hash_column("x", rows.astype(">f4"), np.array([5, 7])) == base
    others = {
        hash_column("x", changed, np.array([5, 7])),
        hash_column("y", rows, np.array([5, 7])),
        hash_column("x", rows, np.array([6, 6])),
        hash_column("x", rows.astype(np.float64), np.array([5, 7])),
        hash_column("x", rows.reshape(12, 2, 1), np.array([5, 7])),
        hash_column("x", rows.view(np.int32), np.array([5, 7])),
    }
    assert len(others) == 6 and base not in others
    assert combine({"a": "1", "b": "2"}) == combine({"b": "2", "a": "1"}) != combine({"a": "2", "b": "1"})


def spoiled(**columns):
    return {"state": np.zeros((3, 2)), "action": np.zeros((2, 2)), **columns}


BAD = {
    "no action": ({"state": np.zeros((3, 2))}, "no 'action'"),
    "no state": ({"action": np.zeros((2, 2))}, "neither 'state' nor 'pixels'"),
    "too few actions": (spoiled(state=np.zeros((5, 2)), action=np.zeros((3, 2))), "5 frames and actions of shape"),
    "flat actions": (spoiled(action=np.zeros(2)), "actions of shape"),
    "nan state": (spoiled(state=np.full((3, 2), np.nan)), "finite"),
    "nan action": (spoiled(action=np.full((2, 2), np.nan)), "not finite before"),
    "float pixels": (spoiled(pixels=np.zeros((3, 4, 4, 3))), "expected uint8"),
    "rows differ": (spoiled(x=np.zeros(2)), "has 2 rows"),
    "index given": (spoiled(ep_idx=np.zeros(3)), "made here"),
    "text": (spoiled(x=np.array(["a"] * 3)), "numbers"),
    "empty": (spoiled(state=np.zeros((0, 2)), action=np.zeros((0, 1))), "at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_episodes_are_refused_and_leave_no_file(tmp_path, name):
    bad, match = BAD[name]
    refused(match, write, tmp_path / "a.h5", [episode(3, 0), bad])
    assert list(tmp_path.iterdir()) == []


def test_episodes_must_be_alike_and_at_least_one(tmp_path):
    other = {"state": np.zeros((3, 4)), "action": np.zeros((2, 2))}
    refused("must be alike", write, tmp_path / "a.h5", [episode(3, 0), other])
    refused("no episode", write, tmp_path / "a.h5", [])
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_refused_and_kept(tmp_path):
    digest = write(tmp_path / "a.h5", [episode(3, 0)])
    refused("exists", write, tmp_path / "a.h5", [episode(4, 1)])
    # Replacing fails half-way: the old file stays.
    refused("not finite", write, tmp_path / "a.h5", [episode(4, 1), BAD["nan action"][0]], overwrite=True)
    assert read(tmp_path / "a.h5").digest == digest
    assert write(tmp_path / "a.h5", [episode(4, 1)], overwrite=True) != digest
    refused("is a folder", write, tmp_path, [episode(4, 1)])
    refused(r"not a (folder|directory)", write, tmp_path / "a.h5" / "below" / "b.h5", [episode(4, 1)])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_up_is_one_sentence(tmp_path, monkeypatch, code):
    """The disk takes 20,000 bytes and then no more; HDF5 never learns of it, so the process survives."""
    digest = write(tmp_path / "a.h5", [episode(3, 0)])
    really = files.Sink.write

    def full(self, data):
        if self._file.tell() > 20_000:
            self._try(_raise, code)
            return len(data)
        return really(self, data)

    monkeypatch.setattr(files.Sink, "write", full)
    refused("cannot write", write, tmp_path / "a.h5", (episode(200, i, pixels=True) for i in range(20)), overwrite=True)
    assert read(tmp_path / "a.h5").digest == digest
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def _raise(code):
    raise OSError(code, "no")
