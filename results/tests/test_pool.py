"""Jobs over lasting processes: every job ends once, whatever becomes of its process."""

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
    return items() if job == "items" else (job * job, os.getpid())


def items():
    yield from range(3)
    raise UserError("three is enough.")


class Unwilling:
    def __reduce__(self):
        return os._exit, (5,)

    def __call__(self, job):
        raise AssertionError("never here")


def test_every_job_ends_once_and_a_death_costs_its_own_job_alone():
    found = list(each([2, "user", "items", 3, "killed", 4], work, 1))
    assert [n for n, _ in found] == [0, 1, 2, 2, 2, 2, 3, 4, 5]
    values = [v for _, v in found]
    assert (values[0][0], values[6][0], values[8][0]) == (4, 9, 16)
    assert values[1:6] == [Failure("give a number."), 0, 1, 2, Failure("three is enough.")]
    assert values[7] == Failure("its process ended (signal 9).")
    first, second, third = (values[i][1] for i in (0, 6, 8))
    assert first == second != third and os.getpid() not in (first, third)


@pytest.mark.soak
def test_several_workers_errors_lateness_and_leaving():
    jobs = [2, "error", "slow", 3, "leaves", 4]
    found = list(each(jobs, work, 2, limit_s=5))
    assert sorted(n for n, _ in found) == list(range(6))
    got = dict(found)
    assert [got[i][0] for i in (0, 3, 5)] == [4, 9, 16]
    assert got[1].why == "EOFError: by hand, not the pipe's" and "raise EOFError" in got[1].detail
    assert got[2].why == "its process ended (killed after 5 s)."
    assert got[4].why == "its process ended (status 7)."


def test_workers_that_never_come_and_nothing_to_do():
    with pytest.raises(UserError, match=r"\(status 5\) before they take a job"):
        list(each([1, 2], Unwilling(), 1))
    with pytest.raises(UserError, match="0 workers do nothing"):
        list(each([1], work, 0))
    assert list(each([], work, 3)) == []
