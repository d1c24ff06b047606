"""Python on the pages that users read runs, block after block as on the page."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tools import load

from lpwm import cli
from lpwm.data import read

ROOT = Path(__file__).parents[1]
NAMES = ("agent", "getting-started", "method-in-code", "planning-and-evaluation")
PAGES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]
PRINTED = ["docs/interop.md", "docs/statistics.md"]  # a block of text is what the block before it prints


@pytest.mark.parametrize("page", [*PAGES, *PRINTED])
def test_python_blocks_run(page, tmp_path, monkeypatch, capsys):
    """Those marked "python swm" where stable-worldmodel is installed."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    kinds = ["python", *(["python swm"] if importlib.util.find_spec("stable_worldmodel") else [])]
    assert sum(kind in kinds for kind, _ in blocks), f"{page} has no python block"
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "page"}
    for kind, block in blocks:
        if kind in kinds:
            capsys.readouterr()
            exec(compile(block, page, "exec"), space)
        elif kind in ("", "text") and page in PRINTED:
            assert capsys.readouterr().out == block


def test_links_between_pages_lead_somewhere():
    made = {"notebooks/first-look.md", "notebooks/own-environment.md", "results.md", "changelog.md", "config.md"}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            built = page.parent.name == "docs" and target in made  # by docs/hooks.py
            assert built or (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.soak
@pytest.mark.parametrize("name", ["first-look", "own-environment"])
def test_notebooks_run_and_are_what_their_scripts_make(name, tmp_path, monkeypatch):
    maker = load("docs/make_notebook.py")
    monkeypatch.chdir(tmp_path)
    stored = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    assert [source for _, source in maker.cells(name)] == ["".join(c["source"]) for c in stored]
    made = maker.run_cells(name)
    assert [len(c.get("outputs", [])) for c in made] == [len(c.get("outputs", [])) for c in stored]


@pytest.mark.soak
def test_the_site_builds_without_a_warning_and_loads_nothing_from_a_network(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr  # strict: a warning is an error
    pages = {p.relative_to(tmp_path / "site").as_posix(): p.read_text() for p in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "results.html", "changelog.html", "config.html", "notebooks/first-look.html"} <= set(pages)
    rows = re.findall(r"<tr>.*?</tr>", pages["config.html"], re.S)
    assert len(rows) > 100 and [r for r in rows if "<td></td>\n</tr>" in r and "its own table" not in r] == []
    for name, text in pages.items():
        worker = re.search(r'src="([^"]*worker.js)"', text)  # what the search needs on a page opened from disk
        assert worker is not None and (tmp_path / "site" / name).parent.joinpath(worker[1]).exists(), name
        assert not re.findall(r"""(?:src=|<link rel="stylesheet" href=)["']?(?:https?:)?//""", text), name


SMALLER = {
    "piecewise-2x2-small/lpwm": "tiny/lpwm --data.steps 60 --train.steps 20 --train.no-stop-dead",
    "piecewise-2x2-small/lewm": "tiny/lewm --data.steps 60 --train.steps 20 --train.no-stop-dead",
    "lpwm eval runs/piecewise-2x2-small-lpwm-*": "lpwm eval --preset quick --episodes 4 RUNS",
    "lpwm eval runs/piecewise-2x2-small-*": "lpwm eval --preset quick --episodes 4 RUNS",
    "runs/piecewise-2x2-small-lpwm-*": "RUNS",
    "runs/piecewise-2x2-small-*": "RUNS",
    "--episodes 1000": "--episodes 10",
}


def commands(page):
    for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M):
        for line in block.splitlines():
            line = line.split("#")[0].strip()
            if line.startswith("lpwm "):
                yield line


@pytest.mark.soak
@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md"])
def test_commands_do_what_they_say(page, tmp_path):
    lines = list(commands(page))
    assert len(lines) >= 5
    for line in lines:
        for large, small in SMALLER.items():
            line = line.replace(large, small)
        words = shlex.split(line)[1:]
        if "RUNS" in words:
            at = words.index("RUNS")
            words[at : at + 1] = sorted(str(p) for p in (tmp_path / "runs").glob("tiny-*"))
        done = subprocess.run([sys.executable, "-m", "lpwm", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), f"{line} printed nothing"


PAGE = ROOT / "docs" / "worlds-and-data.md"


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(snippets) == 11
    page = types.ModuleType("worlds_and_data")
    monkeypatch.setitem(sys.modules, page.__name__, page)  # dataclasses look their module up
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec", dont_inherit=True), page.__dict__)
    assert {p.name for p in tmp_path.iterdir()} == {"ball.h5", "pushed.h5", "robot.h5", "robot_lerobot", "frames"}
    commands = re.search(r"```sh\n(lpwm data info robot_lerobot.*?)```", PAGE.read_text(), flags=re.S)
    assert commands is not None
    for line in commands[1].replace("--train.steps 50", "--train.steps 2 --device cpu").splitlines():
        assert cli.main(line.split()[1:]) == 0, line
    assert (tmp_path / "sheet.png").exists() and read(tmp_path / "robot64.h5").pixels.shape[1:] == (64, 64, 3)


def test_its_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```\n(lpwm .*?)```", PAGE.read_text(), flags=re.S)
    assert block is not None
    for line in block[1].replace("10000", "30").splitlines():
        assert cli.main(line.split()[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "sheet.png").exists() and (tmp_path / "with-frames.h5").exists()
