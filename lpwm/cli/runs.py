"""`lpwm runs FOLDER`: the run folders there, and how far each has come."""

from __future__ import annotations

import json as json_
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from lpwm.core.errors import UserError


@dataclass(frozen=True)
class Args:
    folder: tyro.conf.Positional[Path] = Path("runs")
    """Where to look, folders of folders included."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Row:
    folder: str
    name: str
    world: str
    step: int
    steps: int
    error: float | None  # held-out relative error at depth 1, the last measured
    age: float  # seconds since the run was last written to


def rows(folder: Path) -> list[Row]:
    """The runs in a folder, up to three levels deep, the newest last."""
    folders = [p.parent for depth in ("", "*/", "*/*/", "*/*/*/") for p in folder.glob(f"{depth}run.json")]
    return sorted(map(_row, folders), key=lambda row: -row.age)


def _row(folder: Path) -> Row:
    from lpwm.core.config import from_dict
    from lpwm.core.provenance import read_log
    from lpwm.train.run_config import RunConfig, read_record

    record = read_record(folder)
    config = from_dict(RunConfig, record["config"])
    log = folder / "log.jsonl"
    train, held_out = (read_log(folder, kind) if log.exists() else [] for kind in ("train", "val"))
    return Row(
        folder=str(folder),
        name=str(record["name"]),
        world="recordings" if config.data.file else config.data.world,
        step=train[-1]["step"] if train else 0,
        steps=config.train.steps,
        error=held_out[-1].get("error_depth", [None])[0] if held_out else None,
        age=time.time() - (log if log.exists() else folder / "run.json").stat().st_mtime,
    )


def run(args: Args) -> int:
    runs = rows(args.folder)
    if not runs:
        raise UserError(f"{args.folder} holds no runs: lpwm train RECIPE --out {args.folder} makes one.")
    if args.json:
        print(json_.dumps([asdict(row) for row in runs], indent=2))
        return 0
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from lpwm.train.progress import duration

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("world")
    for head in ("step", "error", "age"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in runs:
        error = "–" if row.error is None or math.isnan(row.error) else f"{row.error:.3f}"
        table.add_row(row.folder, row.world, f"{row.step}/{row.steps}", error, duration(row.age))
    Console().print(table)
    print("error: relative, held-out, one step ahead; age: since it was last written")
    return 0
