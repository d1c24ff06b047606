"""`lpwm collect WORLD --episodes N --out FILE`."""

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

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError
from lpwm.train.run_config import parse_options


@dataclass(frozen=True)
class Args:
    world: Annotated[str, tyro.conf.Positional]
    """The world to collect in, e.g. piecewise, or gym:ID, any gymnasium environment (gym:Pendulum-v1)."""
    episodes: int  # Episodes to collect.
    out: Path  # The HDF5 file to write. Until it is complete, shards wait in OUT.partial; the same command continues.
    steps: int | None = None
    """Transitions of an episode (an episode has one frame more); when not given, the policy's own numbers (PushT's
    pusher makes 100 to 300) or the world's."""
    policy: str | None = None  # The policy that acts, or module:function; the world's own when not given.
    wrapper: str | None = None  # module:function from a gymnasium environment to the one to use.
    seed: int = 0  # Episode i is a function of the seed and i.
    workers: int | None = None
    """Processes; all cores, if the work is worth starting them, when not given. The contents do not depend on it."""
    pixels: bool = False
    """Store frames next to the states. States alone are enough for the worlds that render on the device; gym:ID always
    stores frames."""
    size: int | None = None  # The side of stored frames; the world's own when not given.
    options: tuple[str, ...] = ()  # Options of the world, e.g. --options g=3 visible=true.
    overwrite: bool = False  # Replace OUT, and drop an unfinished collection of another kind.
    json: bool = False  # Print the result as JSON.


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
        tell(f"lpwm: {kept()}")
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def run(args: Args) -> int:
    if args.size is not None and not (args.pixels or args.world.startswith("gym:")):
        raise UserError("--size is the side of stored frames: it needs --pixels.")
    from lpwm.data import collect, read
    from lpwm.worlds import make_world

    wrapper = {"wrapper": args.wrapper} if args.wrapper else {}
    world = make_world(args.world, **parse_options(args.options), **wrapper)
    for note in world.notes() if hasattr(world, "notes") else ():
        tell(f"lpwm: {note}")
    kept = f"what is finished is kept in {args.out}.partial: the same command continues."
    with stoppable(lambda: kept), progress_bar("episodes", args.episodes) as progress:
        own = ("world", "out", "wrapper", "options", "json")
        collect(world, args.out, **{k: v for k, v in vars(args).items() if k not in own}, progress=progress)
    data = read(args.out, verify=False)
    size, covered = args.out.stat().st_size, float(data.attributes["coverage"])
    counts = {"episodes": data.episodes, "steps": data.steps}
    if args.json:
        say(json_.dumps({"file": str(args.out), "bytes": size, **counts, "coverage": covered, "digest": data.digest}))
    else:
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        say(f"{args.out}: {told}, {size / 1e6:.1f} MB, coverage {covered:.3f}, digest {data.digest}")
    return 0
