"""A grid of runs that survives everything; `lpwm sweep status` tells where it is."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TextIO

import tyro

from lpwm.cli.help import parse_args
from lpwm.cli.terminal import plain, say, tell, width
from lpwm.core.errors import UserError
from lpwm.core.json import dump_json, to_json
from lpwm.sweep.engines import EngineConfig
from lpwm.sweep.grid import GRIDS, Cell, Grid, expand, read_grid


@dataclass(frozen=True)
class Args:
    grid: tyro.conf.Positional[str] = ""
    out: Path = Path("sweeps")  # Sweeps are folders in here; with several machines, on a disk that all of them see.
    dry_run: bool = False  # Only print every cell with its predicted cost, and the total.
    config: Annotated[EngineConfig, tyro.conf.arg(name="")] = field(default_factory=EngineConfig)
    retry_failed: bool = False  # Cells that failed earlier run again.
    json: bool = False  # Print the result as JSON.


@dataclass(frozen=True)
class StatusArgs:
    """Where a sweep stands."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The sweep's folder, its name in --out, or a folder that holds this one sweep (the --out it was given)."""
    out: Path = Path("sweeps")
    once: bool = False  # Print once; otherwise, on a terminal, the view follows the sweep until it ends.
    json: bool = False  # Print every cell as JSON.


def defaults(words: list[str], prog: str) -> tuple[Args | type[StatusArgs], str]:
    return (StatusArgs, f"{prog} status") if words[:1] == ["status"] else (Args(), prog)


def parse(argv: list[str]) -> Args | StatusArgs:
    if argv[:1] == ["status"]:
        return parse_args(StatusArgs, argv[1:], "lpwm sweep status")
    args = parse_args(Args, argv, "lpwm sweep NAME|FILE")
    if not args.grid:
        raise UserError(f"which grid? lpwm sweep NAME or FILE.toml; names: {', '.join(GRIDS)}.")
    return args


def run(args: Args | StatusArgs) -> int:
    from lpwm.recipes import recipe

    if isinstance(args, StatusArgs):
        return show(args)
    grid = read_grid(args.grid)
    cells = expand(grid, recipe)
    check_fits(grid, cells, args.config, args.dry_run)
    if args.dry_run:
        return dry_run(args, grid, cells)
    return work_through(grid, cells, args.out / grid.name, args)


def work_through(grid: Grid, cells: list[Cell], root: Path, args: Args) -> int:
    """Every cell run to its end; 1 where one failed or is left."""
    from lpwm.core.lock import Busy, one_writer
    from lpwm.sweep import status

    engine = args.config.load()
    ledger = status.create(grid, cells, root)
    if args.retry_failed:
        for cell in cells:
            ledger.retry(cell.hash)
    _say(f"{status.view(root).line()} in {root}")
    try:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(one_writer(root, "a sweep"))
            except Busy as other:  # the ledger gives each cell to one of them
                said = str(other).removesuffix(": wait for it, or end that process first.")
                _say(f"{said}; cells are shared with it.")
            told = engine.run(root, [c.hash for c in cells], args.config, held.enter_context(_watching(root)))
    except KeyboardInterrupt:
        _say("interrupted; nothing finished is lost. Continue with the same command.")
        raise
    if told:
        _say(f"{told}.")
    now = status.view(root)
    say(dump_json(now).rstrip() if args.json else f"{status.table(now)}\nfigures: lpwm report {root}")
    return 1 if now.counts["failed"] or now.open else 0


def cost_of(cell: Cell) -> dict[str, float]:
    """Of its training; fields that do not change it are left out, so that few models are counted."""
    from lpwm.cli.recipes import predicted

    c = cell.config
    plain = replace(c.objective, lam=1.0, tj_weight=0.0)
    return predicted(replace(c, objective=plain, optim=type(c.optim)(), train=replace(c.train, seed=0)))


def check_fits(grid: Grid, cells: list[Cell], config: EngineConfig, dry: bool = False) -> None:
    """Refuse a width (or batch) that does not fit into a cell's memory, naming its line."""
    import torch

    from lpwm.core.memory import free_bytes
    from lpwm.sweep.engines.local import gpu_count, worker_count

    here = config.engine == "local"
    device = "cuda" if config.gpus or (gpu_count(config) if here else config.device.startswith("cuda")) else "cpu"
    free = config.memory_gib
    if not free and (dry or not here or (device == "cuda" and not torch.cuda.is_available())):
        return  # other machines' memory is not known here
    if not free:  # shared by the cells that run at once
        free = free_bytes(torch.device(device)) / 2**30 / -(-worker_count(config) // max(1, gpu_count(config)))
    for cell in cells:
        need = cost_of(cell)["gpu_gib" if device == "cuda" else "cpu_gib"]
        if need > free:
            axis = next((a.key for a in grid.axes for f in a.fields if f == "model.latent"), "")
            fixed = ("fixed", "model.latent") if "model.latent" in grid.fixed else ("", "recipe")
            room = f"needs about {need:.1f} GiB and a cell has {free:.1f} GiB on {device}"
            remedy = "use a smaller model.latent or train.batch, or train.accumulate"
            grid.source.refuse(*(("axes", axis) if axis else fixed), f"{cell.label} {room}: {remedy}.")


def _say(sentence: str) -> None:
    tell(f"lpwm: {sentence}")


@contextlib.contextmanager
def _watching(root: Path) -> Iterator[Callable[[], None]]:
    """On a terminal a table of all runs; elsewhere a line when the sweep changes, at most every two seconds."""
    from lpwm.sweep import status

    if sys.stderr.isatty():
        with _live(root, sys.stderr):
            yield lambda: None
        return
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

    yield watch


def _live(root: Path, stream: TextIO) -> Any:
    """The table of a sweep, as high as the terminal, drawn anew every second."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from lpwm.sweep import status

    console = Console(file=stream)

    def page() -> Text:
        rows = max(5, console.size.height - 3)
        return Text(plain(status.table(status.view(root), rows)), no_wrap=True, overflow="ellipsis")

    return Live(get_renderable=page, console=console, refresh_per_second=1, redirect_stdout=False)


def dry_run(args: Args, grid: Grid, cells: list[Cell]) -> int:
    from lpwm.cli.recipes import HEADS, row
    from lpwm.train.progress import duration

    costs = [cost_of(cell) for cell in cells]
    gpu, cpu = (sum(c[f"{d}_minutes"] for c in costs) for d in ("gpu", "cpu"))
    most = max(c["gpu_gib"] for c in costs)
    if args.json:
        rows = [{**to_json(cell), "cost": cost} for cell, cost in zip(cells, costs, strict=True)]
        total = {"cells": len(cells), "gpu_minutes": gpu, "cpu_minutes": cpu, "most_gpu_gib": most}
        say(dump_json({"grid": grid.name, "cells": rows, "total": total}), end="")
        return 0
    say(f"{'cell':<12}  {HEADS}")
    for cell, cost in zip(cells, costs, strict=True):
        line = f"{cell.hash}  {row(cost, cell.config.train.steps)}"
        say(f"{line}  {cell.label}" if len(line) + 2 + len(cell.label) <= width() else f"{line}\n  {cell.label}")
    times = f"about {duration(60 * gpu)} of one H200, or {duration(60 * cpu)} of two cores"
    say(f"{len(cells)} cells: {times}; at most {most:.1f} GiB each.\nTraining alone: evaluations come on top.")
    return 0


def show(args: StatusArgs) -> int:
    from lpwm.sweep import status

    root = status.find_sweep(args.folder, args.out)
    now = status.view(root)
    if args.json:
        say(dump_json(now), end="")
        return 0
    if args.once or not sys.stdout.isatty() or not now.open:
        say(status.table(now))
        return 0
    with _live(root, sys.stdout):
        while status.view(root).open:
            time.sleep(1.0)
    return 0
