"""`lpwm collect` as typed."""

from __future__ import annotations

import json

import pytest

from lpwm import cli
from lpwm.cli.collect import parse_options
from lpwm.core.errors import UserError
from lpwm.data import read


def test_options_are_json_or_text():
    given = ("g=3", "visible=true", "scale=1.5", "name=a=b", "old=False", "xs=[1, 2]")
    expected = {"g": 3, "visible": True, "scale": 1.5, "name": "a=b", "old": False, "xs": [1, 2]}
    assert parse_options(given) == expected
    with pytest.raises(UserError, match="name=value"):
        parse_options(("g",))


def test_one_line_and_the_file(tmp_path, capsys):
    out = tmp_path / "new" / "a.h5"
    line = f"collect piecewise --episodes 4 --steps 6 --out {out} --seed 2 --pixels --size 16"
    line += " --options g=3 visible=true"
    assert cli.main(line.split()) == 0
    said = capsys.readouterr()
    data = read(out)
    assert said.out.count("\n") == 1 and data.digest in said.out and said.err == ""
    assert data.episodes == 4 and data.steps == 24 and data.pixels.shape == (28, 16, 16, 3)
    assert data.spec.options == {"g": 3, "scale": 2.0, "visible": True} and data.attributes["seed"] == 2
    assert cli.main(line.split()) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert cli.main([*line.split(), "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == data.digest


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ("piecewize", "did you mean 'piecewise'"),
        ("piecewise --size 32", "needs --pixels"),
        ("piecewise --options h=3", "no option 'h'"),
        ("piecewise --options g=three", "g as int"),
        ("piecewise --policy nobody", "unknown policy"),
        ("piecewise --workers 0", "0 workers"),
        ("piecewise --steps 0", "steps is 0"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, capsys, more, match):
    assert cli.main(["collect", *more.split(), "--episodes", "2", "--out", str(tmp_path / "a.h5")]) == 2
    said = capsys.readouterr().err
    assert match in said and said.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_no_permission_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(f"collect piecewise --episodes 2 --out {tmp_path}/file/a.h5".split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("lpwm: cannot write") and said.count("\n") == 1
