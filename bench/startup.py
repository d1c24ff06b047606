"""What a user waits for on the command line: wall and CPU seconds, of this checkout and of another, in turns.

    python bench/startup.py [--old CHECKOUT] [--rounds 10] [--json FILE] [--demo]

Medians. CPU seconds (user and system, all processes of a command) mean something on a busy machine too. --demo adds
`lpwm demo` and `lpwm demo --pretrained`, a round each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
COMMANDS = (["--help"], ["train", "--help"], ["eval", "--help"], ["doctor"])
DEMOS = (["demo", "--pretrained"], ["demo"])


def once(checkout: Path, words: list[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of a command in a folder of its own."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"PYTHONPATH": str(checkout)}
        command = [sys.executable, "-m", "lpwm", *words]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--demo", action="store_true")
    args = parser.parse_args()
    checkouts = {**({"old": args.old.resolve()} if args.old else {}), "new": HERE}
    rows = []
    for words, rounds in [(w, args.rounds) for w in COMMANDS] + [(w, 1) for w in DEMOS if args.demo]:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
        for _ in range(rounds):
            for name, checkout in checkouts.items():
                times[name].append(once(checkout, words))
        row = {"command": " ".join(["lpwm", *words])}
        for name, pairs in times.items():
            row |= {
                f"{name}_{kind}": round(statistics.median(p[k] for p in pairs), 3)
                for k, kind in enumerate(("wall", "cpu"))
            }
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"rounds": args.rounds, "load": os.getloadavg(), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
