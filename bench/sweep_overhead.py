"""What a sweep costs beyond its cells: the ledger, and an engine's scheduling, as a share of a 60-second cell.

    python bench/sweep_overhead.py [--cells 24] [--engines local ray] [--json OUT]

The cells are real ones of the tiny recipe whose training and evaluation are replaced by a sleep of a known length, so
that what remains of the time between the first claim and the last record is the ledger's and the engine's. The start of
processes (importing torch, starting Ray) is excluded: each engine's first cell starts the clock. Also timed alone: a
claim, a heartbeat, a record, and a look at the whole ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lpwm.recipes import recipe
from lpwm.sweep import expand, status, worker
from lpwm.sweep.engines import EngineConfig
from lpwm.sweep.engines import local as engine_local
from lpwm.sweep.engines import ray as engine_ray
from lpwm.sweep.grid import parse_grid
from lpwm.sweep.ledger import Record
from lpwm.sweep.worker import CellResult, HeldOut, Seconds

RESULT = CellResult("run", "data", "", 0, {}, HeldOut(), {}, Seconds(0.0, 0.0))
CELL = 60.0  # seconds: what the cost is a share of


def sweep(root: Path, cells: int) -> list[str]:
    grid = parse_grid(f'recipe = "tiny/lpwm"\nseeds = {list(range(cells))}\n', "overhead")
    made = expand(grid, recipe)
    status.create(grid, made, root)
    return [c.hash for c in made]


def ledger_alone(root: Path, cells: int) -> dict[str, float]:
    names = sweep(root, cells)
    ledger = worker.ledger_of(root)
    spent: dict[str, list[float]] = {"claim": [], "heartbeat": [], "record": [], "status of all": []}

    def timed(what: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        out = call()
        spent[what].append(time.perf_counter() - began)
        return out

    for name in names:
        claim = timed("claim", lambda n=name: ledger.claim(n))
        timed("heartbeat", claim.touch)
        timed("record", lambda c=claim: c.done(RESULT))
        timed("status of all", lambda: status.view(root))
    return {what: statistics.median(v) for what, v in spent.items()}


def sleeper(root: str, names: list[str], device: str, threads: int, lease: float) -> list[str]:
    """A Ray task whose cell sleeps."""
    from lpwm.sweep import worker as inside

    ledger = inside.ledger_of(Path(root), lease)
    for name in names:
        claim = ledger.claim(name)
        if claim is not None:
            with claim.beating():
                time.sleep(float(os.environ["LPWM_BENCH_SLEEP"]))
            claim.done(RESULT)
    return names


WORKER = """
import sys, time
from pathlib import Path
from lpwm.sweep import worker
root, seconds, names = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
from lpwm.sweep.worker import CellResult, HeldOut, Seconds
result = CellResult("run", "data", "", 0, {}, HeldOut(), {}, Seconds(0.0, 0.0))
worker.run_cell = lambda cell, root, device, say: (time.sleep(seconds), (result, {}))[1]
worker.work(root, worker.pick_device("cpu"), names=names, say=worker.log_to(root, "bench"))
"""


def overhead(root: Path, workers: int, seconds: float) -> float:
    """Seconds per cell beyond its sleep, between the first claim and the last record of each worker."""
    ledger = worker.ledger_of(root)
    records = [r for r in (ledger.record(n) for n in ledger.names()) if r is not None]
    by_worker: dict[int, list[Record]] = {}
    for r in records:
        by_worker.setdefault(r.pid, []).append(r)
    extra = []
    for mine in by_worker.values():
        span = max(r.finished for r in mine) - min(r.started for r in mine)
        extra.append((span - seconds * len(mine)) / len(mine))
    assert len(records) == len(ledger.names()) and len(by_worker) <= workers
    return statistics.mean(extra)


def run_engine(name: str, root: Path, cells: int, seconds: float, workers: int) -> float:
    import subprocess
    import sys

    names = sweep(root, cells)
    look = status.watcher(root)  # what the command line shows while it waits
    if name == "local":
        original = engine_local.subprocess.Popen

        def popen(command: list[str], **options: Any) -> Any:
            only = command[command.index("--only") + 1 :]
            return original([sys.executable, "-c", WORKER, str(root), str(seconds), *only], **options)

        engine_local.subprocess.Popen = popen  # type: ignore[misc,assignment]
        try:
            engine_local.run(root, names, EngineConfig(workers=workers), lambda: bool(look()))
        finally:
            engine_local.subprocess.Popen = subprocess.Popen = original  # type: ignore[misc]
    else:
        os.environ["LPWM_BENCH_SLEEP"] = str(seconds)
        engine_ray.TASK = sleeper
        engine_ray.run(root, names, EngineConfig(workers=workers), lambda: bool(look()))
    return overhead(root, workers, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a cell's sleep")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder:
        results["ledger_s"] = ledger_alone(Path(folder) / "ledger", args.cells)
        for what, seconds in results["ledger_s"].items():
            print(f"{what:<14} {1000 * seconds:8.2f} ms")
        for name in args.engines:
            extra = run_engine(name, Path(folder) / name, args.cells, args.seconds, args.workers)
            results[name] = {"extra_s_per_cell": extra, "share_of_60_s": extra / CELL}
            print(f"{name:<14} {1000 * extra:8.2f} ms per cell beyond its work: {100 * extra / CELL:.3f} % of 60 s")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
