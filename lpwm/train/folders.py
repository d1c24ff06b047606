"""Folders that are whole or absent, and that say so themselves.

A sealed folder holds some files and `state.json`, which is written last and names the SHA-256 and the byte count of
every other file, and its own checksum. It is written under a temporary name, every file flushed, then renamed. So
whatever moment a process is killed at, a folder under its final name is whole; and what is cut or altered later (a full
disk, a bad copy, a flipped bit) is seen before anything is read from it.

    RUN/checkpoints/step-00001234/   model.safetensors  config.json  optimizer.safetensors  state.json
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpwm.core.config import renamed
from lpwm.core.errors import UserError

FORMAT = 1
STATE = "state.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
OLD_OPTIMIZER = "optimiser.safetensors"  # as 0.1.0 called it
CHECKPOINTS = "checkpoints"
_FIELDS: dict[str, Any] = {"step": int, "run": dict, "run_hash": str, "metric": float | None, "files": dict}
_TEMPORARY = ".lpwm-tmp-"
_NAME = re.compile(r"step-(\d{8,})(\.old)?")  # `.old`: being replaced by the same step; good until that is done


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; `refused` says, a sentence each, which newer (or better) ones were passed over."""

    folder: Path
    state: dict[str, Any]
    refused: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        return self.state["step"]

    @property
    def run(self) -> dict[str, Any]:
        return self.state["run"]

    @property
    def run_hash(self) -> str:
        return self.state["run_hash"]

    @property
    def metric(self) -> float | None:
        return self.state["metric"]


class Damaged(UserError):
    """A folder that is not what was written; the text is one sentence that names it."""


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk; not every platform can open a folder."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def fingerprint(path: Path) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def dump(value: dict[str, Any]) -> bytes:
    """JSON such that dump(parse(text)) == text: a file that was altered anywhere is no fixed point or another value."""
    return (json.dumps(value, indent=1) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{path} is missing.") from None
    except (ValueError, RecursionError):
        raise Damaged(f"{path} is not JSON: it is cut or altered, or no file of LpWM.") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path} is no file of LpWM: it holds a {type(value).__name__} instead of an object.")
    return value


def seal(folder: Path, state: dict[str, Any]) -> None:
    """Flush every file of `folder`, then write `state.json` with their fingerprints and its own checksum."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    for path in files:
        sync(path)
    state = {**state, "files": {path.name: fingerprint(path) for path in files}}
    state["checksum"] = hashlib.sha256(dump(state)).hexdigest()
    (folder / STATE).write_bytes(dump(state))
    sync(folder / STATE)
    sync(folder)


def glance(folder: Path) -> dict[str, Any]:
    """`state.json` with its own checksum and the sizes of all files tested, which costs nothing; or Damaged."""
    path = folder / STATE
    state = read_json(path)
    if state.get("format") != FORMAT:
        raise Damaged(
            f"{path} is no checkpoint state of format {FORMAT} (it says {state.get('format')!r}): "
            "use the version of lpwm that wrote it."
        )
    rest = {name: value for name, value in state.items() if name != "checksum"}
    if state.get("checksum") != hashlib.sha256(dump(rest)).hexdigest() or path.read_bytes() != dump(state):
        raise Damaged(f"{path} was altered after it was written.")
    for name, kind in _FIELDS.items():
        if name not in state:
            raise Damaged(f"{path} lacks the field {name!r}.")
        if not isinstance(state[name], kind):
            raise Damaged(f"{path} has a field {name!r} of the wrong type, {type(state[name]).__name__}.")
    for name in (WEIGHTS, CONFIG):
        if name not in state["files"]:
            raise Damaged(f"{path} does not list {name}.")
    for name, wanted in state["files"].items():
        check_size(folder, name, wanted)
    return state


def check_size(folder: Path, name: str, wanted: Any) -> None:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise Damaged(f"{path} is missing.")
    size, bytes_ = path.stat().st_size, wanted.get("bytes") if isinstance(wanted, dict) else None
    if size != bytes_:
        what = "truncated" if isinstance(bytes_, int) and size < bytes_ else "not what was written"
        raise Damaged(f"{path} is {what}: {size} bytes instead of {bytes_}.")


def check_file(folder: Path, name: str, wanted: Any) -> None:
    """Damaged unless `folder/name` has the size and the SHA-256 of its fingerprint."""
    check_size(folder, name, wanted)
    if fingerprint(folder / name) != wanted:
        raise Damaged(f"{folder / name} was altered after it was written: its checksum differs.")


def verify(folder: Path) -> dict[str, Any]:
    """The state of a sealed folder whose files are all what was written; else Damaged."""
    state = glance(folder)
    for name, wanted in state["files"].items():
        check_file(folder, name, wanted)
    return renamed(state)


@contextmanager
def scratch(root: Path, name: str) -> Iterator[Path]:
    """An empty folder under a temporary name in `root`, gone at the end unless it was renamed.

    What killed processes left in `root` is swept first: a run or a model folder has one writer.
    """
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    temporary = root / f"{_TEMPORARY}{name}-{os.getpid()}"
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put(temporary: Path, final: Path) -> None:
    """Give a sealed folder its name. One that has the name already still counts, as `.old`, until this is done."""
    old = final.with_name(final.name + ".old")
    if final.exists():
        remove(old)
        os.rename(final, old)
    os.rename(temporary, final)
    sync(final.parent)
    remove(old)


def remove(folder: Path) -> None:
    """Delete a folder; one that is half deleted never stands under its own name."""
    if folder.exists():
        doomed = folder.with_name(f"{_TEMPORARY}{folder.name}-gone-{os.getpid()}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove what killed processes left: temporary folders, and set-aside ones whose successor is in place."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.name.startswith(_TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)
        elif _NAME.fullmatch(path.name) and path.suffix == ".old" and path.with_suffix("").exists():
            remove(path)


def root_of(run_folder: Path | str) -> Path:
    """RUN/checkpoints; both RUN and RUN/checkpoints are understood."""
    run_folder = Path(run_folder)
    return run_folder if run_folder.name == CHECKPOINTS else run_folder / CHECKPOINTS


def step_of(folder: Path) -> int:
    match = _NAME.fullmatch(folder.name)
    assert match, folder
    return int(match[1])


def existing(run_folder: Path | str) -> list[Path]:
    """Folders of checkpoints, newest first; nothing is verified. Empty when the run has none yet."""
    root = root_of(run_folder)
    found = [p for p in root.iterdir() if _NAME.fullmatch(p.name)] if root.is_dir() else []
    return sorted(found, key=lambda p: (step_of(p), p.suffix != ".old"), reverse=True)


def _first_sound(run_folder: Path | str, folders: list[Path], refused: list[str]) -> Checkpoint:
    for folder in folders:
        try:
            state = verify(folder)
            if state["step"] != step_of(folder):
                raise Damaged(f"{folder} was renamed: it holds step {state['step']}.")
            return Checkpoint(folder, state, refused)
        except (Damaged, OSError) as error:
            refused.append(f"checkpoint {folder.name} is refused: {str(error).rstrip('.')}.")
    if not refused:
        raise UserError(
            f"{run_folder} has no checkpoint: give the folder of a run that has saved one, or start the run again."
        )
    raise UserError(
        f"{run_folder} has no usable checkpoint ({' '.join(refused).rstrip('.')}): restore the folder from "
        "a copy or start the run again."
    )


def latest(run_folder: Path | str) -> Checkpoint:
    """The newest checkpoint of a run that is whole. Those refused on the way are in `.refused`."""
    return _first_sound(run_folder, existing(run_folder), [])


def best(run_folder: Path | str) -> Checkpoint:
    """The checkpoint with the lowest metric (of equals the later) that is whole."""
    metrics, refused = {}, []
    for folder in existing(run_folder):
        try:
            metrics[folder] = glance(folder)["metric"]
        except (Damaged, OSError) as error:
            refused.append(f"checkpoint {folder.name} is refused: {str(error).rstrip('.')}.")
    if metrics and all(m is None for m in metrics.values()):
        raise UserError(f"no checkpoint of {run_folder} has a metric to be best in: use the latest.")
    ranked = sorted((f for f in metrics if metrics[f] is not None), key=lambda f: (metrics[f], -step_of(f)))
    return _first_sound(run_folder, ranked, refused)


CHOICES: dict[str, Callable[[Path | str], Checkpoint]] = {"latest": latest, "best": best}


def prune(root: Path, step: int, keep: int) -> None:
    """After a save at `step`: keep the last `keep` and the best up to it, remove the other sound ones.

    Damaged ones do not count, so they never crowd out sound ones, and stay until their step is saved again. Later
    ones are left alone: no run saves behind its own end, so they are damaged or not ours to delete.
    """
    states: dict[Path, dict[str, Any]] = {}  # newest first
    for folder in existing(root):
        if step_of(folder) <= step:
            with suppress(Damaged, OSError):
                states[folder] = glance(folder)
    scored = [f for f in states if states[f]["metric"] is not None]
    kept = set(list(states)[:keep])
    if scored:
        kept.add(min(scored, key=lambda f: (states[f]["metric"], -step_of(f))))
    for folder in states.keys() - kept:
        with suppress(OSError):  # the save itself stands; the next one tries again
            remove(folder)


def best_so_far(root: Path, step: int, metric: float | None) -> dict[str, Any] | None:
    """{"step", "metric"} of the lowest metric among the checkpoints up to `step` and the one being saved."""
    found = [(metric, -step)] if metric is not None and math.isfinite(metric) else []
    for folder in existing(root):
        with suppress(Damaged, OSError):
            state = glance(folder)
            if state["step"] < step and state["metric"] is not None:
                found.append((state["metric"], -state["step"]))
    return {"step": -min(found)[1], "metric": min(found)[0]} if found else None
