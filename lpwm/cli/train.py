"""lpwm train RECIPE: train a named run, any field overridden; or continue one."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lpwm.cli.help import parse_args
from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError
from lpwm.recipes import RECIPES, recipe
from lpwm.train.progress import LEGEND
from lpwm.train.run_config import RunConfig, pick_device, read_record

if TYPE_CHECKING:
    from lpwm.train.distributed import Ranks
    from lpwm.train.run import Run


@dataclass(frozen=True)
class Args:
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)  # The recipe's fields.
    out: Path = Path("runs")  # Where run folders are made; data are kept in OUT/data.
    name: str = ""  # What the run is called, in its folder's name and in tables; the recipe's name if not given.
    resume: Path | None = None
    """Continue this run folder; with a larger --train.steps, further in a new one next to it."""
    weights: str = ""  # Start from the weights of another run, checkpoint, folder or hub name instead of fresh ones.
    fresh: bool = False  # Delete the checkpoints of this run and start over.
    seeds: tuple[int, ...] = ()
    """Train one run per seed, as many side by side as the machine has room for, in OUT/NAME: a sweep without a grid."""
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    wandb: str = ""  # Also log to this Weights & Biases project.
    json: bool = False  # Print the result as JSON.


def defaults(words: list[str], prog: str) -> tuple[Args, str]:
    """The defaults of a recipe's options, for help."""
    return Args(run=recipe(words[0])) if words else Args(), f"{prog} RECIPE"


def parse(argv: list[str]) -> tuple[str, Args]:
    """The recipe's name comes first; its config, at the width given, is then the default of every option."""
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    if not name and not any(a.startswith("--resume") for a in argv):
        raise UserError(f"which recipe? lpwm train RECIPE, such as {next(iter(RECIPES))}; lpwm recipes lists them.")
    folder = _given(argv, "--resume")
    if name:  # which may have other settings at another width
        width = _given(argv, "--model.latent")
        default = Args(run=recipe(name, int(width) or None if width.isdecimal() else None))
    else:
        default = Args(run=read_record(Path(folder)).config) if folder else Args()
    rest = argv[1:] if name else argv
    return name, parse_args(Args, rest, "lpwm train RECIPE", default)


def _given(argv: list[str], option: str) -> str:
    """The value of an option, before the others are parsed; "" where it is not given."""
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name == option:
            return value or after
    return ""


def _resumed(args: Args, ranks: "Ranks") -> "Run":
    """The run of a folder, or a longer one that goes on from it."""
    from lpwm.train.run import Run

    assert args.resume is not None
    before = read_record(args.resume).config
    if args.run == before:
        return Run.open(args.resume)
    if args.run != replace(before, train=replace(before.train, steps=args.run.train.steps)) or args.weights:
        raise UserError(
            f"--resume continues {args.resume} as it is, but for --train.steps: for other fields start a new run with "
            f"lpwm train RECIPE --weights {args.resume}."
        )
    return Run.further(args.resume, args.run.train.steps, ranks)


def _several(name: str, args: Args) -> int:
    """One run per seed, through the sweep's ledger and workers."""
    from lpwm.cli.sweep import Args as SweepArgs
    from lpwm.cli.sweep import check_fits, work_through
    from lpwm.core.config import digest
    from lpwm.sweep.engines import EngineConfig
    from lpwm.sweep.grid import Cell, parse_grid

    for option in ("resume", "weights", "wandb", "fresh"):
        if getattr(args, option):
            raise UserError(f"--seeds trains several new runs: --{option} belongs to one, leave it out.")
    grid = parse_grid(json.dumps({"recipe": name, "seeds": args.seeds}), args.name or name, "--seeds", is_json=True)
    runs = [replace(args.run, train=replace(args.run.train, seed=seed)) for seed in grid.seeds]
    cells = [Cell(digest({"config": run, "evals": {}}), grid.name, run, {}, {}) for run in runs]
    options = SweepArgs(config=EngineConfig(device=args.device), json=args.json)
    check_fits(grid, cells, options.config)
    return work_through(grid, cells, args.out / grid.name.replace("/", "-"), options)


def run(parsed: tuple[str, Args]) -> int:
    if parsed[1].seeds:
        return _several(*parsed)
    from lpwm.train.distributed import Ranks
    from lpwm.train.loop import Interrupted
    from lpwm.train.run import Run

    name, args = parsed
    device = pick_device(args.device)
    ranks = Ranks.from_environment(device.type)
    if device.type == "cuda" and ranks.ranks > 1:
        device = pick_device(f"cuda:{ranks.local}")

    def report(sentence: str) -> None:
        if ranks.first:
            tell(f"lpwm: {sentence}")

    if args.resume is not None:
        job = _resumed(args, ranks)
    else:
        if not args.run.data.file:  # before anything is collected or written
            args.run.check_fits(device, ranks, args.run.data.build_world().spec.action_dim)
        job = Run.create(args.run, args.out, args.name or name, ranks=ranks, weights=args.weights or None)
    report(f"run {job.folder} on {device}, {ranks.ranks} process{'es' if ranks.ranks > 1 else ''}.")
    if ranks.first and not args.json:
        tell(LEGEND)
    try:
        job.train(device, ranks, console=not args.json, wandb=args.wandb or None, report=report, fresh=args.fresh)
    except Interrupted:
        report(f"interrupted; a checkpoint is written. Continue with: lpwm train --resume {job.folder}")
        return 130
    finally:
        ranks.leave()
    for line in job.concerns():
        report(line)
    if ranks.first:
        say(json.dumps(job.result().to_json()) if args.json else job.summary())
    return 0
