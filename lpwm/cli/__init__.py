"""The command line: parse, build, call. One file per verb, each with a frozen dataclass of arguments (tyro makes the
options from it) and a `run(args) -> int`. Verbs import torch inside their functions, so that help answers at once."""

import atexit
import gc
import importlib
import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import Any

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError, nearest
from lpwm.core.version import __version__


@dataclass(frozen=True)
class Verb:
    help: str
    module: str = ""  # has `Args` and `run`, and `parse` where the options depend on the first word
    common: tuple[str, ...] = ()  # the options that --help shows, dots for nested ones; empty: all of them
    parts: tuple[str, ...] = ()  # verbs of its own


_TRAIN = (
    *("data.world", "data.file", "model.latent", "model.predictor.rung", "model.predictor.history", "model.link"),
    *("objective.lam", "optim.lr", "train.steps", "train.batch", "train.seed"),
    *("out", "name", "resume", "device", "json"),
)
_EVAL = (
    *("runs", "preset", "goals", "episodes", "budgets", "horizon", "receding", "solver", "controls"),
    *("checkpoint", "out", "gif", "device", "json"),
)
_SWEEP = ("grid", "out", "dry_run", "engine", "workers", "cpus", "gpus", "device", "retry_failed", "json")

# In the order in which a newcomer meets them.
VERBS = {
    "demo": Verb("Train, plan with and inspect two small world models, in minutes", "demo"),
    "collect": Verb("Collect episodes of a world into a file", "collect"),
    "data": Verb("Describe a data set, convert it, or suggest how to train on it", "data"),
    "train": Verb("Train a recipe, or continue a run", "train", _TRAIN),
    "runs": Verb("List run folders, or compare some: step, error, success", "runs"),
    "eval": Verb("Plan with trained models, next to the controls", "eval", _EVAL),
    "interpret": Verb("Inspect the codes: supports, zones, probes", "interpret"),
    "report": Verb("Write one page about any set of runs", "report"),
    "sweep": Verb("Run a grid of trainings, here, on Ray or on Slurm; and its status", "sweep", _SWEEP),
    "recipes": Verb("List the named runs with their predicted cost", "recipes"),
    "doctor": Verb("Check what is installed, and which worlds and devices work", "doctor"),
    "paper": Verb("Tables of the paper: params, theory", parts=("params", "theory")),
}
PARTS = {
    "params": Verb("The parameter table of the predictor ladder", "params"),
    "theory": Verb("The paper's proposition, measured: error against cells, and bounds", "theory"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    rows = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items())
    title = f"lpwm {__version__}: train, plan with and interpret sparse world models"
    plugin = "--plugin MODULE, with any verb: import it first, for its worlds and predictors"
    return f"{title}\n\nusage: lpwm VERB …   (lpwm VERB --help)\n\n{rows}\n\n{plugin}"


def take_plugins(argv: list[str]) -> list[str]:
    """Load what --plugin names; the arguments without it."""
    from lpwm.core.plugins import give_words, load_plugin

    give_words(argv)
    rest, words = [], iter(argv)
    for word in words:
        name, _, value = word.partition("=")
        if name != "--plugin":
            rest.append(word)
            continue
        value = value or next(words, "")
        if not value:
            raise UserError("--plugin needs the name of a module.")
        load_plugin(value)
    return rest


def call(argv: list[str]) -> int:
    for word in argv:
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # how Python keeps bytes that are no text
            raise UserError(f"{word} is not UTF-8, which libraries that open it need: rename it.")
    argv = take_plugins(argv)
    if not argv or argv[0] in ("-h", "--help", "--help-all", "help"):
        say(usage())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version", "version"):
        say(f"lpwm {__version__}")
        return 0
    return _call(argv[0], [_option(word) for word in argv[1:]], VERBS | PARTS, "lpwm")


def _option(word: str) -> str:
    """An option under its name of today."""
    from lpwm.core.config import RENAMED_OPTIONS

    name, equals, value = word.partition("=")
    new = RENAMED_OPTIONS.get(name.removeprefix("--").replace("-", "_"))
    return f"--{new}{equals}{value}" if new and name.startswith("--") else word


def _call(name: str, rest: list[str], verbs: dict[str, Verb], prog: str) -> int:
    if name not in verbs:
        raise UserError(f"unknown verb {name!r}: {nearest(name, [v for v in verbs if v in VERBS] or verbs)}.")
    verb, prog = verbs[name], f"{prog} {name}"
    if verb.parts:
        parts = {part: PARTS[part] for part in verb.parts}
        if not rest or rest[0] in ("-h", "--help", "--help-all"):
            from lpwm.cli.help import commands

            say(commands({part: v.help for part, v in parts.items()}, prog, verb.help))
            return 0 if rest else 2
        return _call(rest[0], rest[1:], parts, prog)
    module = importlib.import_module(f"lpwm.cli.{verb.module}")
    if {"-h", "--help", "--help-all"} & set(rest):
        return _help(module, verb, rest, prog)
    from lpwm.core.plugins import load_installed

    load_installed()
    if hasattr(module, "parse"):
        return int(module.run(module.parse(rest)) or 0)
    from lpwm.cli.help import parse_args

    return int(module.run(parse_args(module.Args, rest, prog)) or 0)


def _help(module: Any, verb: Verb, rest: list[str], prog: str) -> int:
    from lpwm.cli.help import show

    words = [w for w in rest if not w.startswith("-")]
    plain = module.Args() if verb.common else module.Args  # which may have fields without a default
    default, prog = module.defaults(words, prog) if hasattr(module, "defaults") else (plain, prog)
    every = "--help-all" in rest or not isinstance(default, module.Args)
    say(show(default, () if every else verb.common, prog, verb.help))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done; 2 the user can fix it (one sentence on stderr); 130 interrupted."""
    if argv is None:  # an error of the disk in a thread of TensorBoard reaches the main one too
        atexit.register(gc.freeze)  # what was imported need not be searched for garbage at the end, for 0.2 s
        threading.excepthook = lambda e: None if isinstance(e.exc_value, OSError) else threading.__excepthook__(e)
    try:
        return call(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        tell(f"lpwm: {error}")
        return 2
    except KeyboardInterrupt:
        tell("lpwm: interrupted.")
        return 130
    except BrokenPipeError:  # `lpwm … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (MemoryError, RuntimeError) as error:  # what no prediction saw coming; pathlib's word for a link to itself
        loop = str(error).startswith("Symlink loop")
        if isinstance(error, RuntimeError) and not loop and not re.search("allocate memory|Storage size", str(error)):
            raise
        tell(f"lpwm: {error}: remove it." if loop else "lpwm: that needs more memory than there is: give less.")
        return 2
    except OSError as error:
        where = f"{str(error.filename)[:80]}: " if error.filename else ""
        tell(f"lpwm: {where}{(error.strerror or str(error)).lower()}; give another file or folder.")
        return 2
