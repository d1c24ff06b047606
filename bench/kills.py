"""SIGKILL at random moments, and the same command started twice: every end state is that of an undisturbed run.

    python bench/kills.py --kills 400 --pairs 50 [--seed 0] [--verbs train eval] [--json OUT]

A trial starts a command in an empty folder, kills it up to MOST times at moments spread over its undisturbed time, each
time starting it again, and lets the last one end. Killed are, in turn: the process with all it started, the process
alone (its workers live on for a while), one of its workers. A pair is the same command twice, at once or soon after:
the second shares the work, finds it done, or is refused in one sentence with who has the folder and since when.
Compared is every file but pages, TensorBoard's and what names a process; of JSON and logs all but times.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpwm.cli import demo
from lpwm.cli import main as command
from lpwm.core.errors import UserError
from lpwm.core.provenance import origin, read_log, sessions, versions
from lpwm.data import read
from lpwm.data.formats import verify_frames
from lpwm.evaluate.episodes import read_record
from lpwm.recipes import dense, recipe, tiny
from lpwm.sweep import worker
from lpwm.sweep.engines import local

collecting = importlib.import_module("lpwm.data.collecting")
Kill = tuple[str, float]  # how, and after how many seconds
PAIRS = ("train", "collect", "sweep")
MOST = 6  # kills of a trial
PATIENCE = 180.0  # seconds that a command may take after its last kill
SMALL = "--model.latent 8 --model.encoder.width 8 --model.encoder.head-dim 8 --model.projector.hidden 8"
TRAIN = f"train tiny/lpwm {SMALL} --objective.rdmreg.slices 16 --data.episodes 12 --train.no-stop-dead --device cpu"
TRAIN += " --train.steps 30 --train.checkpoint-every 3 --train.log-every 2 --train.eval-every 10 --train.eval-batches 1"
COLLECT = "collect piecewise --episodes 200 --steps 20 --pixels --size 32"
EVAL = "--goals random --episodes 4 --budgets 25 --receding 1 5 --horizon 2 5 --planner-seeds 2 --device cpu"
EVAL += " --solver-options samples=8 elites=2 iterations=2"
GRID = """recipe = "tiny/{method}"
seeds = [0, 1]
[axes]
method = ["lpwm", "lewm"]
[fixed]
"data.episodes" = 12
"train.steps" = 20
"train.log_every" = 5
"train.checkpoint_every" = 5
[eval.quick]
preset = "quick"
goals = ["random"]
episodes = 2
budgets = [25]
options = { samples = 8, elites = 2, iterations = 2 }
curve = 0
"""
VOLATILE = {"time", "times", "seconds", "wall_s", "started", "finished", "pid", "host", "machine", "born", "attempt"}
VOLATILE |= {"steps_per_second", "minutes", "stored_records", "predicted_s"}
IGNORED = re.compile(
    r"(^|/)(\.lpwm-tmp-[^/]*|\.writer|tensorboard|logs|claims)/|\.html$|training\.json$|\.lock$|\.tmp(\.\w+)?$"
)


@dataclass(frozen=True)
class Verb:
    """prepare(folder) before the first start; command(folder), the same at every start."""

    command: Callable[[Path], list[str]]
    prepare: Callable[[Path], Any] = lambda folder: None


def _small_recipe(name: str) -> Any:
    config = tiny()
    train = replace(config.train, steps=20, checkpoint_every=4, stop_dead=False)
    config = replace(config, data=replace(config.data, steps=60), train=train)
    return dense(config) if name.endswith("lewm") else config


def small_demo() -> None:
    options = {"samples": 8, "elites": 2, "iterations": 2}
    demo.recipe, demo.PLANNING = _small_recipe, replace(demo.PLANNING, episodes=4, options=options, curve=16)


class Forked:
    """A sweep's worker as subprocess.Popen would give it, without importing everything for each."""

    def __init__(self, root: Path, names: Any, config: Any, number: int) -> None:
        parent, self.code = os.getpid(), None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            options = [f"--threads={config.cpus}", "--device=cpu", f"--lease={config.lease}", f"--parent={parent}"]
            os._exit(worker.main([str(root), *options, "--only", *names]))

    def poll(self) -> int | None:
        if self.code is None:
            self.code = wait(self.pid, 0.0)
        return self.code

    def wait(self, seconds: float = 60.0) -> int | None:
        self.code = self.code if self.code is not None else wait(self.pid, seconds)
        return self.code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _trained(folder: Path) -> None:
    if run([*TRAIN.split(), "--out", str(folder / "runs")], folder / "train.txt") != 0:
        raise RuntimeError((folder / "train.txt").read_text())


def _eval(folder: Path) -> list[str]:
    (place,) = (folder / "runs").glob("tiny-lpwm-*")
    return ["eval", str(place), *EVAL.split(), "--out", str(folder / "eval.json")]


def _sweep(folder: Path) -> list[str]:
    # A cell whose process died three times counts as failed until it is told to try again.
    words = "--workers 2 --device cpu --retry-failed"
    return ["sweep", str(folder / "mini.toml"), "--out", str(folder / "sweeps"), *words.split()]


VERBS = {
    "train": Verb(lambda folder: [*TRAIN.split(), "--out", str(folder / "runs")]),
    "collect": Verb(lambda folder: [*COLLECT.split(), "--workers", "1", "--out", str(folder / "a.h5")]),
    "collect-2": Verb(lambda folder: [*COLLECT.split(), "--workers", "2", "--out", str(folder / "a.h5")]),
    "eval": Verb(_eval, _trained),
    "sweep": Verb(_sweep, lambda folder: (folder / "mini.toml").write_text(GRID)),
    "demo": Verb(lambda folder: ["demo", "--out", str(folder / "demo"), "--device", "cpu"]),
}


# Processes ---------------------------------------------------------------------------------------------------


def start(argv: list[str], told: Path) -> int:
    """A command in a process of its own that has everything imported, in a session of its own; its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    with told.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    code = 1
    try:
        code = command(argv)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """The exit status; None while it runs."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(min(0.01, seconds / 10))


def run(argv: list[str], told: Path, seconds: float = PATIENCE) -> int:
    pid = start(argv, told)
    code = wait(pid, seconds)
    if code is None:
        kill([pid, *descendants(pid)])
        wait(pid, 10.0)
        raise TimeoutError(f"{argv[0]} takes more than {seconds:.0f} s")
    return code


def descendants(pid: int) -> list[int]:
    pids, level = [], [pid]
    while level:
        level = [child for parent in level for child in _children(parent)]
        pids += level
    return pids


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
        return [c for c in children if b"resource_tracker" not in Path(f"/proc/{c}/cmdline").read_bytes()]
    except OSError:
        return []


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# End states --------------------------------------------------------------------------------------------------


def state(folder: Path) -> dict[str, Any]:
    """What a folder holds, by name, but for times and for what names a process."""
    out: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if name.endswith("training.json"):
            out[name] = sessions(path.parent)[-1].to_step  # a killed stretch leaves no entry
        if path.suffix == ".txt" or IGNORED.search(name) or not _latest(path.parent):
            continue
        out[name] = contents(path, folder)
    return out


def _latest(folder: Path) -> bool:
    """False for a checkpoint that is not the last: one more is written where a worker is told to stop."""
    return not folder.name.startswith("step-") or folder == max(folder.parent.glob("step-*[0-9]"))


def contents(path: Path, folder: Path) -> Any:
    if path.suffix == ".h5":
        verify_frames(path)
        return read(path).digest
    if path.name == "log.jsonl":
        return [{"step": r.step, "kind": r.kind} | steady(r.values) for r in read_log(path) if r.kind != "event"]
    if path.suffix == ".npz":
        return steady(vars(read_record(path)))
    data = path.read_bytes().replace(str(folder).encode(), b"FOLDER")
    if path.suffix == ".json":
        return steady(json.loads(data))
    return hashlib.sha256(data).hexdigest()


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: steady(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return [steady(inner) for inner in value] if isinstance(value, list) else repr(value)


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other}, key=str)
        return [d for k in keys for d in differences(one.get(k, "absent"), other.get(k, "absent"), f"{where}/{k}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{where}[{i}]")]
    return [] if one == other else [f"{where}: {str(one)[:80]} and not {str(other)[:80]}"]


# Trials ------------------------------------------------------------------------------------------------------


@dataclass
class Sound:
    """An undisturbed run: its seconds and its end state; `folder`: what a trial begins with."""

    seconds: float
    state: dict[str, Any]
    folder: Path


def undisturbed(verb: Verb, root: Path) -> Sound:
    begin, place = root / "begin", root / "work"
    begin.mkdir(parents=True)
    verb.prepare(begin)
    shutil.copytree(begin, place)
    _retarget(place, begin)
    began = time.monotonic()
    if run(verb.command(place), root / "told.txt") != 0:
        raise RuntimeError((root / "told.txt").read_text())
    seconds = time.monotonic() - began
    return Sound(seconds, state(place), begin)


def _retarget(place: Path, begin: Path) -> None:
    """Files that name the folder they were made in name this one."""
    for path in place.rglob("run.json"):
        path.write_text(path.read_text().replace(str(begin), str(place)))


def anew(sound: Sound, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound.folder, place)
    _retarget(place, sound.folder)


DONE = re.compile(r"lpwm: .*\.h5 exists:")  # killed after its last act: the file is whole, and is not made again


def trial(verb: Verb, sound: Sound, place: Path, told: Path, chance: random.Random, most: int) -> list[Kill]:
    """Kill up to `most` times; how and when, in the order of the kills. Raises where the end state is another one."""
    anew(sound, place)
    kills: list[Kill] = []
    code: int | None = None
    orphans: list[int] = []
    while len(kills) < most:
        how, after = chance.choice(("all", "all", "alone", "worker")), chance.uniform(0.0, sound.seconds)
        pid = start(verb.command(place), told)
        if (code := wait(pid, after)) is not None:
            break  # little was left to do
        workers = descendants(pid)
        if how == "worker" and workers:
            kill([chance.choice(workers)])
            kills.append((how, after))
            if (code := wait(pid, PATIENCE)) is None:
                raise TimeoutError("it waits for a worker that is dead")
            if code == 0:
                break
            continue
        kill([pid, *(workers if how == "all" else [])])
        code = wait(pid, 10.0)
        orphans += workers
        kills.append(("alone" if how == "alone" and workers else "all", after))
    code = run(verb.command(place), told) if code != 0 else 0
    kill([p for p in orphans if Path(f"/proc/{p}").exists() and os.getsid(p) != os.getsid(0)])
    last = told.read_text().rstrip().rpartition("\n")[2]
    if code != 0 and not (kills and DONE.match(last)):
        raise AssertionError(f"exit status {code}: {told.read_text()[-800:]}")
    if wrong := differences(state(place), sound.state):
        raise AssertionError(f"{len(wrong)} differences: {wrong[:6]}")
    if "Traceback" in told.read_text():
        raise AssertionError(told.read_text()[-1500:])
    return kills


BUSY = re.compile(r"lpwm: (.*\.h5 exists:|.* (in use by|taken over by) .*\(process \d+ on .*, since \d{4}-.*\))")


def pair(verb: Verb, sound: Sound, place: Path, told: Path, chance: random.Random) -> str:
    """The same command twice. Returns what became of the second."""
    anew(sound, place)
    texts = [told.with_suffix(f".{i}.txt") for i in (1, 2)]
    first = start(verb.command(place), texts[0])
    wait(first, 0.0)
    time.sleep(chance.choice((0.0, 0.0, chance.uniform(0.0, sound.seconds / 2))))
    second = start(verb.command(place), texts[1])
    codes = [wait(pid, PATIENCE) for pid in (first, second)]
    words = [path.read_text() for path in texts]
    for path in texts:
        path.unlink()
    if any("Traceback" in said for said in words) or None in codes or 0 not in codes:
        raise AssertionError(f"{codes}: {words}")
    refused = [said for code, said in zip(codes, words, strict=True) if code != 0]
    if any(not BUSY.search(said.strip().splitlines()[-1]) for said in refused):
        raise AssertionError(f"no word of who has it: {refused}")
    if wrong := differences(state(place), sound.state):
        raise AssertionError(f"{len(wrong)} differences: {wrong[:6]}")
    return "refused" if refused else "both did"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=400, help="of all verbs together")
    parser.add_argument("--pairs", type=int, default=50, help="of train, collect and sweep each")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    small_demo()
    local.start, collecting.SHARD = Forked, 16
    recipe("tiny/lpwm")
    rows, problems = [], 0
    for name in args.verbs:
        row = one_verb(name, -(-args.kills // len(args.verbs)), args.pairs, args.seed)
        print(json.dumps({k: v for k, v in row.items() if k != "moments"}), flush=True)
        rows.append(row)
        problems += len(row["problems"])
        if args.json:
            record = {"seed": args.seed, "versions": versions() | origin(), "rows": rows}
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    return min(1, problems)


def one_verb(name: str, kills: int, pairs: int, seed: int) -> dict[str, Any]:
    verb, chance = VERBS[name], random.Random(f"{seed} {name}")
    row: dict[str, Any] = {
        "verb": name,
        "kills": 0,
        "trials": 0,
        "cpu": 0,
        "temporaries": 0,
        "kinds": {},
        "pairs": {},
        "problems": [],
    }
    with tempfile.TemporaryDirectory(prefix="lpwm-kills-") as temporary:
        root = Path(temporary)
        sound = undisturbed(verb, root)
        row["seconds"] = round(sound.seconds, 2)
        moments = []
        while row["kills"] < kills:
            told, place = root / f"told-{row['trials']}.txt", root / "work"
            row["trials"] += 1
            try:
                for how, after in trial(verb, sound, place, told, chance, min(MOST, kills - row["kills"])):
                    row["kills"] += 1
                    row["kinds"][how] = row["kinds"].get(how, 0) + 1
                    moments.append(round(after / sound.seconds, 3))
            except (AssertionError, TimeoutError, UserError) as error:
                row["kills"] += 1
                row["problems"].append(f"trial {row['trials']}: {error}")
                print(name, row["problems"][-1], file=sys.stderr, flush=True)
            row["temporaries"] += sum(".tmp" in path.name for path in place.rglob(".*"))  # half written, never read
            print(f"{name}: {row['kills']} kills in {row['trials']} trials, {_cpu()} s", file=sys.stderr, flush=True)
        row["moments"] = moments  # as shares of the undisturbed time
        for number in range(pairs if name in PAIRS else 0):
            try:
                became = pair(verb, sound, root / "work", root / f"pair-{number}.txt", chance)
                row["pairs"][became] = row["pairs"].get(became, 0) + 1
            except (AssertionError, UserError) as error:
                row["problems"].append(f"pair {number}: {error}")
                print(name, row["problems"][-1], file=sys.stderr, flush=True)
    row["cpu"] = _cpu()
    return row


def _cpu() -> int:
    """Seconds of all processes so far."""
    return round(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
