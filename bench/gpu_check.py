"""What one GPU says of a change: the GPU tests, and step and plan times next to those of another tree, in one run.

    python bench/gpu_check.py [--old PATH] [--out OUT.json] [--parts tests steps plans] [--cases …] [--rungs …]

Each tree has one process, which builds and warms up everything with the tree's own benchmark (`bench/train_step.py`,
`bench/plan.py`) while the tests run. Then the trees take turns, old, new, new, old, and nothing else uses the GPU.
`--old` is a checkout of another version, for instance `git worktree add PATH v0.1.0`. The report is written after
every measurement, so that one that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CASES = ("pusht-deep", "pusht-mlp-lti", "piecewise-tiny")
RUNGS = ("deep-adaln", "mlp-lti")
BEGAN = time.perf_counter()


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


# The process of one tree --------------------------------------------------------------------------------------


def serve(names: Sequence[str]) -> None:
    """Prepare these, then measure what each line of stdin names. Answers are lines of JSON."""
    sys.path.insert(0, "bench")
    ready: dict[str, Callable[[], list[float]]] = {}

    def prepare(name: str) -> None:
        ready[name] = _step(name) if name in CASES else _plan(name)

    def answer(name: str, work: Callable[[], Any]) -> None:
        said: dict[str, Any] = {"name": name}
        try:
            with contextlib.redirect_stdout(sys.stderr):
                said["values"] = work()
        except Exception:
            said = {"name": name, "failed": traceback.format_exc()[-1500:]}
        print(json.dumps(said), flush=True)

    for name in names:
        answer(name, lambda name=name: prepare(name))  # type: ignore[misc]
    for line in sys.stdin:
        answer(line.strip(), lambda line=line: ready[line.strip()]())  # type: ignore[misc]


def _step(case: str) -> Callable[[], list[float]]:
    module = importlib.import_module("train_step")
    prepared = module.Prepared(case)
    return lambda: [module.milliseconds(prepared.step, groups=5)]


def _plan(rung: str) -> Callable[[], list[float]]:
    import torch

    module = importlib.import_module("plan")
    problem, solver = module.make(rung, "cuda", torch.bfloat16, module.LATENT), module.CEM(module.CEMConfig())

    def solve() -> None:
        solver.solve(problem, seed=0, compile=True)

    for _ in range(3):
        solve()
    return lambda: module.seconds(solve, 7)


# All of it ----------------------------------------------------------------------------------------------------


class Tree:
    """A process that imports the package of a tree."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        more = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *more])}
        words = [sys.executable, str(Path(__file__).resolve()), "--serve", *names]
        self.process = subprocess.Popen(
            words, cwd=path, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"failed": "the process ended"}

    def measure(self, name: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"failed": "the process ended"}
        return self.answer()


def start_tests(workers: int, log: Path) -> subprocess.Popen[bytes]:
    files = sorted(str(p.relative_to(HERE)) for p in (HERE / "tests").rglob("*.py") if "mark.gpu" in p.read_text())
    parallel = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
    options = ["-m", "gpu", "-rfE", "--tb=short", "--durations=8", "--continue-on-collection-errors"]
    with log.open("wb") as out:
        words = [sys.executable, "-m", "pytest", *options, *parallel, *files]
        return subprocess.Popen(words, cwd=HERE, stdout=out, stderr=subprocess.STDOUT)


def end_tests(process: subprocess.Popen[bytes], log: Path, limit: float) -> dict[str, Any]:
    """How many GPU tests passed and failed, and which."""
    status = 124
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.terminate()
    said = log.read_text(errors="replace")
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error|skipped)", said)}
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    report = {"status": status, **counts, "failures": names, "seconds": round(time.perf_counter() - BEGAN, 1)}
    return report | ({"tail": said[-6000:]} if status else {})


def turns(trees: dict[str, Tree], name: str) -> dict[str, Any]:
    """The median of each tree over its turns, and every value."""
    order = ["old", "new", "new", "old"] if len(trees) > 1 else ["new", "new"]
    row: dict[str, Any] = {"name": name, "unit": "ms" if name in CASES else "s", "turns": []}
    for which in order:
        answer = trees[which].measure(name)
        if "values" not in answer:
            return row | {"failed": f"{which}: {answer['failed']}"}
        row["turns"].append([which, [round(x, 5) for x in answer["values"]]])
    for which in trees:
        row[which] = statistics.median(x for who, values in row["turns"] if who == which for x in values)
    say(f"{name:<16} " + ", ".join(f"{which} {row[which]:.4g} {row['unit']}" for which in trees))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--parts", nargs="+", default=["tests", "plans", "steps"], choices=["tests", "steps", "plans"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--rungs", nargs="+", default=list(RUNGS), choices=RUNGS)
    parser.add_argument("--workers", type=int, default=1, help="processes for the tests; several need pytest-xdist")
    parser.add_argument("--test-limit", type=float, default=480.0, help="seconds for the GPU tests")
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    paths = ({"old": args.old.resolve()} if args.old else {}) | {"new": HERE}
    report: dict[str, Any] = {"trees": list(paths), "plans": [], "steps": []}

    def keep() -> None:
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")

    names = [n for part, many in (("plans", args.rungs), ("steps", args.cases)) if part in args.parts for n in many]
    trees = {which: Tree(path, names) for which, path in paths.items()} if names else {}
    if "tests" in args.parts:
        log = (args.out or Path("gpu_check.json")).with_suffix(".tests.txt")
        report["tests"] = end_tests(start_tests(args.workers, log), log, args.test_limit)
        say(f"tests: { {k: v for k, v in report['tests'].items() if k != 'tail'} }")
        keep()
    for which, tree in trees.items():
        for _ in names:
            answer = tree.answer()
            say(f"{which} {answer.get('name')}: " + answer.get("failed", "ready"))
    for name in names:
        report["steps" if name in CASES else "plans"].append(turns(trees, name))
        keep()
    for tree in trees.values():
        tree.process.kill()
    failed = [row["name"] for row in (*report["plans"], *report["steps"]) if "failed" in row]
    if report.get("tests", {}).get("status") or failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
