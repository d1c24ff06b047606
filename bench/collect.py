"""Collecting: 10,000 × 100 Piecewise steps (states), whole processes from start to exit.

    python bench/collect.py [--rounds 3] [--frames] [--json PATH]

Each round runs `collect` in a fresh process, imports included, with one worker, with two, and with the automatic
choice of the command line. --frames adds 512 × 100 steps with 224² frames. The mark for states is 10 s on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = 10.0  # seconds
SCRIPT = """
import sys, time
begin = time.perf_counter()
from lpwm import worlds
from lpwm.data import collect
if __name__ == "__main__":
    out, episodes, workers, pixels = sys.argv[1:]
    imported = time.perf_counter()
    digest = collect(worlds.make("piecewise"), out, episodes=int(episodes), steps=100, overwrite=True,
                     workers=int(workers) or None, pixels=pixels == "frames")
    print(time.perf_counter() - imported, digest)
"""


def measure(folder: Path, episodes: int, workers: int, what: str) -> dict[str, object]:
    script = folder / "one.py"
    script.write_text(SCRIPT)
    begin = time.perf_counter()
    command = [sys.executable, str(script), str(folder / "a.h5"), str(episodes), str(workers), what]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    wall = time.perf_counter() - begin
    return {"wall_s": wall, "collect_s": float(said[0]), "digest": said[1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", action="store_true")
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    cases = [("states", 10_000, workers) for workers in (1, 2, 0)]
    if args.frames:
        cases += [("frames", 512, workers) for workers in (1, 2)]
    rows: list[dict[str, object]] = []
    digests: dict[str, set[object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for what, episodes, workers in cases:
            runs = [measure(Path(folder), episodes, workers, what) for _ in range(args.rounds)]
            digests.setdefault(what, set()).update(run["digest"] for run in runs)
            median = {k: statistics.median(float(str(r[k])) for r in runs) for k in ("wall_s", "collect_s")}
            rate = episodes * 100 / median["collect_s"]
            name = f"{what}, {workers or 'automatic'} workers"
            rows.append({"name": name, "steps": episodes * 100, **median, "steps_per_s": rate, "runs": runs})
            print(
                f"{name:<28}{median['wall_s']:8.2f} s whole{median['collect_s']:8.2f} s collecting{rate:12.0f} steps/s"
            )
    same = all(len(several) == 1 for several in digests.values())
    load = os.getloadavg()[0]
    print(f"contents equal across workers and rounds: {same}; load average {load:.1f} on {os.cpu_count()} cores")
    met = all(float(str(row["wall_s"])) < MARK for row in rows if str(row["name"]).startswith("states"))
    print(f"under {MARK:.0f} s: {met}")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "same": same, "met": met, "load": load}, indent=1))
    return 0 if same and met else 1


if __name__ == "__main__":
    sys.exit(main())
