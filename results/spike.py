"""Exploration: many small runs over one GPU, each judged at several training lengths on episodes no result uses.

    python results/spike.py OUT --grid FILE.json [--device cuda --workers 12] [--seed 900] [--episodes 100]
    python results/spike.py OUT --grid FILE.json --table

FILE.json is a list of entries; all but the first two fields may be left out:

    {"name": "lam1-r3", "recipe": "piecewise-2x2-small/lpwm",
     "changes": {"objective.lam": 1.0, "objective.rollout_steps": 3, "train.steps": 8000},
     "seeds": [0], "lengths": [500, 1000, 2000, 4000, 8000], "eval": "random"}

lengths  training steps at which the one run is judged, from its checkpoints: points of one schedule, not runs of
         that length. Without them: the end.
eval     random: random goals within 50 steps, R=1 and R=5; pusht: the ladder's dataset goals, closed loop.

A line of OUT/spike.jsonl for every length as it comes (dead and failed runs too); a second call makes what is missing.
Runs and data are in OUT/runs, or where --runs says. Training uses train.compile = graph unless an entry changes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from tool.pool import Failure, each
from tool.study_tables import aligned

from lpwm import recipes
from lpwm.core.config import digest
from lpwm.core.errors import UserError, choose, nearest
from lpwm.core.files import make_folder
from lpwm.core.json import to_json
from lpwm.evaluate.config import PRESETS, EvalConfig
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.runs import agent_of
from lpwm.model import WorldModel
from lpwm.sweep.grid import override
from lpwm.train import Run, RunConfig, load, pick_device, prepare_data
from lpwm.train.log import read_log
from lpwm.train.loop import DeadRun

FIELDS = ("name", "recipe", "changes", "seeds", "lengths", "eval")
EVALS = {
    "random": EvalConfig(goals=("random",), episodes=100, budgets=(50,), planner_seeds=1, controls=()),
    "pusht": replace(PRESETS["ladder"], goals=("dataset",), episodes=50, planner_seeds=1, controls=()),
}
LINES = "spike.jsonl"


@dataclass(frozen=True)
class Job:
    """One training run and the lengths at which it is to be judged."""

    name: str
    config: RunConfig
    lengths: tuple[int, ...]
    judge: EvalConfig

    def key(self, length: int) -> str:
        return digest({"config": self.config, "step": length, "eval": self.judge})


def read(path: Path, args: argparse.Namespace) -> list[Job]:
    """Everything is checked before anything starts."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}).") from None
    jobs = []
    for entry in entries:
        for name in entry:
            if name not in FIELDS:
                raise UserError(f"{path}: unknown field {name!r} of an entry: {nearest(name, FIELDS)}.")
        judge = choose("evaluation", entry.get("eval", "random"), EVALS)
        judge = replace(judge, seed=args.seed, precision=args.precision, episodes=args.episodes or judge.episodes)
        if args.quick:
            small = {"samples": 16, "elites": 4, "iterations": 2}
            judge = replace(judge, episodes=4, options=small, curve=64)
        for seed in entry.get("seeds", [0]):
            changes = {"train.compile": "graph", **entry.get("changes", {}), "train.seed": seed}
            config = override(recipes.recipe(entry["recipe"]), changes)
            lengths = tuple(sorted(set(entry.get("lengths", [config.train.steps]))))
            if not lengths or lengths[0] < 1 or lengths[-1] > config.train.steps:
                raise UserError(
                    f"{entry['name']}: lengths {list(lengths)} lie in 1 to {config.train.steps}, its steps."
                )
            every = reduce(math.gcd, (*lengths, config.train.steps))
            train = replace(
                config.train, eval_every=every, checkpoint_every=every, keep=config.train.steps // every + 2
            )
            jobs.append(Job(entry["name"], replace(config, train=train), lengths, judge))
    names = [(j.name, j.config.train.seed) for j in jobs]
    if len(set(names)) != len(names):
        raise UserError(f"{path} has the same name and seed twice.")
    return jobs


@dataclass(frozen=True)
class Work:
    """Train a job, then judge it, a dictionary a length."""

    root: Path
    device: str

    def __call__(self, job: Job) -> Iterator[dict[str, Any]]:
        device, begun, dead = torch.device(self.device), time.perf_counter(), ""
        run = Run.create(job.config, self.root, job.name)
        try:
            run.train(device, console=False)
        except DeadRun as error:  # no use for its GPU time here; what it was before is still judged
            dead = str(error)
        trained = time.perf_counter() - begun
        for length in job.lengths:
            folder = run.folder / "checkpoints" / f"step-{length:08d}"
            if folder.exists():
                yield {**judged(run, job, length, folder, device), "train_s": round(trained, 1), "dead": dead}
            else:
                yield {"failed": dead or "it has no such checkpoint.", "dead": dead}


def judged(run: Run, job: Job, length: int, folder: Path, device: torch.device) -> dict[str, Any]:
    begun = time.perf_counter()
    latest = load(run.folder, device=device)
    loaded = replace(latest, model=WorldModel.from_pretrained(str(folder), device=str(device)), step=length)
    agent = agent_of(loaded)
    data = run.data if "dataset" in job.judge.goals else None
    outcome = evaluate([agent], loaded.world, job.judge, device=device, holdout=loaded.holdout, data=data)
    rates = {
        f"R{cell.receding}@{budget}": {
            m: round(float(cell.rows[0].success(m, budget).mean()), 4) for m in ("latched", "terminal")
        }
        for cell in outcome.cells
        for budget in job.judge.budgets
    }
    train, held = (last(run.folder, kind, length) for kind in ("train", "val"))
    curve = outcome.curves[agent.name].to_json()
    return {
        "error": held.get("error_depth"),
        "copy": held.get("copy_error_depth"),
        "active": train.get("active_fraction"),
        "dimension": train.get("effective_dimension"),
        "rates": rates,
        "curve": curve["relative"],
        "edges": curve["edges"],
        "saturates": curve["saturates"],
        "spearman": curve["spearman"],
        "eval_s": round(time.perf_counter() - begun, 1),
    }


def last(folder: Path, kind: Any, step: int) -> dict[str, Any]:
    """The last record up to this step."""
    return next((r.to_json() for r in reversed(read_log(folder, kind)) if r.step <= step), {})


# Lines and table --------------------------------------------------------------------------------------------


def lines_of(path: Path) -> dict[str, dict[str, Any]]:
    """By key, later ones for earlier ones; a line that an interruption cut is passed over."""
    out = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, KeyError):
            line = json.loads(text)
            out[line["key"]] = line
    return out


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def table(jobs: list[Job], lines: dict[str, dict[str, Any]]) -> str:
    """In the order of the grid. Rates are latched/terminal, in %."""
    settings = list(dict.fromkeys(s for line in lines.values() for s in line.get("rates", ())))
    heads = ["name", "seed", "steps", "error/copy", "deepest", "dim", "active", *settings, "curve", "saturates", "s"]
    points = [(job, n, lines.get(job.key(n))) for job in jobs for n in job.lengths]
    rows = [row(job, n, line, settings) for job, n, line in points if line is not None and "failed" not in line]
    failed = [
        f"{job.name}, seed {job.config.train.seed}, {n} steps: {line['failed']}"
        for job, n, line in points
        if line and "failed" in line
    ]
    missing = sum(line is None for _, _, line in points)
    return "\n".join([*aligned([heads, *rows]), *failed, *([f"{missing} points are missing."] if missing else [])])


def row(job: Job, length: int, line: dict[str, Any], settings: list[str]) -> list[str]:
    error, copy = line["error"] or [None], line["copy"] or [None]
    rates = [line["rates"].get(s) for s in settings]
    return [
        job.name,
        str(job.config.train.seed),
        str(length),
        f"{number(error[0], 4)}/{number(copy[0], 4)}",
        f"{number(error[-1], 3)}/{number(copy[-1], 3)}",
        number(line["dimension"], 1),
        number(line["active"], 2),
        *(f"{100 * r['latched']:.0f}/{100 * r['terminal']:.0f}" if r else "–" for r in rates),
        " ".join(number(v, 2) for v in line["curve"]),
        number(line["saturates"], 0),
        f"{line['train_s']:.0f}+{line['eval_s']:.0f}" + (" dead later" if line["dead"] else ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--grid", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=900, help="of the episodes: one that no result uses")
    parser.add_argument("--episodes", type=int, default=0, help="instead of 100 (random) and 50 (pusht)")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which one run is given up")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which all stops")
    parser.add_argument("--runs", type=Path, help="folder of runs and data, if not OUT/runs")
    parser.add_argument("--quick", action="store_true", help="4 episodes and a toy planner: shows that it runs")
    parser.add_argument("--table", action="store_true", help="train nothing: what is there")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        go(args)
    except UserError as error:
        sys.exit(str(error))


def go(args: argparse.Namespace) -> None:
    jobs, path = read(args.grid, args), args.out / LINES
    make_folder(args.out)
    if not args.table:
        root = args.runs or args.out / "runs"
        try:
            run(jobs, path, root, args)
        except KeyboardInterrupt:
            print("interrupted: what follows is what is there", file=sys.stderr)
    print(table(jobs, lines_of(path)))


def run(jobs: list[Job], path: Path, root: Path, args: argparse.Namespace) -> None:
    # A dead run would die again; one that failed may not.
    there = {key for key, line in lines_of(path).items() if "failed" not in line or line.get("dead")}
    todo = []
    for job in jobs:
        left = tuple(n for n in job.lengths if job.key(n) not in there)
        if left:
            todo.append(replace(job, lengths=left))
            prepare_data(job.config.data, root / "data")  # once, before many ask for them
    work, begun = Work(root, str(pick_device(args.device))), time.monotonic()
    left = {i: list(job.lengths) for i, job in enumerate(todo)}
    with path.open("a", encoding="utf-8") as file:
        for i, result in each(todo, work, args.workers, limit_s=args.limit):
            if isinstance(result, Failure):
                print(result.detail or result.why, file=sys.stderr)
            for length in list(left[i]) if isinstance(result, Failure) else left[i][:1]:
                left[i].remove(length)
                job, line = todo[i], {"failed": result.why} if isinstance(result, Failure) else result
                name = {"key": job.key(length), "name": job.name, "seed": job.config.train.seed, "step": length}
                file.write(json.dumps(to_json({**name, **line}), allow_nan=False) + "\n")
                file.flush()
                told = f"{job.name} seed {name['seed']} step {length}: {line.get('failed') or line['rates']}"
                print(f"{time.monotonic() - begun:6.1f} s  {told}", file=sys.stderr, flush=True)
            if time.monotonic() - begun > args.within:
                return


if __name__ == "__main__":
    main()
