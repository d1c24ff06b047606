"""A list of jobs over processes that live as long as the list: starting is paid once a worker, not once a job.

For jobs of seconds that share a GPU. Jobs of minutes to days, on machines that come and go, are the ledger's.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from lpwm.core.errors import UserError

PATIENCE = 20.0  # seconds for a worker that was asked to stop


@dataclass(frozen=True)
class Failure:
    """Instead of a result: the job raised, or took its process with it."""

    why: str  # one sentence
    detail: str = ""  # a traceback


def each(
    jobs: Sequence[Any], work: Callable[[Any], Any], workers: int = 1, *, limit_s: float | None = None, threads: int = 1
) -> Iterator[tuple[int, Any]]:
    """(number of the job, result or Failure) as they come; the jobs are taken in their order.

    work     is pickled, and so are jobs and results; a generator's items come one by one, each with the job's number
    workers  spawned processes. One that dies is replaced, and the job it held is a Failure, not tried again
    limit_s  after which a job's process is killed
    threads  of torch in every worker
    """
    if workers < 1:
        raise UserError(f"{workers} workers do nothing: give at least 1.")
    waiting = list(range(len(jobs)))
    crew = [Worker(work, threads) for _ in range(min(workers, len(jobs)))]
    idle_deaths = 0  # of workers that had no job: not the jobs' fault, and not to be repeated for ever
    try:
        while crew:
            for worker in _stirring(crew, limit_s):
                held, message = worker.job, worker.hear()
                if message is None:
                    crew.remove(worker)
                    why = worker.end(limit_s)
                    idle_deaths += held is None
                    if held is not None:
                        yield held, Failure(f"its process ended ({why}).")
                    elif waiting and idle_deaths >= workers:
                        raise UserError(f"workers end ({why}) before they take a job: see what they printed.")
                    if waiting:
                        crew.append(Worker(work, threads))
                    continue
                kind, value = message
                if kind != "idle":
                    assert held is not None
                    yield held, value
                if kind == "broken":  # whatever went wrong may have left its process unfit: a CUDA error does
                    worker.dismiss()
                    crew.remove(worker)
                    if waiting:
                        crew.append(Worker(work, threads))
                elif kind != "result":
                    if waiting:
                        number = waiting.pop(0)
                        worker.give(number, jobs[number])
                    else:
                        worker.dismiss()
                        crew.remove(worker)
    finally:
        for worker in crew:
            worker.ask()
        for worker in crew:
            worker.stop()


def _stirring(crew: Sequence[Worker], limit_s: float | None) -> list[Worker]:
    """Workers that said something or died. Those over their time are killed first, which is a way of dying."""
    for worker in crew:
        worker.check(limit_s)
    heard = wait([w.pipe for w in crew], 0.5)
    return [w for w in crew if w.pipe in heard]


class Worker:
    """A process and this end of its pipe."""

    def __init__(self, work: Callable[[Any], Any], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        # Not a daemon: a job may start processes of its own.
        self.process = context.Process(target=_live, args=(theirs, work, threads))
        self.process.start()
        theirs.close()  # so that its death is the pipe's end
        self.job: int | None = None
        self.began = 0.0
        self.late = False

    def give(self, number: int, job: Any) -> None:
        self.job, self.began = number, time.monotonic()
        with contextlib.suppress(OSError):  # it has just died: the next `hear` says so
            self.pipe.send(job)

    def hear(self) -> tuple[str, Any] | None:
        """What it says; None if it is dead."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if message[0] == "idle":
            self.job = None
        return message

    def check(self, limit_s: float | None) -> None:
        if limit_s and self.job is not None and time.monotonic() - self.began > limit_s:
            self.late = True
            self.process.kill()

    def end(self, limit_s: float | None = None) -> str:
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if self.late:
            return f"killed after {limit_s:g} s"
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"

    def dismiss(self) -> None:
        self.pipe.close()
        self.process.join(PATIENCE)

    def ask(self) -> None:
        """To stop: training then writes its checkpoint."""
        self.pipe.close()
        self.process.terminate()

    def stop(self) -> None:
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _live(pipe: Connection, work: Callable[[Any], Any], threads: int) -> None:
    """A worker's life: idle, a job, its results, idle again; it ends when the other end is closed."""
    import torch

    torch.set_num_threads(threads)
    try:
        pipe.send(("idle", None))
        while True:
            _one(pipe, work, pipe.recv())
    except (EOFError, OSError, KeyboardInterrupt):  # Interrupted is one
        os._exit(0)  # nothing is left to say, and CUDA's own farewell takes seconds


def _one(pipe: Connection, work: Callable[[Any], Any], job: Any) -> None:
    try:
        found = work(job)
        for value in found if isinstance(found, Iterator) else (found,):
            pipe.send(("result", value))
        last: tuple[str, Any] = ("idle", None)
    except UserError as error:
        last = ("failure", Failure(str(error)))
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        last = ("broken", Failure(why, traceback.format_exc()))
    gc.collect()  # captured graphs and their memory, before the next job needs it
    pipe.send(last)
