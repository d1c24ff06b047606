"""Help answers without torch, fits a screen and shows the defaults in force."""

import os
import subprocess
import sys

import pytest

from lpwm.cli import PARTS, VERBS, main

LOOK = """
import sys
from lpwm.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code
print("torch" in sys.modules)
"""


def shown(*argv):
    """What a verb prints, and whether it imported torch."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *argv], capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}
    )
    assert done.returncode == 0, done.stderr
    *lines, torch = done.stdout.splitlines()
    return lines, torch == "True"


@pytest.mark.parametrize("verb", [*VERBS, *PARTS, "paper params", "data info", "data convert"])
def test_help_is_short_and_needs_no_torch(verb):
    lines, torch = shown(*verb.split(), "--help")
    assert not torch
    assert len(lines) <= 45 and max(map(len, lines)) <= 80 and any("usage" in line for line in lines)


def test_lists_and_usage_need_no_torch():
    for argv in (["--help"], ["--version"], ["train", "tiny/lpwm", "--help-all"]):
        assert not shown(*argv)[1], argv


def test_train_shows_the_recipes_defaults_and_all_of_them_when_told():
    short = " ".join("\n".join(shown("train", "piecewise-2x2-small/lpwm", "--help")[0]).split())
    assert "--train.steps INT (default: 2500)" in short and "deep-adaln, shallow-adaln" in short
    assert "--help-all" in short and "--optim.eps" not in short
    everything = "\n".join(shown("train", "piecewise-2x2-small/lpwm", "--help-all")[0])
    assert "--optim.eps" in everything and "--train.steps" in everything


def test_eval_shows_the_presets_defaults_and_status_its_own_options():
    assert "50 100" in " ".join(shown("eval", "--help")[0])
    assert "--once" in " ".join(shown("sweep", "status", "--help")[0])


def test_parts_of_the_paper_are_verbs_too(capsys):
    outs = []
    for argv in (["params", "--json"], ["paper", "params", "--json"]):
        assert main(argv) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert main(["paper", "parms"]) == 2 and "did you mean 'params'" in capsys.readouterr().err
    assert main(["paper"]) == 2
