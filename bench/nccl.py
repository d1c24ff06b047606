"""Does training over several processes lose anything on this machine? The tiny recipe through NCCL, or gloo on CPUs.

    python bench/nccl.py [--device cuda] [--steps 20] [--json OUT]

    alone       one process, no group
    joined      one process in a group of one, which calls every collective the training has, forwards and backwards
    torchrun N  `torchrun --nproc-per-node N -m lpwm train tiny/lpwm`: N = 1, 2, 4, 8 as far as there are GPUs

All train the same global batches in float32, without torch.compile. The losses of all steps must be those of "alone";
given is the largest difference relative to them. NCCL wants a GPU for each process: on a machine with one GPU "joined"
is all that can be tried of it. Exit status 1 when a form differs by more than 1e-3, or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lpwm.recipes import recipe
from lpwm.train import Run
from lpwm.train.distributed import Ranks, join
from lpwm.train.log import read_log

MOST = 1e-3
PLAIN = {
    "precision": "float32",
    "compile": "off",
    "kernels": "off",
    "log_every": 1,
    "eval_every": 0,
    "checkpoint_every": 1000,
    "stop_dead": False,
}


class Joined(Ranks):
    """A lone process that talks to its group all the same."""

    @property
    def alone(self) -> bool:
        return False


def losses(folder: Path) -> list[float]:
    """Of every step of the one run in this folder."""
    (run,) = (path.parent for path in folder.glob("*/run.json"))
    return [row.number("loss") for row in read_log(run, "train")]


def here(folder: Path, device: torch.device, steps: int, ranks: Ranks) -> list[float]:
    config = recipe("tiny/lpwm")
    config = replace(config, train=replace(config.train, steps=steps, **PLAIN))  # type: ignore[arg-type]
    Run.create(config, folder, "tiny", ranks=ranks).train(device, ranks, console=False)
    return losses(folder)


def there(folder: Path, device: str, steps: int, processes: int) -> subprocess.Popen:
    flags = {f"--train.{name.replace('_', '-')}": value for name, value in PLAIN.items() if name != "stop_dead"}
    words = [str(w) for pair in flags.items() for w in pair]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(processes),
            "-m",
            "lpwm",
            "train",
            "tiny/lpwm",
            "--device",
            device,
            "--out",
            str(folder),
            "--train.steps",
            str(steps),
            *words,
            "--train.no-stop-dead",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def meet_nobody(device: str) -> None:
    """A group of this process alone."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="1", RANK="0")
    join(device, 0)


def apart(ours: list[float], expected: list[float]) -> float:
    """The largest relative difference; infinite where they are not of the same length, or not finite."""
    if len(ours) != len(expected) or not ours:
        return float("inf")
    far = max(abs(a - b) / abs(b) for a, b in zip(ours, expected, strict=True))
    return far if far == far else float("inf")


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for torchrun to end")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device, cuda = torch.device(args.device), args.device == "cuda"
    most = torch.cuda.device_count() if cuda else 2
    counts = [n for n in (1, 2, 4, 8) if n <= most]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        jobs = {n: there(root / f"torchrun{n}", args.device, args.steps, n) for n in counts}
        expected = here(root / "alone", device, args.steps, Ranks())
        rows["alone"] = {"losses": expected, "apart": 0.0}
        joined = Joined()
        try:
            meet_nobody(args.device)
            ours = here(root / "joined", device, args.steps, joined)
            rows["joined"] = {"losses": ours, "apart": apart(ours, expected)}
        except Exception as error:
            rows["joined"] = {"error": f"{type(error).__name__}: {error}"}
        finally:
            joined.leave()
        for n, job in jobs.items():
            try:
                said, _ = job.communicate(timeout=args.patience)
                ours = losses(root / f"torchrun{n}") if job.returncode == 0 else []
                rows[f"torchrun {n}"] = (
                    {"losses": ours, "apart": apart(ours, expected)}
                    if ours
                    else {"error": f"exit status {job.returncode}: {said.strip()[:600]}"}
                )
            except subprocess.TimeoutExpired:
                job.terminate()  # torchrun ends its processes
                rows[f"torchrun {n}"] = {"error": f"took longer than {args.patience:g} s"}
    good = all(row.get("apart", 1.0) <= MOST for row in rows.values())
    backend = f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if cuda else "gloo"
    name = torch.cuda.get_device_name() if cuda else "CPU"
    for kind, row in rows.items():
        print(
            f"{kind:<11} " + (row.get("error") or f"losses apart by {row['apart']:.1e}, last {row['losses'][-1]:.6f}")
        )
    seconds = time.perf_counter() - began
    print(f"{backend}, {most} × {name}, torch {torch.__version__}, {args.steps} steps, {seconds:.1f} s")
    if args.json:
        found_ = {"backend": backend, "device": name, "torch": torch.__version__, "seconds": seconds, "rows": rows}
        args.json.write_text(json.dumps(found_, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
