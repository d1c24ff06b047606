"""Every command and snippet of docs/theory.md runs, in order, and prints what the page says it prints."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from lpwm import cli

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def test_commands_run_and_snippets_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(sh|python)\n(.*?)```\n(?:```text\n(.*?)```)?", PAGE.read_text(encoding="utf-8"), re.S)
    assert [kind for kind, *_ in blocks] == ["python", "python", "sh"]
    names: dict[str, object] = {}
    for kind, code, shown in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if kind == "python":
                exec(compile(code, PAGE.name, "exec"), names)
            else:
                assert all(cli.main(shlex.split(line)[1:]) == 0 for line in code.splitlines())
        assert kind == "sh" or out.getvalue() == shown
    assert (tmp_path / "theory" / "theory-borders.png").exists()
