"""lpwm train RECIPE: train a named run, any field overridden; or continue one."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from lpwm.core.errors import UserError
from lpwm.recipes import RECIPES, recipe
from lpwm.train.run_config import RunConfig, pick_device


@dataclass(frozen=True)
class Args:
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    """The recipe's fields."""
    out: Path = Path("runs")
    """Where run folders are made; data are kept in OUT/data."""
    resume: Path | None = None
    """Continue this run folder (the same recipe with the same fields continues by itself)."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    wandb: str = ""
    """Also log to this Weights & Biases project."""
    json: bool = False
    """Print the result as JSON."""


def defaults(words: list[str], prog: str) -> tuple[Args, str]:
    """The defaults of a recipe's options, for help."""
    return Args(run=recipe(words[0])) if words else Args(), f"{prog} RECIPE"


def parse(argv: list[str]) -> tuple[str, Args]:
    """The recipe's name comes first; its config, at the width given, is then the default of every option."""
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    if not name and not any(a.startswith("--resume") or a in ("-h", "--help") for a in argv):
        raise UserError(
            f"which recipe? lpwm train RECIPE, for instance {next(iter(RECIPES))}; lpwm recipes lists them."
        )
    default = Args(run=recipe(name, _width(argv))) if name else Args()
    rest = argv[1:] if name else argv
    return name, tyro.cli(Args, args=rest, default=default, prog="lpwm train RECIPE", description=__doc__)


def _width(argv: list[str]) -> int | None:
    """What --model.latent gives: a recipe may have other settings at another width."""
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        option, _, value = word.partition("=")
        if option == "--model.latent" and (value or after).isdecimal():
            return int(value or after) or None
    return None


def run(parsed: tuple[str, Args]) -> int:
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
            print(f"lpwm: {sentence}", file=sys.stderr)

    if args.resume is not None:
        job = Run.open(args.resume)
    else:
        if not args.run.data.file:  # before anything is collected or written
            args.run.check_fits(device, ranks, args.run.data.build_world().spec.action_dim)
        job = Run.create(args.run, args.out, name, ranks=ranks)
    report(f"run {job.folder} on {device}, {ranks.ranks} process{'es' if ranks.ranks > 1 else ''}.")
    try:
        job.train(device, ranks, console=not args.json, wandb=args.wandb or None, report=report)
    except Interrupted:
        report(f"interrupted; a checkpoint is written. Continue with: lpwm train --resume {job.folder}")
        return 130
    finally:
        ranks.leave()
    if ranks.first:
        print(json.dumps(job.result()) if args.json else job.summary())
    return 0
