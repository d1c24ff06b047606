"""The command line: parse, build, call.

One file per verb, each with a frozen dataclass of arguments (tyro makes the options from it) and a
`run(args) -> int`. A verb is imported only when it is called, so `lpwm --help` is instant.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass

from lpwm.core.errors import UserError, nearest
from lpwm.core.version import __version__


@dataclass(frozen=True)
class Verb:
    module: str  # has `Args` and `run`
    help: str


# In the order in which a newcomer meets them.
VERBS = {
    "demo": Verb("lpwm.cli.demo", "Two small world models, planned with and read, on one page, in minutes"),
    "recipes": Verb("lpwm.cli.recipes", "The named runs, with their predicted cost"),
    "collect": Verb("lpwm.cli.collect", "Collect episodes of a world into a file"),
    "data": Verb("lpwm.cli.data", "Look into a data set, or convert it"),
    "train": Verb("lpwm.cli.train", "Train a recipe, or continue a run"),
    "eval": Verb("lpwm.cli.eval", "Plan with trained models, beside the controls"),
    "sweep": Verb("lpwm.cli.sweep", "A grid of runs, on this machine, Ray or Slurm; and where it stands"),
    "interpret": Verb("lpwm.cli.interpret", "Read the codes: supports, zones, probes"),
    "theory": Verb("lpwm.cli.theory", "The paper's proposition, measured: error against cells, and its bounds"),
    "report": Verb("lpwm.cli.report", "One page about any set of runs"),
    "params": Verb("lpwm.cli.params", "The parameter table of the predictor ladder"),
    "doctor": Verb("lpwm.cli.doctor", "What is installed, which worlds and devices work, how to mend the rest"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    rows = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items())
    title = f"lpwm {__version__}: train, plan with and read sparse world models"
    return f"{title}\n\nusage: lpwm VERB …   (lpwm VERB --help)\n\n{rows}"


def call(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version", "version"):
        print(f"lpwm {__version__}")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in VERBS:
        raise UserError(f"unknown verb {name!r}: {nearest(name, VERBS)}.")
    import tyro

    verb = importlib.import_module(VERBS[name].module)
    if hasattr(verb, "parse"):  # a verb whose options depend on its first word
        return int(verb.run(verb.parse(rest)) or 0)
    args = tyro.cli(verb.Args, args=rest, prog=f"lpwm {name}", description=VERBS[name].help)
    return int(verb.run(args) or 0)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done as asked; 2 the user can mend it (one sentence on stderr); 130 interrupted."""
    try:
        return call(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"lpwm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lpwm: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `lpwm … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"lpwm: {error.strerror or error}{where}.", file=sys.stderr)
        return 2
