"""Every snippet of docs/statistics.md runs, in order, and prints what the page says it prints."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"


def test_snippets_print_what_the_page_shows():
    text = PAGE.read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", text, re.DOTALL)
    assert len(snippets) >= 6
    names: dict[str, object] = {}
    for code, shown in snippets:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, PAGE.name, "exec"), names)
        assert out.getvalue() == shown
