"""One writer per folder: who writes into it says so there, and others are refused with who it is and since when.

    FOLDER/.writer/000003.json   the third writer; its modification time is the heartbeat

A claim is written under another name and then linked to the next free number, which one process of any number does.
The highest number has the folder, until it is released or its owner is dead: on this machine its process is gone; on
another it gave no heartbeat for `lease` seconds by the clock of the file system. The highest claim is never removed,
so that numbers are not used twice; a process that was only asleep sees a higher one than its own and stops.
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from lpwm.core.errors import UserError
from lpwm.core.files import disk_error, make_folder, write_once, write_whole
from lpwm.core.json import dump_json, from_json, read_json

LEASE = 600.0  # seconds without a heartbeat after which another machine's claim is void


class Busy(UserError):
    """Another process writes here."""


@cache
def machine() -> str:
    """Names this machine and, in containers, its process numbers: only there does a process id mean anything."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def born(pid: int) -> str:
    """When a process started, in ticks: process ids are used again. "" when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if text[0] in "ZX" else text[19]
    except (OSError, IndexError):
        pass
    if os.path.exists("/proc/self/stat"):
        return ""
    try:  # no /proc here: a process that can be signaled lives
        os.kill(pid, 0)
        return "alive"
    except OSError:
        return ""


def file_clock(folder: Path) -> float:
    """The time by the clock that stamps the files of a folder: that of the file system, not of this machine."""
    probe = folder / f".clock.{os.getpid()}.{threading.get_ident()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def owner_alive(path: Path, host: str, pid: int, start: str, lease: float) -> bool:
    """Whether the process that wrote this claim lives: by its id and start on this machine, else by its heartbeat."""
    if host == machine():
        return born(pid) == start != ""
    try:
        return file_clock(path.parent) - path.stat().st_mtime < lease
    except OSError:
        return False


@dataclass(frozen=True)
class Owner:
    """Who has a folder."""

    what: str = "another process"  # it is doing
    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=machine)
    pid: int = field(default_factory=os.getpid)
    born: str = field(default_factory=lambda: born(os.getpid()))
    since: float = field(default_factory=time.time)
    lease: float = LEASE
    released: bool = False

    def alive(self, path: Path) -> bool:
        """Whether it still has the folder; `path` is its claim."""
        return not self.released and owner_alive(path, self.machine, self.pid, self.born, self.lease)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.what} (process {self.pid} on {self.host}, since {since})"


@dataclass
class Writer:
    """A folder in this process's hands."""

    folder: Path
    path: Path  # its claim
    owner: Owner

    def check(self) -> None:
        """Called before writing: a UserError once somebody else has taken the folder over."""
        last = _last(self.path.parent)
        if last is None:
            raise disk_error(FileNotFoundError(errno.ENOENT, "gone"), self.folder)
        if last != self.path:
            raise Busy(f"{self.folder} was taken over by {_owner(last)}: this process gave no sign of life for long.")

    def beat(self, stop: threading.Event) -> None:
        while not stop.wait(self.owner.lease / 6):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def _last(claims: Path) -> Path | None:
    return max((p for p in claims.glob("*.json") if p.stem.isdecimal()), key=lambda p: int(p.stem), default=None)


def _owner(path: Path) -> Owner:
    """What a claim says; one that cannot be read belongs to nobody known, who is alive while it is fresh."""
    try:
        return from_json(Owner, {"machine": "", "host": "?", "born": "", "pid": 0, "since": 0} | read_json(path))
    except UserError:
        return Owner(host="an unknown machine", machine="?", pid=0, born="?")


def _claim(folder: Path, owner: Owner) -> Path:
    claims = folder / ".writer"
    make_folder(claims)
    while True:
        last = _last(claims)
        if last is not None:
            other = _owner(last)
            if other.alive(last):
                raise Busy(f"{folder} is in use by {other}: wait for it, or end that process first.")
        number = int(last.stem) + 1 if last is not None else 1
        path = claims / f"{number:06d}.json"
        if write_once(path, dump_json(owner)):
            if _last(claims) == path:
                break
            path.unlink(missing_ok=True)  # a number of the past: others came and went since `last` was read
    for old in claims.glob("[0-9]*.json"):
        if old < path:
            old.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def one_writer(folder: Path, what: str, lease: float = LEASE) -> Iterator[Writer]:
    """Have a folder to oneself. `what` this process does there, for the sentence that the second one gets."""
    owner = Owner(what, lease=lease)
    writer = Writer(folder, _claim(folder, owner), owner)
    stop = threading.Event()
    thread = threading.Thread(target=writer.beat, args=(stop,), daemon=True, name="lpwm-heartbeat")
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        thread.join()
        with contextlib.suppress(UserError):  # the folder may be gone, or full: a process that ended has it no more
            if writer.path.exists():
                write_whole(writer.path, dump_json(replace(owner, released=True)))
