"""`python -m results.tool page` and `python -m results.tool study`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lpwm.core.errors import UserError

from . import study_command
from .page import RESULTS, write


def page(args: argparse.Namespace) -> None:
    made = write(args.folder, args.out)
    print(f"wrote {made['files'][0]}: " + ", ".join(f"{n} {v}" for v, n in made["verdicts"].items()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m results.tool", description="The paper's claims and our numbers.")
    verbs = parser.add_subparsers(required=True, metavar="page|study")
    one = verbs.add_parser("page", help="write README.md, claims.json and figures from the JSON files of results/")
    one.add_argument("folder", type=Path, nargs="?", default=RESULTS, help="of other JSON files; then --out is needed")
    one.add_argument("--out", type=Path, help="a new folder for what is written, instead of results/")
    one.set_defaults(run=page)
    study_command.arguments(verbs.add_parser("study", help=study_command.HELP, description=study_command.HELP))
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except UserError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
