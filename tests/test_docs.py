"""Python on the pages that users read runs, block after block as on the page."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/method-in-code.md", "docs/getting-started.md", "docs/planning-and-evaluation.md"]


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    assert blocks, f"{page} has no python block"
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), space)


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_notebook_runs_and_is_what_its_script_makes(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("make_notebook", ROOT / "docs" / "make_notebook.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    monkeypatch.chdir(tmp_path)
    stored = json.loads((ROOT / "docs" / "first-look.ipynb").read_text())["cells"]
    made = maker.run_cells()
    assert [c["source"] for c in made] == [c["source"] for c in stored]
    assert [len(c.get("outputs", [])) for c in made] == [len(c.get("outputs", [])) for c in stored]
