"""Frames of mp4 files: the one that was asked for, from any place, or one sentence."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from lpwm.core.errors import UserError
from lpwm.data.frames import open_reader
from lpwm.data.frames.video import VideoFrames

spec = importlib.util.spec_from_file_location("films", Path(__file__).parent / "films.py")
films = importlib.util.module_from_spec(spec)
spec.loader.exec_module(films)
picture, read_back, write_film = films.picture, films.read_back, films.write_film


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
        with pytest.raises(UserError, match=match):
            VideoFrames(files, np.array([length] * len(files))).check()
    whole = path.read_bytes()
    for keep in (0.1, 0.6, 0.95):
        path.write_bytes(whole[: int(keep * len(whole))])
        with pytest.raises(UserError) as caught:
            VideoFrames([path], np.array([20]))[0:20]
        assert "\n" not in str(caught.value)


def test_without_a_decoder_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"pip install 'lpwm\[video\]'"):
        VideoFrames([tmp_path / "a.mp4"], np.array([3])).check()
