"""A grid of runs that survives everything; `lpwm sweep status` tells where it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lpwm.core.errors import UserError
from lpwm.core.json import dump_json, to_json
from lpwm.sweep.grid import GRIDS, Cell, Grid, expand, read_grid

if TYPE_CHECKING:
    from lpwm.sweep.cost import CellCost


@dataclass(frozen=True)
class Args:
    grid: tyro.conf.Positional[str] = ""
    """A named grid or a .toml/.json file (docs/clusters.md)."""
    out: Path = Path("sweeps")
    """Sweeps are folders in here; with several machines, on a disk that all of them see."""
    dry_run: bool = False
    """Only print every cell with its predicted cost, and the total."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """What starts the cells. The ledger in the folder is the truth; engines may even be mixed."""
    workers: int = 0
    """Processes (local), CPUs of the embedded cluster (ray), array elements (slurm); 0: what the machine has, or 8."""
    cpus: int = 1
    """CPUs of each cell, and its threads."""
    gpus: float = 0.0
    """GPUs of each cell on Ray (0.25 puts four on one) and Slurm; local workers share what --device names."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    memory_gib: float = 0.0
    """Memory a cell may have; 0: what is free on this machine's device."""
    address: str = ""
    """Of a running Ray cluster (auto, ray://HOST:10001); empty: a cluster embedded here."""
    hours: float = 24.0
    """Time limit of a Slurm job; what is cut off is continued by the next."""
    slurm_options: tuple[str, ...] = ()
    """Further sbatch options, e.g. --slurm-options partition=gpu account=me; cluster=local runs the jobs here."""
    retries: int = 3
    """Of a cell whose process or node dies (ray)."""
    retry_failed: bool = False
    """Cells that failed earlier run again."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True)
class StatusArgs:
    folder: Annotated[Path, tyro.conf.Positional]
    """The sweep's folder, its name in --out, or a folder that holds this one sweep (the --out it was given)."""
    out: Path = Path("sweeps")
    once: bool = False
    """Print once; otherwise, on a terminal, the view follows the sweep until it ends."""
    json: bool = False
    """Print every cell as JSON."""


def parse(argv: list[str]) -> Args | StatusArgs:
    if argv[:1] == ["status"]:
        return tyro.cli(StatusArgs, args=argv[1:], prog="lpwm sweep status", description="Where a sweep stands.")
    about = "\n".join([f"{__doc__}\n\nnamed grids:", *(f"  {name}: {what}" for name, what in GRIDS.items())])
    args = tyro.cli(Args, args=argv, prog="lpwm sweep NAME|FILE", description=about)
    if not args.grid:
        raise UserError(f"which grid? lpwm sweep NAME or FILE.toml; names: {', '.join(GRIDS)}.")
    return args


def run(args: Args | StatusArgs) -> int:
    from lpwm.recipes import recipe
    from lpwm.sweep import status
    from lpwm.sweep.cost import check_fits, cost_of

    if isinstance(args, StatusArgs):
        return show(args)
    grid = read_grid(args.grid)
    cells = expand(grid, recipe)
    costs = [cost_of(cell) for cell in cells]
    kind = "cuda" if args.gpus or args.device.startswith("cuda") or _has_gpu(args) else "cpu"
    if args.dry_run:
        if args.memory_gib:
            check_fits(grid, cells, costs, args.memory_gib * 2**30, kind)
        return dry_run(args, grid, cells, costs)
    check_fits(grid, cells, costs, _memory(args, kind), kind)
    root = args.out / grid.name
    start = _engine(args)
    ledger = status.create(grid, cells, root)
    if args.retry_failed:
        for cell in cells:
            ledger.retry(cell.hash)
    before = status.view(root)
    _say(f"{before.line()} in {root}")
    watch = _watcher(root)
    try:
        start(root, [c.hash for c in cells], watch)
    except KeyboardInterrupt:
        _say(f"interrupted; nothing finished is lost. Continue with the same command: lpwm sweep {args.grid} …")
        raise
    now = status.view(root)
    print(dump_json(now).rstrip() if args.json else status.table(now))
    if not args.json:
        print(f"figures: lpwm report {root}")
    return 1 if now.counts["failed"] or now.open else 0


def _has_gpu(args: Args) -> bool:
    import torch

    return args.engine == "local" and args.device == "auto" and torch.cuda.is_available()


def _memory(args: Args, kind: str) -> float:
    """Bytes that a cell may have."""
    import torch

    from lpwm.core.memory import free_bytes
    from lpwm.sweep.engines.local import LocalConfig

    if args.memory_gib:
        return args.memory_gib * 2**30
    if args.engine != "local" or (kind == "cuda" and not torch.cuda.is_available()):
        return float("inf")  # other machines' memory is not known here
    local = LocalConfig(args.workers, args.cpus, args.device)
    at_once = -(-local.count // max(1, local.gpus))  # cells that share the memory
    return free_bytes(torch.device(kind)) / at_once


def _engine(args: Args) -> Callable[[Path, list[str], Callable[[], None]], None]:
    """The engine with its settings checked, before a folder is made."""
    from lpwm.sweep.engines import local as engine_local
    from lpwm.sweep.engines import ray as engine_ray
    from lpwm.sweep.engines import slurm as engine_slurm
    from lpwm.train import parse_options

    if args.engine == "local":
        local = engine_local.LocalConfig(args.workers, args.cpus, args.device)
        return lambda root, names, watch: engine_local.run(root, names, local, watch)
    if args.engine == "ray":
        engine_ray.load()
        ray = engine_ray.RayConfig(args.address, args.cpus, args.gpus, args.workers, args.retries, args.device)
        return lambda root, names, watch: engine_ray.run(root, names, ray, watch)
    options = parse_options(args.slurm_options)
    slurm = engine_slurm.SlurmConfig(
        workers=args.workers or 8,
        cpus=args.cpus,
        gpus=int(args.gpus),
        hours=args.hours,
        memory_gib=round(args.memory_gib) or 16,
        cluster=options.pop("cluster", "slurm"),
        options=options,
        device=args.device,
    )
    return lambda root, names, watch: engine_slurm.run(root, names, slurm, watch)


def _say(sentence: str) -> None:
    print(f"lpwm: {sentence}", file=sys.stderr)


def _watcher(root: Path) -> Callable[[], None]:
    """A line about the sweep, when it changes; at most every two seconds."""
    from lpwm.sweep import status

    last, told, look = 0.0, "", status.watcher(root)

    def watch() -> None:
        nonlocal last, told
        if time.monotonic() - last < 2:
            return
        last = time.monotonic()
        line = look()
        if line != told:
            _say(line)
            told = line

    return watch


def dry_run(args: Args, grid: Grid, cells: list[Cell], costs: list[CellCost]) -> int:
    from lpwm.evaluate.timing import duration

    gpu, cpu = (sum(c.minutes(d) for c in costs) for d in ("cuda", "cpu"))
    most = max(c.gpu_bytes for c in costs)
    if args.json:
        rows = [{**to_json(cell), "cost": vars(cost)} for cell, cost in zip(cells, costs, strict=True)]
        total = {"cells": len(cells), "gpu_minutes": gpu, "cpu_minutes": cpu, "most_gpu_bytes": most}
        print(dump_json({"grid": grid.name, "cells": rows, "total": total}), end="")
        return 0
    print(f"{'cell':<12}  {'steps':>6} {'params':>7} {'H200':>8} {'2 cores':>8} {'memory':>9}   (estimates)")
    for cell, c in zip(cells, costs, strict=True):
        times = f"{duration(60 * c.gpu_minutes):>8} {duration(60 * c.cpu_minutes):>8}"
        print(
            f"{cell.hash}  {c.steps:>6} {c.parameters / 1e6:>6.1f}M {times} {c.gpu_bytes / 2**30:>5.1f} GiB  "
            f"{cell.label}"
        )
    print(
        f"{len(cells)} cells: about {duration(60 * gpu)} of one H200, or {duration(60 * cpu)} of two cores; "
        f"at most {most / 2**30:.1f} GiB each. Planning and training, without the oracle control."
    )
    return 0


def show(args: StatusArgs) -> int:
    from lpwm.sweep import status

    root = status.find_sweep(args.folder, args.out)
    now = status.view(root)
    if args.json:
        print(dump_json(now), end="")
        return 0
    if args.once or not sys.stdout.isatty() or not now.open:
        print(status.table(now))
        return 0
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    rows = max(5, console.size.height - 3)

    def page() -> Text:
        return Text(status.table(now, rows), no_wrap=True, overflow="ellipsis")

    with Live(page(), console=console, refresh_per_second=2) as live:
        while now.open:
            time.sleep(1.0)
            now = status.view(root)
            live.update(page())
    return 0
