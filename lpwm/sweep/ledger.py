"""The ledger: the only truth about which cells are waiting, running, done or failed.

    plan/HASH.json          what the cell is
    claims/HASH.0001.json   attempt 1: who took it and how it ended; its modification time is the heartbeat
    cells/HASH.json         the record of a finished cell: appears whole, once, and never changes

No locks, no server. A file is written under another name and then *linked* to its own, which fails where the name is
taken: of any number of processes, on any number of machines that share the folder, exactly one gets attempt n, and
exactly one gets to write the record. A claim is a lease: whoever died (on this machine: its process is gone;
elsewhere: no heartbeat for `lease` seconds by the clock of the file system) loses it to attempt n+1. A process that
was only asleep finds a later attempt than its own and stops; if it finishes first, its record stands and the other's
is dropped: both are the same function of the same config.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_once, write_whole
from lpwm.core.json import dump_json, from_json, read_json, to_json
from lpwm.core.provenance import origin
from lpwm.core.rng import seed_of
from lpwm.core.version import __version__

T = TypeVar("T")
State = Literal["waiting", "running", "done", "failed"]
LEASE = 90.0  # seconds without a heartbeat after which another machine's claim is void
DEATHS = 3  # claims that ended without a word before the cell counts as failed


@cache
def _machine() -> str:
    """Names this machine and, in containers, its process numbers: only there does a process id mean anything."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def code_version() -> str:
    """The release and a digest of the sources: two checkouts of one release need not be the same code."""
    return f"{__version__}+{str(origin()['source'])[:8]}"


def _born(pid: int) -> str:
    """When a process started, in ticks: process ids are used again. "" when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if text[0] in "ZX" else text[19]
    except (OSError, IndexError):
        pass
    if os.path.exists("/proc/self/stat"):
        return ""
    try:  # no /proc here: a process that can be signalled lives
        os.kill(pid, 0)
        return "alive"
    except OSError:
        return ""


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
    token: str = ""
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

    def open(self) -> Ledger:
        for folder in (self.plan, self.claims, self.cells):
            make_folder(folder)
        return self

    def add(self, cells: Mapping[str, Any]) -> int:
        """Enter cells by their hash, as anything JSON can hold; those known already stay. How many were new."""
        return sum(self._once(self.plan / f"{name}.json", cell) for name, cell in cells.items())

    def claim(self, name: str) -> Claim | None:
        """Take a waiting cell; None where it is done, failed, or somebody else's."""
        status = self.status(name)
        if status.state != "waiting":
            return None
        attempt = status.attempt + 1
        content = ClaimRecord(
            hash=name,
            attempt=attempt,
            state="running",
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            born=_born(os.getpid()),
            started=time.time(),
            lpwm=code_version(),
            token=f"{seed_of(_machine(), os.getpid(), time.time_ns(), name):x}",
        )
        if not self._once(self._claim_path(name, attempt), content):
            return None  # somebody was faster
        if (self.cells / f"{name}.json").exists():  # finished between the look and the claim
            return None
        return Claim(self, name, attempt, content)

    def retry(self, name: str) -> bool:
        """A failed cell waits again; what it failed of stays in its claims."""
        status = self.status(name)
        if status.state != "failed":
            return False
        reset = ClaimRecord(hash=name, attempt=status.attempt + 1, state="reset", started=time.time())
        return self._once(self._claim_path(name, reset.attempt), reset)

    def sweep_up(self) -> None:
        """Remove what killed writers left half-written, once no living one can own it."""
        for folder in (self.plan, self.claims, self.cells):
            for path in folder.glob(".*.tmp"):
                with contextlib.suppress(OSError):
                    if self._now() - path.stat().st_mtime > self.lease:
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
            if self._alive(paths[-1], claim):
                return Status(name, "running", attempt, claim)
            died = self._deaths(paths)
            if died >= self.deaths:
                why = (
                    f"its process died {died} times without a word (killed? out of memory?), last on {claim.host}; "
                    "see its log, then --retry-failed"
                )
                return Status(name, "failed", attempt, claim, why)
        return Status(name, "waiting", attempt, claim)

    def _deaths(self, paths: list[Path]) -> int:
        """Claims since the last reset that ended without a word."""
        count = 0
        for path in reversed(paths):
            state = _read(path, ClaimRecord).state
            if state == "reset":
                break
            count += state == "running"
        return count

    def _alive(self, path: Path, claim: ClaimRecord) -> bool:
        if claim.machine == _machine():
            return _born(claim.pid) == claim.born != ""
        try:
            return self._now() - path.stat().st_mtime < self.lease
        except OSError:
            return False

    def _now(self) -> float:
        """The time by the clock that stamps the claims: that of the file system, not of this machine."""
        probe = self.claims / f".clock.{os.getpid()}.{threading.get_ident()}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()

    def _claim_path(self, name: str, attempt: int) -> Path:
        return self.claims / f"{name}.{attempt:04d}.json"

    def _once(self, path: Path, content: Any) -> bool:
        """Write a file under a name that nobody has: whole, durable, and by one process only. False: taken."""
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

    @property
    def held(self) -> bool:
        """Whether no later attempt exists."""
        return not self.ledger._claim_path(self.name, self.attempt + 1).exists()

    def touch(self) -> bool:
        """The heartbeat; whether the claim is still held."""
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return self.held

    @contextlib.contextmanager
    def beating(self, lost: Callable[[], None] = lambda: None) -> Iterator[Claim]:
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
        record = Record(
            hash=self.name,
            attempt=self.attempt,
            host=self.content.host,
            pid=self.content.pid,
            lpwm=code_version(),
            started=self.content.started,
            finished=time.time(),
            cell=self.ledger.planned(self.name),
            result=to_json(result),
            files=dict(files or {}),
        )
        first = self.ledger._once(self.ledger.cells / f"{self.name}.json", record)
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
