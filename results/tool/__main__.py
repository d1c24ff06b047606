"""`python -m results.tool page`, `… study` and `… ladder`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lpwm.core.errors import UserError

from . import ladder_page, study_command
from .page import RESULTS, write


def page(args: argparse.Namespace) -> None:
    made = write(args.folder, args.out)
    print(f"wrote {made['files'][0]}: " + ", ".join(f"{n} {v}" for v, n in made["directions"].items()))


def ladder(args: argparse.Namespace) -> None:
    made = ladder_page.report(args.sweep, args.out or args.sweep / "ladder.html", pictures=args.figures)
    print(f"wrote {made['page']} and {made['numbers']}: {made['finished']} of {made['cells']} cells are finished")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m results.tool", description="The paper's claims and our numbers.")
    verbs = parser.add_subparsers(required=True, metavar="page|study|ladder")
    one = verbs.add_parser("page", help="write README.md, claims.json and figures from the JSON files of results/")
    one.add_argument("folder", type=Path, nargs="?", default=RESULTS, help="of other JSON files; then --out is needed")
    one.add_argument("--out", type=Path, help="a new folder for what is written, instead of results/")
    one.set_defaults(run=page)
    study_command.arguments(verbs.add_parser("study", help=study_command.HELP, description=study_command.HELP))
    two = verbs.add_parser(
        "ladder", help="a sweep's best cells, sparse minus dense, heat maps and the ladder, as a page"
    )
    two.add_argument("sweep", type=Path, help="the folder of lpwm sweep")
    two.add_argument("--out", type=Path, help="the page; SWEEP/ladder.html if not given")
    two.add_argument("--figures", type=Path, help="a folder for the figures, PNG and PDF")
    two.set_defaults(run=ladder)
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except UserError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
