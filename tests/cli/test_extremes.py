"""Every field of `lpwm train` with twelve extreme values: refused in one sentence, or it works, within 1 GB."""

import json
import os
import random
import signal
import subprocess
import sys
import threading

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


# One process imports everything and starts no thread. For each command it forks a child, with limits on top of what
# importing took: a fork of the process of the tests, which has threads, may wait for them for ever.
SERVER = """
import json, os, resource, signal, sys
from pathlib import Path
import torch
import lpwm.cli.train, lpwm.evaluate.runs, lpwm.train.run
from lpwm.cli import main
room, most = int(sys.argv[1]), int(sys.argv[2])
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for line in sys.stdin:
    told, enough, argv = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        out = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_PROF, enough)
        sys.exit(main(argv))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Server:
    def __init__(self):
        words = [sys.executable, "-c", SERVER, str(ROOM), str(MOST)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def outcome(self, argv, told, enough):
        """Exit status of a command; it is killed, with all it started, after LONGEST seconds."""
        self.process.stdin.write(json.dumps([str(told), enough, argv]) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        timer = threading.Timer(LONGEST, os.killpg, (child, signal.SIGKILL))
        timer.start()
        code = int(self.process.stdout.readline())
        timer.cancel()
        return code

    def check(self, name, value, folder, enough=ENOUGH):
        code = self.outcome(command(name, value, folder / "runs"), folder / "told.txt", enough)
        told = (folder / "told.txt").read_text()
        lines = [line for line in told.splitlines() if not line.startswith("{")]
        if code == 2:
            assert len(lines) == 1 and lines[0].startswith("lpwm: ") and lines[0].endswith("."), told[-600:]
        else:
            assert code in (0, 130, -signal.SIGTERM) and "Traceback" not in told, f"{code}: {told[-600:]}"
        return code


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    server, folder = Server(), tmp_path_factory.mktemp("extremes")
    assert server.check("train.seed", "1", folder, MOST) == 0  # collects the data that most cases share
    yield lambda name, value: server.check(name, value, folder)
    server.process.stdin.close()
    server.process.wait()


@pytest.mark.parametrize(("name", "value"), random.Random(0).sample(CASES, 8))
def test_a_sample_of_fields_and_values(name, value, check):
    check(name, value)


# All 1,032: LPWM_EXTREMES=all. The soak step has a sample of its own.
@pytest.mark.soak
@pytest.mark.parametrize(("name", "value"), CASES if os.environ.get("LPWM_EXTREMES") else CASES[5::40])
def test_every_field_and_value(name, value, check):
    check(name, value)
