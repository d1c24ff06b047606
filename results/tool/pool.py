"""Jobs that share a device, each in a process of its own: what kills a process costs its own job alone."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from lpwm.core.errors import UserError

PATIENCE = 20.0  # seconds for a process that was told to stop
Work = Callable[[Any], Any]


@dataclass(frozen=True)
class Failure:
    """Instead of a result: the job raised, or took its process with it."""

    why: str  # one sentence
    detail: str = ""  # a traceback


def each(
    jobs: Sequence[Any], work: Work, workers: int = 1, *, limit_s: float | None = None
) -> Iterator[tuple[int, Any]]:
    """(number of the job, result or Failure) as they come; the jobs are started in their order, `workers` at a time.

    work     is pickled, and so are jobs and results; a generator's items come one by one, each with the job's number
    limit_s  after which a job's process is killed; importing what it needs does not count
    """
    if workers < 1:
        raise UserError(f"{workers} workers do nothing: give at least 1.")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes to come
    waiting, running = list(enumerate(jobs)), list[Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(Running(*waiting.pop(0), work))
            for one in running:
                one.check(limit_s)
            ready = wait([one.pipe for one in running], 0.5)
            for one in [one for one in running if one.pipe in ready]:
                kind, value = one.receive(limit_s)
                if kind in ("result", "failure"):
                    yield one.number, value
                if kind in ("failure", "done"):
                    one.process.join(PATIENCE)
                    running.remove(one)
    finally:
        for one in running:
            one.process.terminate()  # training then writes its checkpoint
        for one in running:
            one.process.join(PATIENCE)
            one.process.kill()


class Running:
    """A process and this end of its pipe."""

    def __init__(self, number: int, job: Any, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.number, self.late, self.began = number, False, math.inf
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(theirs, work, job))  # no daemon: it may start its own
        self.process.start()
        theirs.close()  # so that its death is the pipe's end

    def check(self, limit_s: float | None) -> None:
        if limit_s and time.monotonic() - self.began > limit_s:
            self.late = True
            self.process.kill()

    def receive(self, limit_s: float | None) -> tuple[str, Any]:
        """("begun", None), ("result", value) for each, then ("done", None) or ("failure", Failure)."""
        try:
            kind, value = self.pipe.recv()
            if kind == "begun":
                self.began = time.monotonic()
            return kind, value
        except (EOFError, OSError):
            self.process.join(PATIENCE)
        code = self.process.exitcode or 0
        why = f"killed after {limit_s:g} s" if self.late else f"signal {-code}" if code < 0 else f"status {code}"
        return "failure", Failure(f"its process ended ({why}).")


def _run(pipe: Connection, work: Work, job: Any) -> None:
    pipe.send(("begun", None))
    try:
        value = work(job)
        for item in value if isinstance(value, Iterator) else (value,):
            pipe.send(("result", item))
        pipe.send(("done", None))
    except UserError as error:
        pipe.send(("failure", Failure(str(error))))
    except Exception as error:
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        pipe.send(("failure", Failure(why, traceback.format_exc())))
    except KeyboardInterrupt:  # told to stop
        pass
    os._exit(0)  # CUDA's own shutdown takes seconds
