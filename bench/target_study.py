"""Does realised activity follow the target? Plain slices against coordinate slices, on small Piecewise models.

    python bench/target_study.py OUT [--device cuda] [--workers 8] [--seeds 0 1 2] [--steps 2000] [--quick]

p ∈ {0.5, 1, 2} × μ ∈ {0, −1, −2} × axis_fraction ∈ {0, 0.25} × seeds, each trained, read and planned with. Writes
OUT/target-study.json, its table and its figure; run folders and readings stay in OUT, so a second call continues.
--quick: two targets, two seeds, a model of a minute's toy size; it shows that everything runs, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from lpwm.evaluate.protocol import EvalConfig
from lpwm.interpret.targets import CELLS, PLANNING, TargetCell, study
from lpwm.interpret.targets_table import table
from lpwm.recipes import small, tiny
from lpwm.report.targets import write

QUICK = EvalConfig(
    goals=("random",), episodes=4, budgets=(20,), planner_seeds=1, curve=0, receding=(1, 5),
    options={"samples": 16, "elites": 4, "iterations": 2},
)  # fmt: skip
QUICK_CELLS = tuple(TargetCell(1.0, mu, axis) for axis in (0.0, 0.25) for mu in (0.0, -1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="off")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    base, planning, cells, seeds, frames = small(), PLANNING, CELLS, (0, 1, 2), 3000
    if args.quick:
        base, planning, cells, seeds, frames = tiny(), QUICK, QUICK_CELLS, (0, 1), 200
        base = replace(base, data=replace(base.data, holdout=0.3))
    found = study(
        base, args.out, cells=cells, seeds=args.seeds or seeds, steps=args.steps, device=args.device,
        compile=args.compile, planning=planning, frames=frames, workers=args.workers,
        progress=lambda done, of: print(f"{done} of {of} runs", file=sys.stderr, flush=True),
    )  # fmt: skip
    (args.out / "target-study.json").write_text(json.dumps(found, allow_nan=False) + "\n")
    text = table(found)
    (args.out / "target-study.txt").write_text(text + "\n")
    write(found, args.out)
    print(text)


if __name__ == "__main__":
    main()
