"""One writer per folder: atomic at the same moment, free after a death, and a sentence for the second."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lpwm.core import lock
from lpwm.core.errors import UserError
from lpwm.core.json import dump_json
from lpwm.core.lock import Busy, Owner, one_writer

HOLD = """
import sys
from pathlib import Path
from lpwm.core.lock import Busy, one_writer
try:
    with one_writer(Path(sys.argv[1]), "training"):
        print("have", flush=True)
        sys.stdin.read()
except Busy as error:
    print("busy", error, flush=True)
"""


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def claim(folder, number, owner, age=0.0):
    (folder / ".writer").mkdir(exist_ok=True)
    path = folder / ".writer" / f"{number:06d}.json"
    path.write_text(dump_json(owner))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


ELSEWHERE = Owner("training", "mars", "mars 12345678", 7, "99")


def test_the_second_is_told_who_has_it_and_a_dead_owner_is_replaced_at_once(tmp_path):
    first = start(tmp_path)
    assert first.stdout.readline() == "have\n"
    with pytest.raises(Busy, match=rf"in use by training \(process {first.pid} on .*, since 20") as caught:
        one_writer(tmp_path, "training").__enter__()
    assert "\n" not in str(caught.value)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with one_writer(tmp_path, "training"):
        pass
    with one_writer(tmp_path, "training") as writer:  # released
        assert [p.name for p in writer.path.parent.iterdir()] == ["000003.json"]


def test_of_many_at_the_same_moment_one_gets_it(tmp_path):
    for trial in range(25):
        folder = tmp_path / str(trial)
        folder.mkdir()
        if trial % 2:
            claim(folder, 4, replace(ELSEWHERE, machine=lock.machine()))  # dead here: all see it at once
        gate, inside = threading.Barrier(8), []

        def enter(_, folder=folder, gate=gate, inside=inside):
            gate.wait()
            try:
                with one_writer(folder, "training"):
                    inside.append(1)
                    gate.wait()
                    return 1
            except Busy:
                gate.wait()
                return 0

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(enter, range(8))) == 1 == len(inside)


def test_processes_at_the_same_moment(tmp_path):
    both = [start(tmp_path) for _ in range(3)]
    said = sorted(p.stdout.readline().split()[0] for p in both)
    for p in both:
        p.stdin.close()
        p.wait()
    assert said == ["busy", "busy", "have"]


def test_another_machine_has_ten_minutes(tmp_path):
    claim(tmp_path, 1, ELSEWHERE, age=590)
    with pytest.raises(Busy, match="process 7 on mars"):
        one_writer(tmp_path, "training").__enter__()
    claim(tmp_path, 1, ELSEWHERE, age=610)
    with one_writer(tmp_path, "training") as writer:
        writer.check()
        claim(tmp_path, 3, ELSEWHERE)  # asleep for long: it was taken over
        with pytest.raises(Busy, match="taken over by training"):
            writer.check()


def test_the_heartbeat_keeps_a_claim_fresh(tmp_path):
    with one_writer(tmp_path, "training", lease=0.3) as writer:
        os.utime(writer.path, (0, 0))
        time.sleep(0.3)
        assert time.time() - writer.path.stat().st_mtime < 10
    assert json.loads(writer.path.read_text())["released"] is True


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_claim_that_cannot_be_read_is_somebodys_while_it_is_fresh(tmp_path, content):
    path = claim(tmp_path, 1, ELSEWHERE)
    path.write_text(content)
    with pytest.raises(Busy, match="unknown machine"):
        one_writer(tmp_path, "training").__enter__()
    os.utime(path, (0, 0))
    (tmp_path / ".writer" / "000002 (copy).json").write_text(content)  # no claim
    with one_writer(tmp_path, "training"):
        pass


def test_numbers_are_compared_as_numbers(tmp_path):
    os.utime(claim(tmp_path, 999_999, ELSEWHERE), (0, 0))
    for number in (1_000_000, 1_000_001):
        with one_writer(tmp_path, "training") as writer:
            assert writer.path.stem == str(number)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_ours_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="choose a folder you may write to"):
        one_writer(tmp_path, "training").__enter__()


def test_a_read_only_disk_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(UserError, match="read-only file system; choose a folder you may write to"):
        one_writer(tmp_path, "training").__enter__()
