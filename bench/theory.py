"""The one-hot linearization at growing N: wall time and peak memory, each size in a process of its own.

    python bench/theory.py [--json PATH] [--threads 2]

Builds P(a) for four actions of a smooth map, exports one as a SciPy and one as a torch matrix, and measures the
one-step error of 20,000 states. Memory is the peak of the whole process less what it held before building.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZES = (
    (1, 10_000),
    (1, 100_000),
    (1, 1_000_000),
    (2, 100),
    (2, 316),
    (2, 1000),
    (2, 2000),
    (3, 22),
    (3, 46),
    (3, 100),
)


def peak() -> float:
    """MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(d: int, n: int) -> dict[str, Any]:
    import numpy as np

    from lpwm.theory import Grid, OneHot, measure
    from lpwm.theory.bounds import sine_system

    system = sine_system(d)
    before, start = peak(), time.perf_counter()
    model = OneHot.of(system.f, Grid.unit(d, n), system.actions_AK)
    built = time.perf_counter() - start
    matrix = model.matrix(0)
    exported = time.perf_counter() - start - built
    x = np.random.default_rng(0).random((20_000, d))
    errors = measure(model, system.f, x, [0], system.lipschitz)
    assert errors.holds and matrix.nnz == model.cells
    return {
        "d": d,
        "n": n,
        "cells": model.cells,
        "actions": 4,
        "build_s": built,
        "export_s": exported,
        "wall_s": time.perf_counter() - start,
        "peak_mb": peak(),
        "grown_mb": peak() - before,
        "matrices_mb": model.bytes / 2**20,
        "worst_over_bound": float(errors.worst_H[1] / errors.bound_H[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(*args.one)))
        return
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    rows = []
    print(f"{'d':>2}{'cells':>12}{'build s':>10}{'wall s':>9}{'peak MB':>10}{'grown MB':>10}{'4 P(a) MB':>11}")
    for d, n in SIZES:
        command = [sys.executable, __file__, "--one", str(d), str(n)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        r = json.loads(done.stdout)
        rows.append(r)
        print(
            f"{d:>2}{r['cells']:>12,}{r['build_s']:>10.3f}{r['wall_s']:>9.3f}{r['peak_mb']:>10.0f}"
            f"{r['grown_mb']:>10.0f}{r['matrices_mb']:>11.1f}"
        )
    if args.json:
        result = {
            "threads": args.threads,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "rows": rows,
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
