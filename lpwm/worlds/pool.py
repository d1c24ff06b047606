"""Live simulators in worker processes.

A world with hidden state provides a `Simulator`: one environment, made from a start (a state, or a snapshot). What
simulator i does depends neither on their number nor on the workers'. Worker processes begin fresh, leave Ctrl-C to the
parent, and end when it does. After an interruption or an error the handle is closed: half a step cannot be continued.

N simulators, S state, A action, M branches, T steps.
"""

import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError, require


class Simulator(Protocol):
    """One live environment."""

    @property
    def state(self) -> Sequence[float] | NDArray[np.float64]:
        """What is seen of it now, S numbers."""

    def step(self, action: Sequence[float]) -> None: ...

    def snapshot(self) -> Any:
        """From which the same `make` makes one that continues as this one would. It can be pickled."""

    def branch(self, actions: NDArray[np.float64]) -> NDArray[np.float32]:
        """(M, T, A) -> (M, T, S): what each sequence would lead to from here; this one does not move."""


Make = Callable[[Any], Simulator]


@dataclass(frozen=True)
class Snapshot:
    """Everything about N simulators, hidden state included; it can be pickled."""

    starts: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.starts)


class Bank:
    """Simulators in one process; arrays in, arrays out. `send` and `receive` are those of a `Worker`."""

    def __init__(self, make: Make, starts: Sequence[Any]) -> None:
        self.make = make
        self.simulators = [make(start) for start in starts]

    def states(self) -> NDArray[np.float32]:
        return np.array([s.state for s in self.simulators], dtype=np.float32)

    def step(self, rows: NDArray[np.int64], actions: NDArray[np.float64]) -> NDArray[np.float32]:
        moved = [self.simulators[row] for row in rows.tolist()]
        for simulator, action in zip(moved, actions.tolist(), strict=True):
            simulator.step(action)
        return np.array([simulator.state for simulator in moved], dtype=np.float32)

    def branches(self, actions: NDArray[np.float64]) -> NDArray[np.float32]:
        return np.stack([s.branch(a) for s, a in zip(self.simulators, actions, strict=True)])

    def restart(self, rows: NDArray[np.int64], starts: Sequence[Any]) -> NDArray[np.float32]:
        for row, start in zip(rows.tolist(), starts, strict=True):
            self.simulators[row] = self.make(start)
        return self.states()[rows]

    def snapshot(self) -> list[Any]:
        return [s.snapshot() for s in self.simulators]

    def frames(self, size: int) -> NDArray[np.uint8]:
        return np.stack([s.frame(size) for s in self.simulators])  # type: ignore[attr-defined]

    def send(self, what: str, *values: Any) -> None:
        self._answer = getattr(self, what)(*values)

    def receive(self) -> Any:
        return self._answer

    def stop(self) -> None:
        self.simulators = []


class Worker:
    """A bank in a process of its own."""

    def __init__(self, make: Make, starts: Sequence[Any]) -> None:
        context = worker_context()
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()  # the worker's end is the worker's alone, so that its death is noticed
        self.send(make, starts)

    def send(self, *message: Any) -> None:
        with _noticing_death():
            self.pipe.send(message)

    def receive(self) -> Any:
        with _noticing_death():
            ok, value = self.pipe.recv()
        if ok:
            return value
        cause, trace = value
        raise cause from RuntimeError(f"in a worker process:\n{trace}")

    def stop(self) -> None:
        self.pipe.close()  # it reads the end of its messages and leaves
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextlib.contextmanager
def _noticing_death() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise UserError(
            "a simulator's worker process died (out of memory?): use fewer workers. A script that opens a world with "
            "workers must do so under if __name__ == '__main__'."
        ) from error


class Live:
    """N live simulators of a world, in worker processes or in this one."""

    def __init__(self, make: Make, starts: Sequence[Any], workers: int) -> None:
        self.count = len(starts)
        edges = np.linspace(0, self.count, workers + 1).astype(np.int64)
        self._parts = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
        self._workers: list[Bank | Worker] = []
        with self._closing_on_error():
            if workers == 1:
                self._workers = [Bank(make, starts)]
                self._workers[0].send("states")
            else:
                for part in self._parts:
                    self._workers.append(Worker(make, starts[part]))
            self._states = np.concatenate([w.receive() for w in self._workers])

    @property
    def states(self) -> Tensor:
        """(N, S) float32 on the CPU: what is seen of the simulators now."""
        return torch.from_numpy(self._states.copy())

    def step(self, action: Tensor, rows: Tensor | None = None) -> Tensor:
        """(N, A) -> the states that follow, (N, S). With rows (n,) distinct, those alone move: (n, A) -> (n, S)."""
        which = np.arange(self.count) if rows is None else np.asarray(rows, dtype=np.int64)
        if action.ndim != 2 or len(action) != len(which):
            raise UserError(f"stepping {len(which)} simulators needs as many actions, not {tuple(action.shape)}.")
        return self._over_rows("step", which, _numbers(action))

    def branches(self, action: Tensor) -> Tensor:
        """(N, M, T, A) -> (N, M, T, S): what M action sequences would lead to from here; nothing here moves."""
        if action.ndim != 4 or len(action) != self.count:
            raise UserError(
                f"branches of {self.count} simulators take actions (N, M, T, A), not {tuple(action.shape)}."
            )
        numbers = _numbers(action)
        return torch.from_numpy(np.concatenate(self._call("branches", [(numbers[part],) for part in self._parts])))

    def restart(self, rows: Tensor, starts: Any) -> Tensor:
        """New simulators in place of rows (n,), from states (n, S) or a snapshot -> the rows' states (n, S)."""
        return self._over_rows("restart", np.asarray(rows, dtype=np.int64), as_starts(starts))

    def frames(self, size: int) -> Tensor:
        """What simulators that draw themselves (a world with `live_frames`) show now, uint8 (N, 3, size, size)."""
        return torch.from_numpy(np.concatenate(self._call("frames", [(size,)] * len(self._parts))))

    def snapshot(self) -> Snapshot:
        """All there is to know, hidden state included: `open(snapshot)` continues as these would."""
        return Snapshot(tuple(s for part in self._call("snapshot", [()] * len(self._parts)) for s in part))

    def close(self) -> None:
        while self._workers:
            self._workers.pop().stop()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be half gone
            self.close()

    def _over_rows(self, what: str, which: NDArray[np.int64], values: Any) -> Tensor:
        """Call each part with its own rows; the states of all `which`, in their order."""
        mine = [np.flatnonzero((which >= p.start) & (which < p.stop)) for p in self._parts]
        arguments = [
            (which[m] - p.start, [values[i] for i in m] if isinstance(values, tuple) else values[m])
            for p, m in zip(self._parts, mine, strict=True)
        ]
        for m, answer in zip(mine, self._call(what, arguments), strict=True):
            if len(m):
                self._states[which[m]] = answer
        return torch.from_numpy(self._states[which])

    def _call(self, what: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        if not self._workers:
            raise UserError("these simulators are closed: open the world again.")
        with self._closing_on_error():
            for worker, values in zip(self._workers, arguments, strict=True):
                worker.send(what, *values)
            return [worker.receive() for worker in self._workers]

    @contextlib.contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def open_live(make: Make, starts: Any, workers: int | None = 1) -> Live:
    """N simulators from states (N, S) or a `Snapshot`, in `workers` processes: 1 is this one, None all cores."""
    require("workers", workers, 1)
    starts = as_starts(starts)
    workers = max(1, min(cores() if workers is None else workers, len(starts)))
    if workers > 1:
        check_sendable(make, "the simulator")
    return Live(make, starts, workers)


def check_sendable(value: Any, what: str) -> None:
    """Before any process is started: a pool that meets the error itself may wait for ever."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(f"{what} cannot be sent to worker processes ({error}): define it in a module.") from error


def as_starts(starts: Any) -> Any:
    """The starts of a snapshot, or the rows of states (N, S) as float64."""
    return starts.starts if isinstance(starts, Snapshot) else _numbers(torch.as_tensor(starts))


def _numbers(values: Tensor) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = values.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(numbers).all():
        raise UserError("a simulator was given a state or an action that is not finite: look for NaN in it.")
    return numbers


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_context(preload: str = "lpwm.worlds") -> Any:
    """Never forks this process, whose threads may hold locks. preload: what the fork server imports once for all."""
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    return context


def start_worker() -> None:
    """One thread per worker; Ctrl-C is left to the parent; a worker ends with its parent."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # returns only when the parent is gone
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _serve(pipe: Connection) -> None:
    """A worker: open a bank with the first message, answer the others until the pipe ends."""
    start_worker()
    bank: Bank | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv()
            try:
                if bank is None:
                    bank = Bank(*message)
                    message = ("states",)
                what, *values = message
                answer: tuple[bool, Any] = True, getattr(bank, what)(*values)
            except Exception as error:
                answer = False, (_sendable(error), traceback.format_exc())
            pipe.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error itself if it can be sent: some cannot be pickled, some cannot be built again."""
    try:
        pickle.dumps(copy.copy(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
