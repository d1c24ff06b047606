"""The ledger: the only truth about which cells are waiting, running, done or failed.

    plan/HASH.json          what the cell is
    claims/HASH.0001.json   attempt 1: who took it and how it ended; its modification time is the heartbeat
    cells/HASH.json         the record of a finished cell: appears whole, once, and never changes

No locks, no server. A file is written under another name and then *linked* to its own, which fails where the name is
taken: of all processes on all machines that share the folder, exactly one gets attempt n, and exactly one writes the
record. A claim is a lease: whoever died (here: its process is gone; elsewhere: no heartbeat for `lease` seconds by the
clock of the file system) loses it to attempt n+1. The first record stands: both are one function of the same config.
"""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_once, write_whole
from lpwm.core.json import dump_json, from_json, read_json, to_json
from lpwm.core.lock import born, file_clock, machine, owner_alive
from lpwm.core.provenance import origin
from lpwm.core.version import __version__
from lpwm.sweep.engines import EngineConfig

T = TypeVar("T")
State = Literal["waiting", "running", "done", "failed"]
LEASE = EngineConfig.lease  # seconds without a heartbeat after which another machine's claim is void
DEATHS = 3  # claims that ended without a word before the cell counts as failed


def code_version() -> str:
    """The release and a digest of the sources: two checkouts of one release need not be the same code."""
    return f"{__version__}+{str(origin()['source'])[:8]}"


@dataclass(frozen=True, kw_only=True)
class ClaimRecord:
    """claims/HASH.n.json: who took a cell, and how that ended. A reset has no owner."""

    hash: str = ""
    attempt: int = 0
    state: Literal["running", "done", "late", "failed", "released", "reset"]
    host: str = ""
    machine: str = ""
    pid: int = 0
    born: str = ""
    started: float = 0.0
    lpwm: str = ""
    token: str = field(default="", metadata={"omit": True})  # of claims that 0.1.0 wrote
    why: str = field(default="", metadata={"omit": True})
    detail: str = field(default="", metadata={"omit": True})
    finished: float = field(default=0.0, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class Record:
    """cells/HASH.json: a finished cell, with what it is and what came out."""

    hash: str
    state: str = "done"
    attempt: int
    host: str
    pid: int
    lpwm: str
    started: float
    finished: float
    cell: dict[str, Any]
    result: dict[str, Any]
    files: dict[str, str]

    @property
    def seconds(self) -> float:
        return self.finished - self.started


@dataclass(frozen=True)
class Status:
    """A cell as the ledger sees it now."""

    hash: str
    state: State
    attempt: int = 0  # of the latest claim
    claim: ClaimRecord | None = None  # the latest
    why: str = ""  # of a failure


class Ledger:
    def __init__(self, folder: str | Path, lease: float = LEASE, deaths: int = DEATHS) -> None:
        self.folder, self.lease, self.deaths = Path(folder), lease, deaths
        self.plan, self.claims, self.cells = (self.folder / n for n in ("plan", "claims", "cells"))

    # Writing -------------------------------------------------------------------------------------------------

    def open(self) -> "Ledger":
        for folder in (self.plan, self.claims, self.cells):
            make_folder(folder)
        return self

    def add(self, cells: Mapping[str, Any]) -> int:
        """Enter cells by their hash, as anything JSON can hold; those known already stay. How many were new."""
        return sum(_once(self.plan / f"{name}.json", cell) for name, cell in cells.items())

    def claim(self, name: str) -> "Claim | None":
        """Take a waiting cell; None where it is done, failed, or somebody else's."""
        status = self.status(name)
        if status.state != "waiting":
            return None
        attempt = status.attempt + 1
        pid, host = os.getpid(), socket.gethostname()
        owner: dict[str, Any] = {"host": host, "machine": machine(), "pid": pid, "born": born(pid)}
        about: dict[str, Any] = {"started": time.time(), "lpwm": code_version(), **owner}
        content = ClaimRecord(hash=name, attempt=attempt, state="running", **about)
        taken = not _once(self._claim_path(name, attempt), content)  # somebody was faster
        finished = (self.cells / f"{name}.json").exists()  # between the look and the claim
        return None if taken or finished else Claim(self, name, attempt, content)

    def retry(self, name: str) -> bool:
        """A failed cell waits again; what it failed of stays in its claims."""
        status = self.status(name)
        if status.state != "failed":
            return False
        reset = ClaimRecord(hash=name, attempt=status.attempt + 1, state="reset", started=time.time())
        return _once(self._claim_path(name, reset.attempt), reset)

    def sweep_up(self) -> None:
        """Remove what killed writers left half-written, once no living one can own it."""
        for folder in (self.plan, self.claims, self.cells):
            for path in folder.glob(".*.tmp"):
                with contextlib.suppress(OSError):
                    if file_clock(self.claims) - path.stat().st_mtime > self.lease:
                        path.unlink()

    # Reading -------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(p.stem for p in self.plan.glob("[!.]*.json"))

    def planned(self, name: str) -> dict[str, Any]:
        return _read(self.plan / f"{name}.json", dict)

    def record(self, name: str) -> Record | None:
        path = self.cells / f"{name}.json"
        return _read(path, Record) if path.exists() else None

    def attempts(self, name: str) -> list[ClaimRecord]:
        return [_read(p, ClaimRecord) for p in self._paths(name)]

    def _paths(self, name: str) -> list[Path]:
        """The claims of a cell, in order: attempts are numbered without gaps."""
        paths: list[Path] = []
        while (path := self._claim_path(name, len(paths) + 1)).exists():
            paths.append(path)
        return paths

    def status(self, name: str) -> Status:
        done = (self.cells / f"{name}.json").exists()
        paths = self._paths(name)
        if not paths:
            return Status(name, "done" if done else "waiting")
        claim, attempt = _read(paths[-1], ClaimRecord), len(paths)
        if done:
            return Status(name, "done", attempt, claim)
        if claim.state == "failed":
            return Status(name, "failed", attempt, claim, claim.why)
        if claim.state == "running":
            if owner_alive(paths[-1], claim.machine, claim.pid, claim.born, self.lease):
                return Status(name, "running", attempt, claim)
            since_reset = itertools.takewhile(lambda c: c.state != "reset", reversed(self.attempts(name)))
            died = sum(c.state == "running" for c in since_reset)  # without a word
            if died >= self.deaths:
                last = f"its process died {died} times without a word (killed? out of memory?), last on {claim.host}"
                return Status(name, "failed", attempt, claim, f"{last}; see its log, then --retry-failed")
        return Status(name, "waiting", attempt, claim)

    def _claim_path(self, name: str, attempt: int) -> Path:
        return self.claims / f"{name}.{attempt:04d}.json"


def _once(path: Path, content: Any) -> bool:
    """Write a file under a name that nobody has. False: taken."""
    return write_once(path, dump_json(content))


def _read(path: Path, cls: type[T]) -> T:
    try:
        content = read_json(path)
        return content if cls is dict else from_json(cls, content, str(path))
    except UserError as error:
        if not path.exists():
            raise UserError(f"the ledger has no {path.parent.name}/{path.name}.") from None
        why = str(error).removeprefix(f"{path}").lstrip(": ")
        raise UserError(f"{path} is damaged; remove it, and its cell runs again: {why}") from None


class Claim:
    """A cell in somebody's hands. Ends with `done`, `failed` or `release`; whoever dies simply stops touching it."""

    def __init__(self, ledger: Ledger, name: str, attempt: int, content: ClaimRecord) -> None:
        self.ledger, self.name, self.attempt, self.content = ledger, name, attempt, content
        self.path, self.ended = ledger._claim_path(name, attempt), False

    def touch(self) -> bool:
        """The heartbeat; whether the claim is still held: no later attempt exists."""
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return not self.ledger._claim_path(self.name, self.attempt + 1).exists()

    @contextlib.contextmanager
    def beating(self, lost: Callable[[], None] = lambda: None) -> "Iterator[Claim]":
        """Touch the claim from a thread; call `lost` once if somebody else has taken the cell."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(self.ledger.lease / 6):
                if not self.touch():
                    lost()
                    return

        thread = threading.Thread(target=beat, daemon=True, name="lpwm-heartbeat")
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def done(self, result: Any, files: Mapping[str, str] | None = None) -> bool:
        """Write the record. False: another attempt was first, and its record stands."""
        same: dict[str, Any] = {
            name: getattr(self.content, name) for name in ("hash", "attempt", "host", "pid", "started")
        }
        what: dict[str, Any] = {"cell": self.ledger.planned(self.name), "result": to_json(result)}
        record = Record(**same, **what, lpwm=code_version(), finished=time.time(), files=dict(files or {}))
        first = _once(self.ledger.cells / f"{self.name}.json", record)
        self._end("done" if first else "late", "")
        return first

    def failed(self, why: str, detail: str = "") -> None:
        self._end("failed", why, detail)

    def release(self, why: str = "interrupted") -> None:
        """Back to waiting: the next attempt continues from the last checkpoint."""
        self._end("released", why)

    def _end(self, state: Literal["done", "late", "failed", "released"], why: str, detail: str = "") -> None:
        """Only the owner writes its own claim, so replacing it races with nobody. The first end counts."""
        if self.ended:
            return
        self.ended = True
        content = replace(self.content, state=state, why=why, detail=detail, finished=time.time())
        write_whole(self.path, dump_json(content))
