"""`lpwm collect WORLD --episodes N --out FILE`."""

from __future__ import annotations

import json as json_
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lpwm.core.errors import UserError
from lpwm.train.run_config import parse_options


@dataclass(frozen=True)
class Args:
    world: Annotated[str, tyro.conf.Positional]
    """The world to collect in, e.g. piecewise."""
    episodes: int
    """Episodes to collect."""
    out: Path
    """The HDF5 file to write. Until it is complete, shards wait in OUT.partial; the same command continues."""
    steps: int | None = None
    """Transitions of an episode (an episode has one frame more); when not given, the policy's own numbers (PushT's
    pusher makes 100 to 300) or the world's."""
    policy: str | None = None
    """The policy that acts; the world's own when not given."""
    seed: int = 0
    """Episode i is a function of the seed and i."""
    workers: int | None = None
    """Processes; all cores, if the work is worth starting them, when not given. The contents do not depend on it."""
    pixels: bool = False
    """Store frames next to the states. States alone are enough for the worlds that render on the device."""
    size: int | None = None
    """The side of stored frames; the world's own when not given."""
    options: tuple[str, ...] = ()
    """Options of the world, e.g. --options g=3 visible=true."""
    overwrite: bool = False
    """Replace OUT, and drop an unfinished collection of another kind."""
    json: bool = False
    """Print the result as JSON."""


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with an estimate on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def stoppable(kept: Callable[[], str]) -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does, and either says what is kept."""
    before: Any = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"lpwm: {kept()}", file=sys.stderr)
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def run(args: Args) -> int:
    if args.size is not None and not args.pixels:
        raise UserError("--size is the side of stored frames: it needs --pixels.")
    from lpwm.data import collect, read
    from lpwm.worlds import make_world

    world = make_world(args.world, **parse_options(args.options))
    with progress_bar("episodes", args.episodes) as progress:
        collect(
            world,
            args.out,
            episodes=args.episodes,
            steps=args.steps,
            policy=args.policy,
            seed=args.seed,
            workers=args.workers,
            pixels=args.pixels,
            size=args.size,
            overwrite=args.overwrite,
            progress=progress,
        )
    data = read(args.out, verify=False)
    size, covered = args.out.stat().st_size, float(data.attributes["coverage"])
    if args.json:
        summary = {
            "file": str(args.out),
            "bytes": size,
            "episodes": data.episodes,
            "steps": data.steps,
            "coverage": covered,
            "digest": data.digest,
        }
        print(json_.dumps(summary))
    else:
        print(
            f"{args.out}: {data.episodes} episodes, {data.steps} steps, {size / 1e6:.1f} MB, coverage "
            f"{covered:.3f}, digest {data.digest}"
        )
    return 0
