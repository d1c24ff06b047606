"""`lpwm paper theory`: the one-hot linearization of smooth maps, measured against its bounds."""

from dataclasses import dataclass

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError


@dataclass(frozen=True)
class Args:
    sizes: int = 0  # How many grid sizes of each system, from the coarsest; 0 is all (about 10⁵ cells).
    states: int = 20_000  # States on which errors are measured.
    horizon: int = 5  # Steps of the longer rollouts.
    seed: int = 0  # Which states and action sequences.
    json: bool = False  # Print the JSON instead of the table.


def run(args: Args) -> int:
    if args.sizes < 0 or args.sizes == 1:
        raise UserError(f"--sizes {args.sizes}: a slope needs at least two grids; 0 takes all.")

    from lpwm.core.json import dump_json  # slow to import: torch
    from lpwm.interpret.compare import columns
    from lpwm.theory import study

    config = study.StudyConfig(states=args.states, horizon=args.horizon, seed=args.seed)
    made = study.smooth(args.sizes, config)
    say(dump_json(made).rstrip() if args.json else columns(study.HEADS, [s.cells_of_table() for s in made.systems]))
    wrong = [sentence for s in made.systems for sentence in s.problems()]
    for sentence in wrong:
        tell(f"lpwm: {sentence}")
    return 1 if wrong else 0
