"""`lpwm data info` and `lpwm data convert` as typed."""

from __future__ import annotations

import json

import pytest

from lpwm import cli, worlds
from lpwm.data import collect, read


@pytest.fixture
def file(tmp_path):
    collect(worlds.make("piecewise"), tmp_path / "a.h5", episodes=8, steps=30)
    return tmp_path / "a.h5"


def test_info(file, tmp_path, capsys):
    assert cli.main(["data", "info", str(file), "--pictures", str(tmp_path / "a.png")]) == 0
    said = capsys.readouterr().out
    for expected in ("piecewise g=2", "8 of 31 frames, 240 steps", read(file).digest, "coverage", "latched"):
        assert expected in said
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert cli.main(["data", "info", str(file), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["steps"] == 240 and "dataset goals, nothing" in info["controls"]


def test_convert(file, tmp_path, capsys):
    pixels, back = tmp_path / "p.h5", tmp_path / "s.h5"
    assert cli.main(f"data convert {file} {pixels} --add-pixels --size 16".split()) == 0
    assert read(pixels).pixels.shape == (248, 16, 16, 3)
    assert cli.main(f"data convert {pixels} {back} --remove-pixels".split()) == 0
    assert read(back).digest == read(file).digest and read(file).digest in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("data info {0}/none.h5", "does not exist"),
        ("data info {0}/cut.h5", "damaged or incomplete"),
        ("data convert {0}/a.h5 {0}/x.h5 --size 32", "needs frames"),
        ("data convert {0} {0}/x.h5", "2 data sets (a.h5, cut.h5): name one"),
        ("data convert {0}/a.h5 {0}/x.h5 --add-pixels --remove-pixels", "one of --add-pixels"),
        ("data convert {0}/a.h5 {0}/x.h5 --remove-pixels", "nothing to remove"),
        ("data convert {0}/a.h5 {0}/x.h5 --add-pixels --size 3", "size is 3"),
        ("data convert {0}/a.h5 {0}/a.h5 --add-pixels", "another name"),
    ],
)
def test_mistakes_are_one_sentence(file, tmp_path, capsys, line, match):
    (tmp_path / "cut.h5").write_bytes(file.read_bytes()[:3000])
    assert cli.main(line.format(tmp_path).split()) == 2
    said = capsys.readouterr().err
    assert match in said and said.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "cut.h5"]
