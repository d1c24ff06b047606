"""Every command and snippet of these pages runs, in order, and prints what the page says it prints."""

import contextlib
import glob
import io
import re
import shlex
from pathlib import Path

import pytest

from lpwm import cli

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "snippets", "pictures", "made"), [("interpretability", 4, "pictures/*.png", 4), ("theory", 1, "*", 0)]
)
def test_commands_run_and_snippets_print_what_the_page_shows(page, snippets, pictures, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(sh|python)\n(.*?)```\n(?:```text\n(.*?)```)?", text, re.DOTALL)
    assert [kind for kind, *_ in blocks].count("python") >= snippets
    names: dict[str, object] = {}
    for kind, code, shown in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if kind == "python":
                exec(compile(code, page, "exec"), names)
            else:
                for line in code.splitlines():
                    words = [w for word in shlex.split(line)[1:] for w in (sorted(glob.glob(word)) or [word])]
                    assert cli.main(words) == 0, line
        assert kind == "sh" or out.getvalue() == shown
    assert len(list(tmp_path.glob(pictures))) == made
