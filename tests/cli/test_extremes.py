"""Every field of `lpwm train` with twelve extreme values: refused in one sentence, or it works, within 1 GB."""

import os
import random
import signal
import subprocess
import sys

import pytest

from lpwm.core.config import to_dict
from lpwm.recipes import recipe
from lpwm.report.page import flat

VALUES = ("0", "-1", "nan", "inf", "-inf", "1e30", str(2**63), "", "word", "[1, 2]", "1e-30", str(10**40))
CASES = [(name, value) for name in flat(to_dict(recipe("tiny/lpwm"))) for value in VALUES]
SHORT = "train tiny/lpwm --train.steps 4 --train.no-stop-dead --data.episodes 12 --train.eval-batches 1 --device cpu"
ROOM = 2**30  # bytes that a command may take on top of what importing took
ENOUGH, MOST = 4.0, 60  # seconds of computing after which a training is interrupted, and after which it hangs
LONGEST = 300.0  # seconds, however busy the machine is


def command(name, value, out):
    option, words = f"--{name}".replace("_", "-"), SHORT.split()
    if option in words:  # given once
        at = words.index(option)
        del words[at : at + 2]
    return [*words, "--out", str(out), "--json", f"{option}={value}"]


# A process of its own, with limits on top of what importing took: a fork of this one may wait for ever for threads.
CHILD = """
import os, resource, signal, sys
from pathlib import Path
import lpwm.evaluate.runs, lpwm.train.run
from lpwm.cli import main
enough, room, most = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
resource.setrlimit(resource.RLIMIT_CPU, (most, most))
signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
signal.setitimer(signal.ITIMER_PROF, enough)
sys.exit(main(sys.argv[4:]))
"""


def outcome(argv, told, enough=ENOUGH):
    """Exit status of a command, with ROOM to grow; 0 or 130 is a training that went well."""
    words = [sys.executable, "-c", CHILD, str(enough), str(ROOM), str(MOST), *argv]
    with open(told, "w") as file:
        return subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, timeout=LONGEST).returncode


def check(name, value, folder, enough=ENOUGH):
    code = outcome(command(name, value, folder / "runs"), folder / "told.txt", enough)
    told = (folder / "told.txt").read_text()
    lines = [line for line in told.splitlines() if not line.startswith("{")]
    if code == 2:
        assert len(lines) == 1 and lines[0].startswith("lpwm: ") and lines[0].endswith("."), told[-600:]
    else:
        assert code in (0, 130, -signal.SIGTERM) and "Traceback" not in told, f"{code}: {told[-600:]}"
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("extremes")
    assert check("train.seed", "1", made, MOST) == 0  # collects the data that most cases share
    return made


@pytest.mark.parametrize(("name", "value"), random.Random(0).sample(CASES, 8))
def test_a_sample_of_fields_and_values(name, value, folder):
    check(name, value, folder)


# All 1,032 take most of an hour: LPWM_EXTREMES=all. The soak step has a sample of its own.
@pytest.mark.soak
@pytest.mark.parametrize(("name", "value"), CASES if os.environ.get("LPWM_EXTREMES") else CASES[5::40])
def test_every_field_and_value(name, value, folder):
    check(name, value, folder)
