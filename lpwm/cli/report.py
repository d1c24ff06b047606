"""`lpwm report RUN…`: everything known about runs, as one page that opens anywhere, and as figures."""

import json as json_
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lpwm.cli.help import parse_args
from lpwm.cli.terminal import say
from lpwm.core.errors import UserError
from lpwm.core.files import check_output


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders, or one sweep's folder. What lpwm eval and lpwm interpret wrote about them is shown too."""
    also: tuple[Path, ...] = ()  # Further files of lpwm eval --out and lpwm interpret --out.
    out: Path | None = None
    """The page to write, or a folder for report.html; without it, in the run's folder, or next to several runs."""
    figures: Path | None = None  # Also draw every figure into this folder, as PNG and PDF.
    title: str = ""  # The page's title.
    overwrite: bool = False  # Replace files that lpwm did not make.
    json: bool = False  # Print what was written as JSON.


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
    return parse_args(Args, argv, "lpwm report")


def run(args: Args) -> int:
    if not args.runs:
        raise UserError("which runs? lpwm report RUN…, folders that lpwm train made.")
    out = target(args)
    check_output(out, args.overwrite)
    if any((path / "sweep.json").exists() for path in args.runs):
        return sweep(args, out)

    from lpwm.report import figures, page  # slow to import: torch, matplotlib
    from lpwm.report.gather import gather

    given = gather(args.runs, args.also)
    page.write(out, given, title=args.title)
    drawn = figures.write(args.figures, given, overwrite=args.overwrite) if args.figures is not None else []
    size = out.stat().st_size
    if args.json:
        made = {
            "page": str(out),
            "bytes": size,
            "figures": [str(p) for p in drawn],
            "runs": [r.hash for r in given.runs],
        }
        made |= {name: len(getattr(given, name)) for name in ("evaluations", "studies", "episodes")}
        readings = [r.KIND for r in given.sparsity]
        say(json_.dumps(made | {"readings": readings, "notes": list(given.notes)}))
        return 0
    say(f"wrote {out} ({size / 1e6:.1f} MB): open it in a browser.")
    for line in [f"wrote {len(drawn)} figures in {args.figures}"] * bool(drawn) + list(given.notes):
        say(line)
    return 0


def sweep(args: Args, out: Path) -> int:
    """The page of a sweep: success of every setting."""
    if len(args.runs) > 1 or args.also:
        raise UserError("a sweep is reported by itself: give its folder alone.")
    from lpwm.core.json import dump_json
    from lpwm.report import sweep as room

    made = room.report(args.runs[0], out, args.title, args.figures, args.overwrite)
    told = f"wrote {out} and {out.with_suffix('.json')}: {made['finished']} of {made['cells']} cells are finished."
    say(dump_json(made).rstrip() if args.json else told)
    return 0
