"""`lpwm theory`: the one-hot linearization measured against its bounds, on smooth maps and on Piecewise."""

from dataclasses import dataclass
from pathlib import Path

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError


@dataclass(frozen=True)
class Args:
    out: Path = Path("theory")  # A folder for theory.json and the figures, PNG and PDF.
    sizes: int = 0  # How many grid sizes of each study, from the coarsest; 0 is all (about 10⁵ cells).
    states: int = 20_000  # States on which errors are measured.
    horizon: int = 5  # Steps of the longer rollouts.
    seed: int = 0  # Which states and action sequences.
    overwrite: bool = False  # Replace files that lpwm did not make.
    json: bool = False  # Print the JSON instead of the table.


def run(args: Args) -> int:
    if args.sizes < 0 or args.sizes == 1:
        raise UserError(f"--sizes {args.sizes}: a slope needs at least two grids; 0 takes all.")

    from lpwm.core.files import check_output, make_folder, write_whole  # slow to import: torch, matplotlib
    from lpwm.core.json import dump_json
    from lpwm.report import figures, theory

    config = theory.StudyConfig(states=args.states, horizon=args.horizon, seed=args.seed)
    path = args.out / "theory.json"
    check_output(path, args.overwrite)
    make_folder(args.out)
    study = theory.theory(args.sizes, config)
    text = dump_json(study)
    write_whole(path, text)
    for file in (path, *figures.save(args.out, figures.of_theory(study), overwrite=args.overwrite)):
        tell(f"wrote {file}")
    wrong = study.problems()
    say(text.rstrip() if args.json else "\n\n".join(study.tables()))
    for sentence in wrong:
        tell(f"lpwm: {sentence}")
    return 1 if wrong else 0
