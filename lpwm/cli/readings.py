"""`lpwm interpret --what sparsity` and `--what contact`: readings that need no zones."""

from __future__ import annotations

import json as json_
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpwm.cli.collect import progress_bar, stoppable
from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.interpret import contact
from lpwm.interpret.codes import need_support
from lpwm.interpret.sparsity import arrange, sparsity, table
from lpwm.train import Loaded, load, pick_device

if TYPE_CHECKING:
    from lpwm.cli.interpret import Args

OF_ZONES = ("resolution", "visible", "hidden", "cell", "folds")


def run_reading(args: Args) -> int:
    _check(args)
    device = pick_device(args.device)
    loaded = [load(path, device=device) for path in args.runs]
    read = _sparsity if args.what == "sparsity" else _contact
    one, finish = read(args, loaded)
    name = digest(
        {
            "what": args.what,
            "frames": args.frames,
            "seed": args.seed,
            "runs": [[run.run_hash, run.step] for run in loaded],
        }
    )
    out = args.out or args.runs[0] / "interpret" / f"{args.what}-{name}.json"
    readings = read_each(args, loaded, one, out, lambda some: {"kind": "lpwm readings", "readings": some})
    content, text = finish(readings)
    keep(content, out)
    print(json_.dumps(content, allow_nan=False) if args.json else text)
    return 0


def read_each(
    args: Args,
    loaded: list[Loaded],
    read: Callable[[Loaded], dict[str, Any]],
    out: Path,
    content: Callable[[list[dict[str, Any]]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """One reading per run, with a line for each; the folders that will be needed are made first.

    After every run but the last, `content` of what there is goes to `out` with the names of those that are "missing",
    so that an interruption loses the run it falls in and no other.
    """
    for folder in (args.pictures, out.parent):
        if folder is not None:
            make_folder(folder)
    readings: list[dict[str, Any]] = []
    count = len(loaded)

    def kept() -> str:
        where = f": they are in {out}, and the same command reads the others" if readings else ""
        return f"{len(readings)} of {count} runs were read{where}."

    with stoppable(kept), progress_bar("runs", count) as progress:
        for i, run in enumerate(loaded, start=1):
            began = time.perf_counter()
            readings.append(read(run))
            if i < count:
                missing = [Path(one.path).name for one in loaded[i:]]
                _write(content(readings) | {"missing": missing}, out)
            spent = time.perf_counter() - began
            print(f"{i} of {count}: {Path(run.path).name}, {spent:.1f} s", file=sys.stderr, flush=True)
            progress(i)
    return readings


def known(out: Path) -> list[dict[str, Any]]:
    """The studies of an interrupted call that wrote this file."""
    try:
        before = json_.loads(out.read_text())
        return list(before["studies"]) if before["missing"] else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(content: dict[str, Any], out: Path) -> None:
    write_whole(out, json_.dumps(content, allow_nan=False) + "\n")


def keep(content: dict[str, Any], out: Path) -> None:
    _write(content, out)
    print(f"wrote {out}", file=sys.stderr)


def _check(args: Args) -> None:
    if len({p.resolve() for p in args.runs}) != len(args.runs):
        raise UserError("a run folder is given twice: name each once.")
    usual = {f.name: f.default for f in fields(args)}
    given = [name for name in OF_ZONES if getattr(args, name) != usual[name]]
    if given:
        raise UserError(f"--{given[0]} is about zones: leave it out with --what {args.what}.")
    if args.frames < 1:
        raise UserError("a reading needs at least 1 frame.")


Finish = Callable[[list[dict[str, Any]]], tuple[dict[str, Any], str]]
One = Callable[[Loaded], dict[str, Any]]


def _sparsity(args: Args, loaded: list[Loaded]) -> tuple[One, Finish]:
    if args.pictures is not None:
        raise UserError("--what sparsity makes a table and no pictures: leave --pictures out.")
    for run in loaded:  # before the first is read
        need_support(run)

    def finish(readings: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
        arranged = arrange(readings)
        content = {"kind": "lpwm readings", "readings": readings, "table": arranged}
        return content, table(arranged)

    return (lambda run: sparsity(run, frames=args.frames, seed=args.seed)), finish


def _contact(args: Args, loaded: list[Loaded]) -> tuple[One, Finish]:
    for run in loaded:
        need_support(run)
        contact.factors_of(run)
    config = contact.ContactConfig(frames=args.frames, seed=args.seed)

    def finish(readings: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
        ordered = contact.sweep(readings)
        if args.pictures is not None:
            from lpwm.report import contact as drawn

            for path in drawn.write(ordered, args.pictures):
                print(f"wrote {path}", file=sys.stderr)
        return {"kind": "lpwm readings", "readings": ordered}, contact.lines(ordered)

    return (lambda run: contact.contact_study(run, config)), finish
