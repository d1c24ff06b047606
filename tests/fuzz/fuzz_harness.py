"""Damaged files of every kind, seeded and bounded: each is read whole, or refused in one sentence.

A target makes sound files once and reads them back; a case changes one of its files and reads again. In a case

    traceback   anything but a UserError of one line                 must not happen
    hang        more than SECONDS, or a process that died            must not happen
    wrong       other contents than the sound ones, where the        must not happen
                target is sealed (digests cover everything read)

and the memory of the reading process stays below MEMORY. Case i of a target depends on (seed, target, i) alone:

    python tests/fuzz/fuzz_harness.py --cases 10000            all targets together
    python tests/fuzz/fuzz_harness.py --target hdf5 --case 17  one case again, here, with its traceback

Targets register themselves with `@target(...)` in files fuzz_targets*.py next to this one.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lpwm.core.errors import UserError
from lpwm.core.provenance import origin, versions

SECONDS, MEMORY = 20.0, 2 << 30
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Target:
    """make(folder) writes sound files; read(folder) gives what they hold, comparable with ==.

    files: patterns of those that are changed. sealed: digests cover everything that `read` gives.
    """

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    files: tuple[str, ...]
    sealed: bool


TARGETS: dict[str, Target] = {}


def target(name: str, make: Callable[[Path], None], *files: str, sealed: bool = False) -> Callable[[Any], Any]:
    """Register the decorated function as the reader of a target."""

    def register(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        TARGETS[name] = Target(name, make, read, files, sealed)
        return read

    return register


def load_targets() -> dict[str, Target]:
    sys.path.insert(0, str(HERE))
    sys.modules.setdefault("fuzz_harness", sys.modules[__name__])
    for path in sorted(HERE.glob("fuzz_targets*.py")):
        importlib.import_module(path.stem)
    return TARGETS


# Changes -----------------------------------------------------------------------------------------------------


def flip(data: bytearray, g: random.Random) -> None:
    for _ in range(g.choice((1, 1, 1, 8))):
        data[_place(data, g)] ^= 1 << g.randrange(8)


def overwrite(data: bytearray, g: random.Random) -> None:
    at = _place(data, g)
    data[at : at + 8] = g.randbytes(min(8, len(data) - at))


def truncate(data: bytearray, g: random.Random) -> None:
    del data[_place(data, g) :]


def cut(data: bytearray, g: random.Random) -> None:
    at = _place(data, g)
    del data[at : at + g.randrange(1, 64)]


def splice(data: bytearray, g: random.Random) -> None:
    """A piece of the file over, or into, another place of it."""
    start, at, size = _place(data, g), _place(data, g), g.randrange(1, 256)
    data[at : at + (size if g.random() < 0.5 else 0)] = data[start : start + size]


def zero(data: bytearray, g: random.Random) -> None:
    at = _place(data, g)
    data[at : at + 256] = bytes(len(data[at : at + 256]))


def huge(data: bytearray, g: random.Random) -> None:
    """A number of eight, four or two bytes, as large as they hold, or nearly."""
    size = g.choice((2, 4, 8))
    at = _place(data, g) // size * size
    value = g.choice((2 ** (8 * size) - 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 2), 10 ** min(9, 2 * size)))
    data[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")[: len(data) - at]


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


INSTEAD = (os.mkfifo, os.mkdir, endless, nowhere)
BYTES = (flip, flip, overwrite, truncate, cut, splice, zero, huge)


def _place(data: bytearray, g: random.Random) -> int:
    """Half of the changes go to the first 4096 bytes, where headers are."""
    return g.randrange(min(len(data), 4096) if g.random() < 0.5 else len(data)) if data else 0


ODD: tuple[Any, ...] = (None, True, -1, 0, 1e308, 10**30, -(2**63), float("nan"), float("inf"), "", "x" * 5000, [], {})
ODD += ([[1, 2], [3]], "\u001b[31m", "../../etc", 3.5, [None], {"": 0}, "9" * 400)


def change_json(text: str, g: random.Random) -> str:
    """Fields swapped, removed, renamed, replaced by odd values, or nested deeply."""
    value = json.loads(text)
    places = list(_places(value, []))
    for _ in range(g.choice((1, 1, 3))):
        holder, key = g.choice(places)
        kind = g.randrange(6)
        if kind == 0:
            other, name = g.choice(places)
            holder[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(holder[key])
        elif kind == 1 and isinstance(holder, dict):
            holder.pop(key, None)
            places = list(_places(value, [])) or places
        elif kind == 2 and isinstance(holder, dict):
            holder[str(key) + "x"] = holder.pop(key, None)
            places = list(_places(value, [])) or places
        elif kind == 3:
            depth = g.choice((70, 500, 100_000))
            return json.dumps(value).replace(json.dumps(holder[key]), "[" * depth + "]" * depth, 1)
        else:
            holder[key] = copy.deepcopy(g.choice(ODD))
    return json.dumps(value)


def _places(value: Any, path: list[Any]) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner, path)


def change(path: Path, g: random.Random) -> str:
    """Change one file; returns how, for the report."""
    if g.random() < 0.04:
        instead = g.choice(INSTEAD)
        path.unlink()
        instead(path)
        return f"{path.name}: {instead.__name__}"
    data = bytearray(path.read_bytes())
    if path.suffix in (".json", ".jsonl") and g.random() < 0.6:
        lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
        at = g.randrange(len(lines))
        try:
            lines[at] = change_json(lines[at], g)
            path.write_text("\n".join(lines) + "\n")
            return f"{path.name}: fields"
        except (RecursionError, LookupError):  # nothing to change in it
            pass
    how = g.choice(BYTES)
    how(data, g)
    path.write_bytes(data)
    return f"{path.name}: {how.__name__}"


# Cases -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    target: str
    cases: int = 0
    refused: int = 0
    same: int = 0  # read, and as the sound one
    other: int = 0  # read, and not: where no digest could tell
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: int = 0

    def line(self) -> str:
        counts = f"{self.refused:>6} refused {self.same:>6} same {self.other:>6} other {len(self.problems):>3} problems"
        return f"{self.target:<12}{self.cases:>6} cases{counts}  {self.slowest:>6.2f} s  {self.memory >> 20:>5} MB"


def one_case(this: Target, sound: Path, expected: Any, seed: int, number: int, folder: Path) -> tuple[str, str]:
    """The outcome of a case ("refused", "same", "other", "wrong", "traceback") and what to say of it."""
    g = random.Random(f"{seed} {this.name} {number}")
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound, place)
    files = sorted({path for pattern in this.files for path in place.glob(pattern)})
    how = change(g.choice(files), g)
    try:
        got = this.read(place)
    except UserError as error:
        told = str(error)
        return ("traceback", f"{how}: a sentence of lines: {told!r}") if "\n" in told else ("refused", told)
    except Exception:
        return "traceback", f"{how}: {traceback.format_exc(limit=-4)}"
    if got == expected:
        return "same", how
    return ("wrong" if this.sealed else "other"), how


def _serve(pipe: Connection, this: Target, seed: int, numbers: range, folder: Path) -> None:
    torch.set_num_threads(1)  # those of the parent are not here
    expected = this.read(folder / "sound")  # here and not in the parent: threads of libraries do not survive a fork
    pipe.send("ready")
    for number in numbers:
        pipe.send((number, *one_case(this, folder / "sound", expected, seed, number, folder), _peak()))
    pipe.send(None)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(name: str, cases: int, seed: int = 0) -> Report:
    """`cases` cases of a target, in a process of their own that is watched."""
    this, report = TARGETS[name], Report(name)
    context = multiprocessing.get_context("fork")  # nothing to import again: a target takes a second
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sound = folder / "sound"
        sound.mkdir()
        this.make(sound)
        number = 0
        while number < cases:
            here, there = context.Pipe()
            arguments = (there, this, seed, range(number, cases), folder)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            number = _watch(here, report, number)
            process.kill()
            process.join()
    return report


def _watch(pipe: Connection, report: Report, number: int) -> int:
    """Follow a process until it is done, hangs or dies; returns the case to go on with."""
    if not pipe.poll(10 * SECONDS) or pipe.recv() != "ready":
        raise RuntimeError(f"{report.target}: the sound files cannot be read")
    while True:
        began = time.monotonic()
        answered = pipe.poll(SECONDS)
        try:
            answer = pipe.recv() if answered else None
            if answered and answer is None:
                return sys.maxsize
        except EOFError:
            answer, answered = None, False
        report.cases += 1
        if answer is None:
            report.problems.append(f"case {number}: it hangs or dies")
            return number + 1
        number, outcome, told, memory = answer
        report.slowest, report.memory = max(report.slowest, time.monotonic() - began), max(report.memory, memory)
        if outcome in ("wrong", "traceback"):
            report.problems.append(f"case {number}: {outcome}: {told}")
        else:
            setattr(report, outcome, getattr(report, outcome) + 1)
        if memory > MEMORY:
            report.problems.append(f"case {number}: {memory >> 20} MB of memory")
            return number + 1
        number += 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Read damaged files of every kind.")
    parser.add_argument("--cases", type=int, default=2000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", help="one target; may be repeated")
    parser.add_argument("--case", type=int, help="run this case here and show what it raises")
    parser.add_argument("--json", type=Path, help="write the reports here")
    args = parser.parse_args()
    names = args.target or list(load_targets())
    load_targets()
    if args.case is not None:
        with tempfile.TemporaryDirectory() as temporary:
            sound = Path(temporary) / "sound"
            sound.mkdir()
            this = TARGETS[names[0]]
            this.make(sound)
            print(*one_case(this, sound, this.read(sound), args.seed, args.case, Path(temporary)), sep="\n")
        return 0
    reports = []
    for name in names:
        reports.append(fuzz(name, -(-args.cases // len(names)), args.seed))
        print(reports[-1].line(), *reports[-1].problems[:5], sep="\n", flush=True)
    if args.json:
        total = {name: sum(getattr(r, name) for r in reports) for name in ("cases", "refused", "same", "other")}
        total |= {"problems": sum(len(r.problems) for r in reports), "slowest": max(r.slowest for r in reports)}
        total |= {"memory": max(r.memory for r in reports)}
        record = {"seed": args.seed, "total": total, "versions": versions() | origin(), "rows": [*map(vars, reports)]}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(r.problems for r in reports))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
