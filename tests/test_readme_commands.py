"""The shell commands of the README and of the first page, in order, with small recipes in the places of large ones."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
    found = list(commands(page))
    assert len(found) >= 5
    for line in found:
        for large, small in SMALLER.items():
            line = line.replace(large, small)
        words = shlex.split(line)[1:]
        if "RUNS" in words:
            at = words.index("RUNS")
            words[at : at + 1] = sorted(str(p) for p in (tmp_path / "runs").glob("tiny-*"))
        done = subprocess.run([sys.executable, "-m", "lpwm", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), f"{line} printed nothing"
