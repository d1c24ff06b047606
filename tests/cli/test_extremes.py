"""Every field of `lpwm train` with twelve extreme values: refused in one sentence, or it works, within 1 GB."""

import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest

from lpwm.cli import main
from lpwm.core.config import to_dict
from lpwm.recipes import recipe
from lpwm.report.page import flat

VALUES = ("0", "-1", "nan", "inf", "-inf", "1e30", str(2**63), "", "word", "[1, 2]", "1e-30", str(10**40))
CASES = [(name, value) for name in flat(to_dict(recipe("tiny/lpwm"))) for value in VALUES]
SHORT = "train tiny/lpwm --train.steps 4 --train.no-stop-dead --data.episodes 12 --train.eval-batches 1 --device cpu"
ROOM = 2**30  # bytes that a command may take on top of what importing took
ENOUGH, MOST = 4.0, 60  # seconds of computing after which a training is interrupted, and after which it hangs
LONGEST = 600.0  # seconds, however busy the machine is


def command(name, value, out):
    option, words = f"--{name}".replace("_", "-"), SHORT.split()
    if option in words:  # given once
        at = words.index(option)
        del words[at : at + 2]
    return [*words, "--out", str(out), "--json", f"{option}={value}"]


def outcome(argv, told, enough=ENOUGH):
    """Exit status of a command in a process of its own, with ROOM to grow; 0 or 130 is a training that went well."""
    pid = os.fork()
    if pid == 0:
        with open(told, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST, MOST))
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_PROF, enough)
        code = 1
        try:
            code = main(argv)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


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
