"""Turn trained run folders into what `lpwm demo --pretrained` ships, and check what rounding does to planning.

    python results/pack_pretrained.py lpwm=RUN lewm=RUN [--out lpwm/assets/pretrained] [--check]

Matrices become bf16, vectors stay float32; more than 10 MB in all is refused. `--check` plans with both forms on the
same random goals (demo's planner) and prints their success side by side.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lpwm.cli.demo import PLANNING
from lpwm.core.errors import UserError
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.runs import load_team
from lpwm.train.packed import pack, shipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--out", type=Path, default=shipped())
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    runs = dict(text.split("=", 1) for text in args.runs)
    try:
        sizes = pack(runs, args.out)
    except UserError as error:
        print(f"pack_pretrained: {error}", file=sys.stderr)
        return 2
    for name, size in sizes.items():
        print(f"{name}: {size / 1e3:.0f} kB in {args.out / name}")
    if args.check:
        for name, path in runs.items():
            check(name, Path(path), args.out / name)
    return 0


def check(name: str, before: Path, after: Path) -> None:
    """Success of both forms on the same 100 random goals, and on how many goals they differ."""
    settings = replace(PLANNING, goals=("random",), controls=(), curve=0)
    found = []
    for path in (before, after):
        team = load_team([path], data=False)
        cell = evaluate(team.agents, team.world, settings, holdout=team.holdout).cells[0]
        found.append(cell.methods[0].success("latched", 50)[0, 0])
    differ = int((found[0] != found[1]).sum())
    print(
        f"{name}: {100 * found[0].mean():.0f} % as trained, {100 * found[1].mean():.0f} % packed, "
        f"{differ} of {len(found[0])} random goals come out differently"
    )


if __name__ == "__main__":
    sys.exit(main())
