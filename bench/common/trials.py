"""What the benchmarks of kernels with several forms share: trials side by side, errors, and times in a CUDA graph.

A form is compiled and compared with float32 in one of several processes, each of which is the benchmark itself with
`--trial`: so forms compile side by side, and one that takes the device's context with it takes no other.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

STARTED = time.perf_counter()


def now() -> float:
    return time.perf_counter() - STARTED


def parser(description: str | None, seconds: float) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path)
    made.add_argument("--seconds", type=float, default=seconds, help="after which nothing new is begun")
    made.add_argument("--device", default="cuda")
    made.add_argument("--workers", type=int, default=16)
    made.add_argument("--toy", action="store_true", help="small numbers in Triton's interpreter, without a GPU")
    made.add_argument("--trial", nargs=3, type=int, help=argparse.SUPPRESS)
    made.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    return made


def begin(args: argparse.Namespace, triton: bool) -> None:
    """The device that is meant; ends with a sentence where what is needed is missing."""
    if not triton:
        raise SystemExit("this benchmark needs Triton.")
    args.device = "cpu" if args.toy else args.device
    if args.toy and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("--toy needs TRITON_INTERPRET=1 in the environment.")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that torch can use; --toy does without.")
    if args.toy:
        interpret()
    torch.backends.cuda.matmul.allow_tf32 = False


def interpret() -> None:
    """Lets kernels loop up to a number that they are given: NumPy 2.4 refuses what Triton 3.6's interpreter has."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = with_index


def machine(device: str) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none (interpreter)"
    return {"gpu": gpu, "torch": torch.__version__}


def worst(errors: Iterable[float]) -> float:
    """The largest, infinite where one is no number: max() passes over those."""
    return max(error if error == error else float("inf") for error in errors)


def far(got: torch.Tensor, want: torch.Tensor) -> float:
    """‖got − want‖ / ‖want‖, infinite where that is no number."""
    want = want.detach().float()
    return worst([float((got.detach().float() - want).norm() / want.norm())])


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"[:200]


def trial(args: argparse.Namespace, count: int, error_of: Callable[[int], float]) -> None:
    """One of several processes: every n-th of `count` jobs; a line of JSON for each: its error, or why it failed."""
    turn, of, skip = args.trial
    with args.found.open("a") as found:
        for at, index in enumerate(list(range(turn, count, of))[skip:], start=skip + 1):
            row: dict[str, Any] = {"job": index}
            try:
                row["error"] = error_of(index)
            except Exception as error:
                row["failed"] = said(error)
            found.write(json.dumps(row) + "\n")
            found.flush()
            if "failed" in row and args.device == "cuda":
                try:
                    torch.cuda.synchronize()
                except Exception:  # the device's context is lost: go on in a new process
                    given = sys.argv[: sys.argv.index("--trial")]
                    again = [*given, "--trial", str(turn), str(of), str(at), "--found", str(args.found)]
                    os.execv(sys.executable, [sys.executable, *again])


def try_all(args: argparse.Namespace, script: str, given: list[str], until: float) -> dict[int, dict]:
    """What the trials of `script` have written by then, by job; `given`: what its jobs depend on beside --toy."""
    workers = min(args.workers, os.cpu_count() or 1)
    command = [sys.executable, str(Path(script).resolve()), "--device", args.device, *given]
    command += ["--toy"] if args.toy else []
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.jsonl" for i in range(workers)]
        started = [
            subprocess.Popen([*command, "--trial", str(i), str(workers), "0", "--found", str(file)])
            for i, file in enumerate(files)
        ]
        for process in started:
            try:
                process.wait(timeout=max(0.1, until - now()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for line in (line for file in files if file.exists() for line in file.read_text().splitlines()):
            try:
                row = json.loads(line)
            except ValueError:  # cut off
                continue
            rows[row["job"]] = row
    return rows


def microseconds(f: Callable[[], Any], device: str, times: int, groups: int) -> float:
    """Of one call in a CUDA graph of `times`, the median of `groups` replays."""
    if device != "cuda":
        began = time.perf_counter()
        f()
        return 1e6 * (time.perf_counter() - began)
    graph = captured(f, times)
    graph.replay()
    found = []
    for _ in range(groups):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1000 * start.elapsed_time(end) / times)
    return statistics.median(found)


def captured(f: Callable[[], Any], times: int) -> torch.cuda.CUDAGraph:
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        f()
        f()
    torch.cuda.current_stream().wait_stream(warm)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            f()
    return graph
