"""`python -m results.tool page`, `… study`, `… ladder`, `… theory` and `… contact`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import dump_json
from lpwm.interpret.results import SAMPLES
from lpwm.report.figures import save
from lpwm.train import load, pick_device

from . import contact, contact_figures, ladder_page, study_command, theory, theory_figures
from .page import RESULTS, write


def page(args: argparse.Namespace) -> None:
    made = write(args.folder, args.out)
    print(f"wrote {made['files'][0]}: " + ", ".join(f"{n} {v}" for v, n in made["directions"].items()))


def ladder(args: argparse.Namespace) -> None:
    made = ladder_page.report(args.sweep, args.out or args.sweep / "ladder.html", pictures=args.figures)
    print(f"wrote {made['page']} and {made['numbers']}: {made['finished']} of {made['cells']} cells are finished")


def proposition(args: argparse.Namespace) -> None:
    study = theory.theory(args.sizes, theory.StudyConfig(states=args.states))
    make_folder(args.out)
    write_whole(args.out / "theory.json", dump_json(study))
    save(args.out, theory_figures.figures(study), overwrite=True)
    print("\n\n".join(study.tables()))
    if study.problems:
        raise UserError(" ".join(study.problems))


def support(args: argparse.Namespace) -> None:
    config = contact.ContactConfig(frames=args.frames, seed=args.seed)
    device = pick_device(args.device)
    loaded = [load(path, device=device) for path in args.runs]
    for one in loaded:  # before the first is inspected
        contact.check_run(one)
    studies = contact.sweep([contact.contact_study(one, config) for one in loaded])
    make_folder(args.out.parent)
    write_whole(args.out, dump_json({"kind": SAMPLES, "readings": studies}))
    if args.figures is not None:
        save(args.figures, contact_figures.figures(studies), overwrite=True)
    print(contact.table(studies))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m results.tool", description="The paper's claims and our numbers.")
    verbs = parser.add_subparsers(required=True, metavar="page|study|ladder|theory|contact")
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
    three = verbs.add_parser("theory", help="the proposition on smooth maps and on Piecewise: numbers and figures")
    three.add_argument("--out", type=Path, default=Path("theory"), help="a folder for theory.json and the figures")
    three.add_argument("--sizes", type=int, default=0, help="how many grid sizes of each study; 0 is all")
    three.add_argument("--states", type=int, default=20_000, help="states on which errors are measured")
    three.set_defaults(run=proposition)
    four = verbs.add_parser("contact", help="what changes the supports of cube runs: numbers and figures")
    four.add_argument("runs", type=Path, nargs="+", help="folders of sparse runs")
    four.add_argument("--out", type=Path, default=Path("contact.json"), help="the JSON to write")
    four.add_argument("--figures", type=Path, help="a folder for the figures, PNG and PDF")
    four.add_argument("--frames", type=int, default=20_000, help="held-out frames, at most")
    four.add_argument("--seed", type=int, default=0, help="which frames, and the resampling")
    four.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    four.set_defaults(run=support)
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except UserError as error:
        print(f"results: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
