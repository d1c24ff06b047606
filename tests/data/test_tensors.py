"""Pickles from strangers: numbers come out, or one sentence, and nothing runs."""

import pickle
import sys
import zipfile

import numpy as np
import pytest
import torch
from films import picture, read_back, write_film
from tools import Bomb, refused

from lpwm.core.errors import UserError
from lpwm.data.frames import open_reader
from lpwm.data.frames.tensors import load_numbers, load_tensor
from lpwm.data.frames.video import VideoFrames


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
    numbers = load_numbers(path)
    np.testing.assert_array_equal(numbers, np.asarray(values))
    assert numbers.shape == np.asarray(values).shape


def hostile(mark):
    """Ways to have something done while being read."""
    direct = pickle.dumps(Bomb(mark))
    return {
        "reduce": direct,
        "in a list": pickle.dumps([1, 2, Bomb(mark)]),
        "in an array": pickle.dumps(np.array([Bomb(mark)], dtype=object)),
        "protocol 0": pickle.dumps(Bomb(mark), protocol=0),
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
    refused("does not exist", load_numbers, tmp_path / "none.pkl")


def test_tensors(tmp_path):
    path = tmp_path / "t.pth"
    for legacy in (False, True):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
            whole = torch.arange(12).view(3, 4).to(dtype)
            for tensor in (whole, whole[1:, 2:], whole.T, whole[0, 0], whole[:1].expand(3, 4)):
                torch.save(tensor, path, _use_new_zipfile_serialization=not legacy)
                made = load_tensor(path)
                assert torch.equal(made, tensor) and made.dtype == dtype


@pytest.mark.parametrize("legacy", [False, True])
def test_a_hostile_tensor_file_is_refused_and_does_not_run(tmp_path, legacy):
    path, mark = tmp_path / "states.pth", tmp_path / "ran"
    torch.save(Bomb(mark), path, _use_new_zipfile_serialization=not legacy)
    refused("nothing in it was executed", load_tensor, path)
    assert not mark.exists()


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
        refused("one tensor of numbers", load_tensor, path)
    torch.save(torch.zeros(1).expand(10**9), path)  # a small file that claims four gigabytes
    refused("does not hold", load_tensor, path)


def archive(path, pickled, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("a/data.pkl", pickled)
        file.writestr("a/data/0", bytes(8))


def test_a_pickle_that_claims_much_ends(tmp_path):
    """Lists that hold one another, a memo of four billion entries, a buffer that is a number of bytes; a key whose hash
    takes for ever; a pickle that unpacks to far more than it is; a tensor that reaches beyond its numbers."""
    key = b")" + b"\x94h\x00\x86" + b"".join(b"\x94h%c\x86" % i for i in range(1, 60))
    for number, data in enumerate((b"\x80\x04}" + key + b"Ns.", b"\x80\x04(" + key + b"\x91.")):
        (tmp_path / "bomb.pkl").write_bytes(data)
        refused("something else than numbers", load_numbers, tmp_path / "bomb.pkl")
        archive(tmp_path / f"{number}.pth", data)
        refused("something else than numbers", load_tensor, tmp_path / f"{number}.pth")
    archive(tmp_path / "bomb.pth", b"\x80\x02ccollections\nOrderedDict\n(](" + key + b"Nteet\x85R.")
    refused("is not one tensor", load_tensor, tmp_path / "bomb.pth")
    archive(tmp_path / "bomb.pth", b"N" * 10**6 + b".", compression=zipfile.ZIP_DEFLATED)
    refused("compressed", load_tensor, tmp_path / "bomb.pth")
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu"
    )
    for rest in (
        b"K\x02tQK\x01K\x02\x85K\x01\x85",
        b"K\x02tQK\x00K\x02\x85K\x02\x85",
        b"K\x03tQK\x00K\x02\x85K\x01\x85",
    ):
        archive(tmp_path / "bomb.pth", b"\x80\x02" + tensor + rest + b"tR.")
        refused("claims", load_tensor, tmp_path / "bomb.pth")
    archive(tmp_path / "good.pth", b"\x80\x02" + tensor + b"K\x02tQK\x00K\x02\x85K\x01\x85tR.")
    assert load_tensor(tmp_path / "good.pth").tolist() == [0, 0]
    value = 1
    for _ in range(60):
        value = [value, value]
    memo = b"\x80\x02K\x01r\xff\xff\xff\xff."
    buffer = b"cnumpy._core.numeric\n_frombuffer\n(J\xff\xff\xff\x7fcnumpy\ndtype\n(S'u1'\ntR(K\x01tS'C'\ntR."
    for data in (pickle.dumps(value), buffer):
        (tmp_path / "bomb.pkl").write_bytes(data)
        refused("not a list of numbers|nothing in it was executed", load_numbers, tmp_path / "bomb.pkl")
    (tmp_path / "bomb.pkl").write_bytes(memo)
    assert load_numbers(tmp_path / "bomb.pkl") == 1


@pytest.mark.parametrize("key_every", [1, 12, 250])
def test_every_frame_from_everywhere(tmp_path, key_every):
    lengths, files = np.array([40, 25, 60]), []
    for e, n in enumerate(lengths):
        files.append(tmp_path / f"{e}.mp4")
        write_film(files[-1], [picture(e, t) for t in range(n + e)], key_every)  # more than used is no harm
    frames = VideoFrames(files, lengths)
    frames.check()
    assert frames.shape == (125, 32, 32, 3)
    expected = [(e, t) for e, n in enumerate(lengths) for t in range(n)]
    assert [read_back(f) for f in frames[0:125]] == expected
    reader = open_reader(frames.where)
    for rows in ([124, 3, 3, 77, 12], [64], [39, 40], list(range(30, 60, 5))):
        got = dict(reader(np.array(rows)))
        assert [read_back(got[i]) for i in range(len(rows))] == [expected[r] for r in rows]
    reader.close()


def test_what_is_wrong_with_a_film_is_one_sentence(tmp_path):
    path = tmp_path / "a.mp4"
    write_film(path, [picture(0, t) for t in range(20)])
    with pytest.raises(UserError, match="20 frames for 30 states"):
        VideoFrames([path], np.array([30]))[0:30]
    text, large = tmp_path / "b.mp4", tmp_path / "c.mp4"
    text.write_bytes(b"no film at all")
    write_film(large, [picture(0, t, 48) for t in range(20)])
    for files, length, match in (
        ([path], 30, "20 frames for 30 states"),
        ([tmp_path / "none.mp4"], 3, "does not exist"),
        ([path, large], 20, "48×48"),
        ([path, text], 20, r"b\.mp4 is no video"),
    ):
        refused(match, VideoFrames(files, np.array([length] * len(files))).check)
    whole = path.read_bytes()
    for keep in (0.1, 0.6, 0.95):
        path.write_bytes(whole[: int(keep * len(whole))])
        with pytest.raises(UserError) as caught:
            VideoFrames([path], np.array([20]))[0:20]
        assert "\n" not in str(caught.value)


def test_without_a_decoder_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    refused(r"pip install 'lpwm\[video\]'", VideoFrames([tmp_path / "a.mp4"], np.array([3])).check)
