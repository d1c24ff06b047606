"""Does realized activity follow the target? Plain slices against coordinate slices, on small Piecewise models.

    python bench/target_study.py OUT [--device cuda --compile graph --workers 14] [--seeds 0 1 2] [--steps 2000]
    python bench/target_study.py OUT --table [--publish results]

p ∈ {0.5, 1, 2} × μ ∈ {0, −1, −2} × axis_fraction ∈ {0, 0.25} × seeds, each trained, read and planned with, by workers
that take run after run. Every reading is kept in OUT as it comes: a second call continues, --table tabulates what is
there, and so does an interruption. Writes OUT/target-study.json, its table and its figure; --publish FOLDER puts
the JSON where `lpwm report --claims FOLDER` shows it.
--quick: two targets, two seeds, a model of a minute's toy size; it shows that everything runs, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lpwm.core.files import make_folder, write_whole
from lpwm.evaluate.config import EvalConfig
from lpwm.interpret.targets import CELLS, PLANNING, TargetCell, Work, study
from lpwm.interpret.targets_table import table
from lpwm.recipes import small, tiny
from lpwm.report.targets import write
from lpwm.sweep.pool import each

QUICK = EvalConfig(
    goals=("random",),
    episodes=4,
    budgets=(20,),
    planner_seeds=1,
    curve=0,
    receding=(1, 5),
    options={"samples": 16, "elites": 4, "iterations": 2},
)
QUICK_CELLS = tuple(TargetCell(1.0, mu, axis) for axis in (0.0, 0.25) for mu in (0.0, -1.0))


@dataclass(frozen=True)
class Broken:
    """The work, but for one job that takes its process with it: to see what becomes of the rest."""

    work: Work
    job: Any

    def __call__(self, job: Any) -> Any:
        if job == self.job:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.work(job)


def within(
    jobs: Sequence[Any], work: Work, *, workers: int, limit_s: float, seconds: float, broken: int
) -> Iterator[tuple[int, Any]]:
    """`each`, until the time is up: the next result that comes after it is the last."""
    until = time.monotonic() + seconds
    whole = Broken(work, jobs[broken]) if 0 <= broken < len(jobs) else work
    for found in each(jobs, whole, workers, limit_s=limit_s):
        yield found
        if time.monotonic() > until:
            return


def told(begun: float, done: int, of: int, why: str) -> None:
    print(
        f"{time.monotonic() - begun:6.1f} s  {done} of {of} runs{'  ' + why if why else ''}",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--compile", choices=("auto", "on", "graph", "off"), default="off")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which one run is given up")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which all stops")
    parser.add_argument("--table", action="store_true", help="train nothing: what is there")
    parser.add_argument("--publish", type=Path, help="folder that gets target-study.json too")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--broken", type=int, default=-1, help="the job that dies, for trying")
    args = parser.parse_args()
    seeds: tuple[int, ...] = (0, 1, 2)
    base, planning, cells, frames = small(), PLANNING, CELLS, 3000
    if args.quick:
        base, planning, cells, seeds, frames = tiny(), QUICK, QUICK_CELLS, (0, 1), 200
        base = replace(base, data=replace(base.data, holdout=0.3))
    ask = partial(
        study,
        base,
        args.out,
        cells=cells,
        seeds=args.seeds or seeds,
        steps=args.steps,
        device=args.device,
        compile=args.compile,
        planning=planning,
        frames=frames,
    )
    run = partial(within, workers=args.workers, limit_s=args.limit, seconds=args.within, broken=args.broken)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit from outside is an interruption too
    try:
        found = ask(each=None if args.table else run, progress=partial(told, time.monotonic()))
    except KeyboardInterrupt:
        print("interrupted: what follows is what is there", file=sys.stderr)
        found = ask(each=None)
    text = json.dumps(found, allow_nan=False, ensure_ascii=False) + "\n"
    for folder in (args.out, *((args.publish,) if args.publish else ())):
        make_folder(folder)
        write_whole(folder / "target-study.json", text)
    shown = table(found)
    write_whole(args.out / "target-study.txt", shown + "\n")
    write(found, args.out)
    print(shown)


if __name__ == "__main__":
    main()
