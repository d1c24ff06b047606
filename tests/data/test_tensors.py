"""Pickles from strangers: numbers come out, or one sentence, and nothing runs."""

from __future__ import annotations

import os
import pickle
import pickletools

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.data.frames.tensors import load_numbers, load_tensor


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 4, 1, 5],
        (2, 7),
        np.array([3, 1, 4]),
        np.array([[1.5, -2.0], [0.0, 4.0]], dtype=">f4"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        [np.int64(5), np.float32(2.5)],
        np.array([True, False]),
    ],
    ids=str,
)
def test_numbers_of_every_protocol(tmp_path, values, protocol):
    path = tmp_path / "n.pkl"
    path.write_bytes(pickle.dumps(values, protocol=protocol))
    found = load_numbers(path)
    np.testing.assert_array_equal(found, np.asarray(values))
    assert found.shape == np.asarray(values).shape


def hostile(mark):
    """Ways to have something done while being read."""
    direct = pickle.dumps(Payload(mark))
    return {
        "reduce": direct,
        "in a list": pickle.dumps([1, 2, Payload(mark)]),
        "in an array": pickle.dumps(np.array([Payload(mark)], dtype=object)),
        "protocol 0": pickle.dumps(Payload(mark), protocol=0),
        "builtins": b"cbuiltins\nexec\n(S'import os; os.mkdir(\"%s\")'\ntR." % str(mark).encode(),
        "getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nS'x'\ntR.",
        "numpy loader": b"cnumpy\nload\n(S'x'\ntR.",
        "numpy inside": b"cnumpy.testing._private.utils\nrunstring\n(S'1'\nS''\ntR.",
        "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.",
        "tensor": pickle.dumps(torch.zeros(2)),
    }


@pytest.mark.parametrize("how", list(hostile("x")))
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path, how):
    mark, path = tmp_path / "ran", tmp_path / "seq_lengths.pkl"
    path.write_bytes(hostile(mark)[how])
    with pytest.raises(UserError, match="nothing in it was executed") as caught:
        load_numbers(path)
    assert not mark.exists() and "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_the_payload_would_run(tmp_path):
    """Else the tests above show nothing."""
    pickle.loads(hostile(tmp_path / "ran")["reduce"])
    assert (tmp_path / "ran").exists()
    os.rmdir(tmp_path / "ran")
    torch.save(Payload(tmp_path / "ran"), tmp_path / "x.pth")
    torch.load(tmp_path / "x.pth", weights_only=False)
    assert (tmp_path / "ran").exists()


def test_what_is_no_list_of_numbers(tmp_path):
    path = tmp_path / "n.pkl"
    good = pickle.dumps(np.arange(40))
    cases = [b"", b"hello", good[:-5], good[:30], pickle.dumps("text"), pickle.dumps({"a": 1}), pickle.dumps(["a"])]
    cases += [pickle.dumps([[1, 2], [3]]), pickle.dumps(np.array(["a"])), pickle.dumps([1j])]
    huge = pickle.dumps(np.arange(40)).replace(pickle.dumps(40)[2:-1], pickle.dumps(41)[2:-1])
    for data in [*cases, huge]:
        path.write_bytes(data)
        with pytest.raises(UserError) as caught:
            load_numbers(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="does not exist"):
        load_numbers(tmp_path / "none.pkl")


def test_fuzzed_pickles_give_numbers_or_one_sentence(tmp_path):
    whole, g, path = (pickle.dumps([np.arange(9.0), np.float32(3)][0]), np.random.default_rng(0), tmp_path / "f.pkl")
    assert pickletools.optimize(whole)
    failed = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(int(g.integers(1, 4))):
            data[int(g.integers(len(data)))] = int(g.integers(256))
        path.write_bytes(data)
        try:
            assert load_numbers(path).dtype.kind in "fiub"
        except UserError as error:
            failed += 1
            assert "\n" not in str(error)
    assert failed > 100


def test_tensors(tmp_path):
    path = tmp_path / "t.pth"
    for legacy in (False, True):
        torch.save(torch.arange(6.0).view(2, 3), path, _use_new_zipfile_serialization=not legacy)
        assert torch.equal(load_tensor(path), torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_hostile_tensor_file_is_refused_and_does_not_run(tmp_path, legacy):
    path, mark = tmp_path / "states.pth", tmp_path / "ran"
    torch.save(Payload(mark), path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match="nothing in it was executed") as caught:
        load_tensor(path)
    assert not mark.exists() and "\n" not in str(caught.value)


def test_what_is_no_tensor_of_numbers(tmp_path):
    path = tmp_path / "states.pth"
    torch.save(torch.zeros(4), path)
    whole = path.read_bytes()
    for data in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(UserError) as caught:
            load_tensor(path)
        assert "\n" not in str(caught.value)
    for value in ([torch.zeros(2)], {"a": torch.zeros(2)}, torch.zeros(2).to_sparse(), torch.zeros(2) * 1j):
        torch.save(value, path)
        with pytest.raises(UserError, match="expected one tensor"):
            load_tensor(path)
    torch.save(torch.zeros(1).expand(10**9), path)  # a small file that claims four gigabytes
    with pytest.raises(UserError, match="does not hold"):
        load_tensor(path)


def test_a_pickle_of_shared_lists_ends(tmp_path):
    value: object = 1
    for _ in range(60):
        value = [value, value]
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match="no list of numbers"):
        load_numbers(tmp_path / "bomb.pkl")
