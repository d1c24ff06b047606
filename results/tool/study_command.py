"""`python -m results.tool study`: the target study from the command line.

    python -m results.tool study OUT [--device cuda --compile graph --workers 14] [--seeds 0 1 2] [--steps 2000]
    python -m results.tool study OUT --table [--publish results]

p ∈ {0.5, 1, 2} × μ ∈ {0, −1, −2} × axis_fraction ∈ {0, 0.25} × seeds, each trained, inspected and planned with, in
processes of their own. Every reading is kept in OUT as it comes: a second call continues, --table tabulates what is
there, and so does an interruption. Writes OUT/target-study.json, its table and its figure; --publish FOLDER puts
the JSON where `python -m results.tool page` shows it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lpwm.core.files import make_folder, write_whole
from lpwm.recipes import small, tiny

from . import figures
from .pool import each
from .study import Work, study
from .study_cells import PLANNING, TargetCell
from .study_tables import table

HELP = "does activity follow the target? Plain against coordinate slices, on small Piecewise models"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2 if not given")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--compile", choices=("auto", "on", "graph", "off"), default="off")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which one run is given up")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which all stops")
    parser.add_argument("--table", action="store_true", help="train nothing: what is there")
    parser.add_argument("--publish", type=Path, help="folder that gets target-study.json too")
    parser.add_argument("--quick", action="store_true", help="a toy of a minute: shows that it runs, nothing else")
    parser.set_defaults(run=run)


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """What `study` is called with."""
    if not args.quick:
        return {"base": small(), "seeds": args.seeds or (0, 1, 2)}
    base, options = tiny(), {"samples": 16, "elites": 4, "iterations": 2}
    return {
        "base": replace(base, data=replace(base.data, holdout=0.3)),
        "planning": replace(PLANNING, episodes=4, budgets=(20,), receding=(1, 5), options=options),
        "cells": [TargetCell(1.0, mu, axis) for axis in (0.0, 0.25) for mu in (0.0, -1.0)],
        "seeds": args.seeds or (0, 1),
        "frames": 200,
    }


def run(args: argparse.Namespace) -> None:
    begun = time.monotonic()

    def in_processes(jobs: Sequence[Any], work: Work) -> Iterator[tuple[int, Any]]:
        """Until the time is up: the next result that comes after it is the last."""
        for result in each(jobs, work, args.workers, limit_s=args.limit):
            yield result
            if time.monotonic() > begun + args.within:
                return

    def progress(done: int, of: int, why: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {done} of {of} runs  {why}".rstrip(), file=sys.stderr, flush=True)

    how = {"steps": args.steps, "device": args.device, "compile": args.compile, "progress": progress}
    ask = partial(study, root=args.out, **chosen(args), **how)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit from outside is an interruption too
    try:
        made = ask(each=None if args.table else in_processes)
    except KeyboardInterrupt:
        print("interrupted: what follows is what is there", file=sys.stderr)
        made = ask(each=None)
    text = json.dumps(made, allow_nan=False, ensure_ascii=False) + "\n"
    for folder in (args.out, *((args.publish,) if args.publish else ())):
        make_folder(folder)
        write_whole(folder / "target-study.json", text)
    shown = table(made)
    write_whole(args.out / "target-study.txt", shown + "\n")
    figures.save(args.out / "target-study.png", lambda: figures.targets(made))
    print(shown)
