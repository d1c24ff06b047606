"""Jobs over processes: every job ends once, whatever becomes of its process."""

import os
import signal
import time
from pathlib import Path

import pytest

from lpwm.core.errors import UserError
from results.tool.pool import Failure, each


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Spawned workers import this module by name: `python -m pytest` has the folder on the path, `pytest` has not."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def work(job):
    if job == "user":
        raise UserError("give a number.")
    if job == "error":
        raise EOFError("by hand, not the pipe's\nand more")
    if job == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "slow":
        time.sleep(600)
    if job == "leaves":
        raise SystemExit(7)
    return items() if job == "items" else job * job


def items():
    yield from range(3)
    raise UserError("three is enough.")


def test_every_job_ends_once_and_a_death_costs_its_own_job_alone():
    got = {}
    jobs = [2, "user", "items", "killed", "error", "slow", "leaves", 3]
    for number, value in each(jobs, work, 4, limit_s=2):
        got.setdefault(number, []).append(value)
    assert (got[0], got[7]) == ([4], [9]) and sorted(got) == list(range(8))
    assert got[1] == [Failure("give a number.")] and got[2] == [0, 1, 2, Failure("three is enough.")]
    assert got[3] == [Failure("its process ended (signal 9).")]
    assert got[4][0].why == "EOFError: by hand, not the pipe's" and "raise EOFError" in got[4][0].detail
    assert got[5] == [Failure("its process ended (killed after 2 s).")]
    assert got[6] == [Failure("its process ended (status 7).")] and all(len(got[n]) == 1 for n in (3, 4, 5, 6))


def test_who_stops_listening_leaves_no_process_behind():
    running = each([2, "slow"], work, 2)
    assert next(running) == (0, 4)
    began = time.monotonic()
    running.close()  # the slow one is terminated
    assert time.monotonic() - began < 15


def test_nobody_to_work_and_nothing_to_do():
    with pytest.raises(UserError, match="0 workers do nothing"):
        list(each([1], work, 0))
    assert list(each([], work, 3)) == []
