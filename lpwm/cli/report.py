"""`lpwm report RUN…`: everything known about runs, as one page that opens anywhere, and as figures."""

from __future__ import annotations

import json as json_
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lpwm.core.errors import UserError


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders, or one sweep's folder. What lpwm eval and lpwm interpret wrote about them is shown too."""
    also: tuple[Path, ...] = ()
    """Further files of lpwm eval --out, lpwm interpret --out and lpwm theory."""
    out: Path | None = None
    """The page to write, or a folder for report.html; without it, in the run's folder, or next to several runs."""
    figures: Path | None = None
    """Also draw every figure into this folder, as PNG and PDF."""
    title: str = ""
    """The page's title."""
    json: bool = False
    """Print what was written as JSON."""


def target(args: Args) -> Path:
    """Where the page goes."""
    if args.out is None:
        first = Path(args.runs[0])
        return (first if len(args.runs) == 1 else first.resolve().parent) / "report.html"
    if args.out.suffix.lower() in (".html", ".htm"):
        if args.out.is_dir():
            raise UserError(f"{args.out} is a folder: give a file, or a folder without that ending.")
        return args.out
    if args.out.suffix and not args.out.is_dir():
        raise UserError(f"the page is HTML: call it {args.out.with_suffix('.html')}, or give a folder.")
    return args.out / "report.html"


def parse(argv: list[str]) -> Args:
    if any(word.partition("=")[0] == "--claims" for word in argv):  # an option of 0.1.0
        raise UserError("--claims is no longer part of lpwm: in its repository run `python -m results.tool page`.")
    return tyro.cli(Args, args=argv, prog="lpwm report", description="One page about any set of runs")


def run(args: Args) -> int:
    if not args.runs:
        raise UserError("which runs? lpwm report RUN…, folders that lpwm train made.")
    out = target(args)
    if any((path / "sweep.json").exists() for path in args.runs):
        return sweep(args, out)

    from lpwm.report import figures, page  # slow to import: torch, matplotlib
    from lpwm.report.gather import gather
    from lpwm.report.provenance import commands_of

    given = gather(args.runs, args.also)
    page.write(out, given, title=args.title, commands=commands_of(given))
    drawn = figures.write(args.figures, given) if args.figures is not None else []
    if args.json:
        made = {
            "page": str(out),
            "bytes": out.stat().st_size,
            "figures": [str(p) for p in drawn],
            "runs": [r.hash for r in given.runs],
            "evaluations": len(given.evaluations),
            "studies": len(given.studies),
            "episodes": len(given.episodes),
            "readings": [r.KIND for r in (*given.contact, *given.sparsity)]
            + ["lpwm theory"] * (given.theory is not None),
            "notes": list(given.notes),
        }
        print(json_.dumps(made))
        return 0
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB): open it in a browser.")
    if drawn:
        print(f"wrote {len(drawn)} figures in {args.figures}")
    for note in given.notes:
        print(note)
    return 0


def sweep(args: Args, out: Path) -> int:
    """The page of a sweep: best cells, differences, heat maps, the ladder."""
    if len(args.runs) > 1 or args.also:
        raise UserError("a sweep is reported by itself: give its folder alone.")
    from lpwm.report import sweep as room

    made = room.report(args.runs[0], out, args.title, args.figures)
    if args.json:
        print(json_.dumps(made))
        return 0
    print(
        f"wrote {out} and {out.with_suffix('.json')}: {made.get('finished')} of {made.get('cells')} cells are finished."
    )
    if made.get("figures"):
        print(f"wrote the figures in {args.figures}")
    return 0
