"""Jobs over lasting processes: every job ends once, whatever becomes of its process."""

import os
import signal
import time

import pytest

from lpwm.errors import UserError
from lpwm.sweep.pool import Failure, each


def square(job):
    if job == "user":
        raise UserError("give a number.")
    if job == "error":
        raise EOFError("by hand, not the pipe's\nand more")
    if job == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "slow":
        time.sleep(600)
    return job * job, os.getpid()


def items(job):
    for i in range(job):
        if i == 3:
            raise UserError("three is too many.")
        yield i


def lost(job):
    raise SystemExit(7)


class Unwilling:
    def __reduce__(self):
        return os._exit, (5,)

    def __call__(self, job):
        raise AssertionError("never here")


def test_every_job_ends_once_whatever_becomes_of_its_process():
    jobs = [2, "user", 3, "error", "killed", 4, 5]
    found = list(each(jobs, square, 2))
    assert sorted(number for number, _ in found) == list(range(7))
    got = dict(found)
    assert [got[i][0] for i in (0, 2, 5, 6)] == [4, 9, 16, 25]
    assert got[1] == Failure("give a number.")
    assert got[3].why == "EOFError: by hand, not the pipe's" and "raise EOFError" in got[3].detail
    assert got[4].why == "its process ended (signal 9)."
    assert os.getpid() not in {got[i][1] for i in (0, 2, 5, 6)}


def test_a_process_takes_job_after_job_and_a_late_one_is_killed():
    found = dict(each([1, 2, "slow"], square, 1, limit_s=3))
    assert found[0][1] == found[1][1]
    assert found[2].why == "its process ended (killed after 3 s)."


def test_items_come_one_by_one_and_stay_when_a_later_one_fails():
    found = list(each([2, 5], items, 1))
    assert [v for n, v in found if n == 0] == [0, 1]
    assert [v for n, v in found if n == 1] == [0, 1, 2, Failure("three is too many.")]


def test_jobs_that_leave_and_workers_that_never_come():
    assert dict(each([0], lost, 1))[0].why == "its process ended (status 7)."
    with pytest.raises(UserError, match="before they take a job"):
        list(each([1, 2], Unwilling(), 1))
    with pytest.raises(UserError, match="0 workers do nothing"):
        list(each([1], square, 0))
    assert list(each([], square, 3)) == []
