"""The snippets of docs/interop.md run, in order, and print what the page says."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"


def test_the_pages_snippets():
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    names: dict = {}
    ran, printed = 0, ""
    for kind, text in blocks:
        if kind == "python" or (kind == "python swm" and importlib.util.find_spec("stable_worldmodel")):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, str(PAGE), "exec"), names)
            ran, printed = ran + 1, out.getvalue()
        elif kind == "":
            assert printed == text
    assert ran >= 2
