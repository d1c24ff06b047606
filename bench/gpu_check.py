"""What one GPU says of a change: the GPU tests, and step and plan times next to those of another tree, in one run.

    python bench/gpu_check.py [--old PATH] [--out OUT.json] [--parts tests steps plans] [--cases …] [--rungs …]

Each measurement is a process of its own with the tree's own benchmark (`bench/train_step.py`, `bench/plan.py`); the
trees take turns. `--old` is a checkout of another version, for instance `git worktree add PATH v0.1.0`. The report is
written after every measurement, so that one that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CASES = ("pusht-deep", "pusht-mlp-lti", "piecewise-tiny")
RUNGS = ("deep-adaln", "mlp-lti")


def start(tree: Path, command: list[str], limit: float) -> tuple[int, str]:
    """Exit status and output of a command that imports the package of `tree`."""
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=tree, env=env, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return 124, said + f"\nstopped after {limit:.0f} s"
    return done.returncode, done.stdout + done.stderr


def tests(limit: float) -> dict[str, Any]:
    """How many GPU tests passed and failed, and which."""
    began = time.perf_counter()
    status, said = start(HERE, ["-m", "pytest", "-m", "gpu", "-q", "-rfE", "--tb=short", "tests"], limit)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error|skipped)", said)}
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    report = {"status": status, **counts, "failures": names, "seconds": round(time.perf_counter() - began, 1)}
    if status:
        report["tail"] = said[-6000:]
    return report


def measure(tree: Path, script: str, option: str, name: str, key: str, limit: float) -> float | str:
    """The number `key` of the only row that the tree's own benchmark writes, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        status, said = start(tree, [f"bench/{script}.py", "--json", str(out), option, name], limit)
        if status or not out.exists():
            return f"failed ({status}): {said[-1500:]}"
        (row,) = json.loads(out.read_text())["rows"]
        return float(row[key])


def compare(trees: dict[str, Path], name: str, *what: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name}
    for which, tree in trees.items():
        value = measure(tree, *what)
        row[which] = value
        print(f"{name:<16} {which:<4} {value if isinstance(value, str) else f'{value:.4g}'}", flush=True)
    return row


def table(report: dict[str, Any]) -> str:
    lines = [f"{'':<16} {'old':>9} {'new':>9} {'new − old':>10}"]
    for part, unit in (("steps", "ms"), ("plans", "s")):
        for row in report.get(part, []):
            old, new = row.get("old"), row.get("new")
            cells = [f"{x:>9.4g}" if isinstance(x, float) else f"{'–':>9}" for x in (old, new)]
            apart = f"{new - old:>+10.3g}" if isinstance(old, float) and isinstance(new, float) else ""
            lines.append(f"{row['name']:<16} {cells[0]} {cells[1]} {apart} {unit}")
    if "tests" in report:
        shown = {k: v for k, v in report["tests"].items() if k not in ("tail", "failures")}
        lines += [f"GPU tests: {shown}", *report["tests"]["failures"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--parts", nargs="+", default=["tests", "steps", "plans"], choices=["tests", "steps", "plans"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--rungs", nargs="+", default=list(RUNGS), choices=RUNGS)
    parser.add_argument("--test-limit", type=float, default=480.0, help="seconds for the GPU tests")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one measurement")
    args = parser.parse_args()
    trees = {"old": args.old.resolve()} if args.old else {}
    trees["new"] = HERE
    report: dict[str, Any] = {"trees": list(trees)}

    def keep(part: str, value: Any) -> None:
        report[part] = value
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")

    if "steps" in args.parts:
        rows: list[dict[str, Any]] = []
        for case in args.cases:
            rows.append(compare(trees, case, "train_step", "--cases", case, "ours_ms", args.limit))
            keep("steps", rows)
    if "plans" in args.parts:
        rows = []
        for rung in args.rungs:
            rows.append(compare(trees, rung, "plan", "--rungs", rung, "ours_s", args.limit))
            keep("plans", rows)
    if "tests" in args.parts:
        keep("tests", tests(args.test_limit))
    print(table(report))
    failed = [v for part in ("steps", "plans") for row in report.get(part, []) for v in row.values()]
    if report.get("tests", {}).get("status") or any(isinstance(v, str) and v.startswith("failed") for v in failed):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
