"""The snippets of docs/worlds-and-data.md run, in order, as one program."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

from lpwm import cli

PAGE = Path(__file__).parents[2] / "docs" / "worlds-and-data.md"


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(snippets) == 10
    page = types.ModuleType("worlds_and_data")
    monkeypatch.setitem(sys.modules, page.__name__, page)  # dataclasses look their module up
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec", dont_inherit=True), page.__dict__)
    assert {p.name for p in tmp_path.iterdir()} == {"ball.h5", "pushed.h5", "robot.h5"}


def test_its_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```\n(lpwm .*?)```", PAGE.read_text(), flags=re.S)
    assert block is not None
    for line in block[1].replace("10000", "30").splitlines():
        assert cli.main(line.split()[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "sheet.png").exists() and (tmp_path / "with-frames.h5").exists()
