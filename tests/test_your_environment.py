"""docs/your-environment.md: its files, commands and Python in the order of the page, with fewer episodes and steps."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALLER = {"--episodes": "6", "--steps": "30", "--train.steps": "3", "--budgets": "3", "--horizon": "2"}


@pytest.mark.soak
def test_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("pygame", reason="the classic environments draw with pygame: pip install 'lpwm[gym]'")
    monkeypatch.chdir(tmp_path)
    printed, space = [], {"__name__": "page"}
    for kind, block in re.findall(
        r"^```(\w+)\n(.*?)^```", (ROOT / "docs/your-environment.md").read_text(), re.S | re.M
    ):
        if kind == "python":
            if not (tmp_path / "mine.py").exists():
                (tmp_path / "mine.py").write_text(block)
                assert len([line for line in block.splitlines() if line.strip()]) <= 20
            space["run"] = next(iter(tmp_path.glob("runs/pendulum-*")), None)
            exec(compile(block, "your-environment", "exec"), space)
            continue
        for line in block.splitlines():
            words = shlex.split(line)[1:]
            for i, word in enumerate(words[:-1]):
                words[i + 1] = SMALLER.get(word, words[i + 1])
                if "*" in words[i + 1]:
                    words[i + 1] = next(str(p) for p in sorted(tmp_path.glob(words[i + 1])))
            done = subprocess.run([sys.executable, "-m", "lpwm", *words], capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed.append(done.stdout + done.stderr)
    assert "shows more than its state" in printed[0]
    assert "the action is drawn into the picture" in printed[1]
    assert "arriving at the end" in printed[-1] and "do nothing" in printed[-1]
