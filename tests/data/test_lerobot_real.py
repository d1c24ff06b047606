"""What we write, read by LeRobot itself, in an environment of its own that is made for this (a few minutes, network).

LEROBOT_PYTHON=PYTHON names one that is there already.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lpwm import worlds
from lpwm.data import collect, convert, read

pytest.importorskip("pyarrow")
MAKE = Path(__file__).parents[1] / "golden" / "lerobot" / "make.py"
NEEDS = "numpy<2.4|datasets<5|huggingface_hub<0.36|av|pyarrow|pandas|jsonlines|draccus==0.10|accelerate|psutil"
NEEDS += "|opencv-python-headless|imageio|gymnasium|deepdiff|termcolor|packaging|einops|torch"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    if "LEROBOT_PYTHON" in os.environ:
        return os.environ["LEROBOT_PYTHON"]
    folder = tmp_path_factory.mktemp("lerobot")
    own = folder / "env/bin/python"
    pip = [own, "-m", "pip", "install", "--quiet"]
    commands = [
        [sys.executable, "-m", "venv", folder / "env"],
        [*pip, *NEEDS.split("|")],
        [*pip, "--no-deps", "lerobot==0.4.4"],
    ]
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if made.returncode:
            pytest.skip(f"LEROBOT WAS NOT TRIED: it cannot be installed ({made.stderr.strip().splitlines()[-1:]})")
    return str(own)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["h264", "av1", "images"])
def test_its_reader_sees_our_rows(kind, python, tmp_path):
    collect(worlds.make("wall"), tmp_path / "ours.h5", episodes=5, steps=30, pixels=True, size=64)
    convert(tmp_path / "ours.h5", tmp_path / "set", lerobot=kind)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    env.pop("PYTHONPATH", None)
    command = [python, str(MAKE), "--read", str(tmp_path / "set"), str(tmp_path / "theirs.npz")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert made.returncode == 0, made.stderr[-2000:]
    theirs, ours = np.load(tmp_path / "theirs.npz"), read(tmp_path / "set")
    rows = len(ours.states)
    inside = ~np.isin(np.arange(rows), np.cumsum(ours.lengths) - 1)
    np.testing.assert_array_equal(theirs["lengths"], ours.lengths)
    np.testing.assert_array_equal(theirs["state"], ours.states)
    np.testing.assert_array_equal(theirs["action"][inside], ours.actions[inside])
    np.testing.assert_array_equal(theirs["observation.images.pixels"], ours.pixels[0:rows])
    assert set(theirs["tasks"]) == {"wall"}
