"""`lpwm interpret RUN…`: what the codes of runs say, and which part of them says so.

Zones are Piecewise's; --what sparsity takes sparse runs of any world, --what contact those of cube.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lpwm.core.errors import UserError

if TYPE_CHECKING:
    from lpwm.interpret.config import StudyConfig
    from lpwm.train import Loaded

OF_ZONES = ("resolution", "visible", "hidden", "cell", "folds")


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders, of Piecewise unless told by --what; sparse and dense ones are compared."""
    what: Literal["zones", "sparsity", "contact"] = "zones"
    """zones: supports in the arena and probes; sparsity: active units against the target, rung by width; contact:
    what changes a support on cube episodes."""
    resolution: int = 20
    """Cells a side of the grid of agent positions."""
    visible: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw the zones, however the run was trained."""
    hidden: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not draw them, however the run was trained."""
    cell: tuple[int, int] | None = None
    """Row and column of a reference cell, counted from 0 at the top left; without it, the middle of every zone."""
    frames: int = 3000
    """Held-out frames to probe, at most."""
    folds: int = 5
    """Folds of trajectories."""
    seed: int = 0
    """Which frames, and the resampling."""
    out: Path | None = None
    """The JSON to write; without it, interpret/HASH.json in the first run's folder, where lpwm report finds it."""
    pictures: Path | None = None
    """A folder for figures, PNG and PDF."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    json: bool = False
    """Print the JSON instead of the table."""


@dataclass(frozen=True)
class Task:
    """What --what does: the settings and the result of one run, the file of several, the text (and pictures)."""

    settings: Callable[[Loaded], Any]
    inspect: Callable[[Loaded], Any]
    content: Callable[[list[Any]], dict[str, Any]]
    finish: Callable[[list[Any]], str]


def run(args: Args) -> int:
    if not args.runs:
        raise UserError("there is nothing to inspect: give at least one run folder.")
    if len({p.resolve() for p in args.runs}) != len(args.runs):
        raise UserError("a run folder is given twice: name each once.")
    _check(args)
    from lpwm.core.files import write_whole  # slow to import from here on: torch
    from lpwm.core.json import dump_json
    from lpwm.train import load, pick_device

    device = pick_device(args.device)
    loaded = [load(path, device=device) for path in args.runs]
    task = {"zones": _zones, "sparsity": _sparsity, "contact": _contact}[args.what](args, loaded)
    out = args.out or args.runs[0] / "interpret" / _name(args, loaded)
    results = inspect_each(args, loaded, task, out)
    content = dump_json(task.content(results))
    write_whole(out, content)
    print(f"wrote {out}", file=sys.stderr)
    text = task.finish(results)
    print(content.rstrip() if args.json else text)
    return 0


def _check(args: Args) -> None:
    if args.what == "zones":
        study_config(args)
        return
    usual = {f.name: f.default for f in fields(args)}
    given = [name for name in OF_ZONES if getattr(args, name) != usual[name]]
    if given:
        raise UserError(f"--{given[0]} is about zones: leave it out with --what {args.what}.")
    if args.frames < 1:
        raise UserError("give at least 1 frame.")
    if args.what == "sparsity" and args.pictures is not None:
        raise UserError("--what sparsity makes a table and no pictures: leave --pictures out.")


def study_config(args: Args) -> StudyConfig:
    from lpwm.interpret.config import ProbeConfig, StudyConfig
    from lpwm.interpret.supports import check_cell

    if args.visible and args.hidden:
        raise UserError("zones are drawn or not: give --visible or --hidden, not both.")
    if args.cell is not None:
        check_cell(*args.cell, args.resolution)
    return StudyConfig(
        resolution=args.resolution,
        visible=True if args.visible else False if args.hidden else None,
        cells=() if args.cell is None else (args.cell,),
        frames=args.frames,
        probes=ProbeConfig(folds=args.folds, seed=args.seed),
        seed=args.seed,
    )


def _name(args: Args, loaded: list[Loaded]) -> str:
    from lpwm.core.config import digest, to_dict

    runs = [[one.run_hash, one.step] for one in loaded]
    if args.what == "zones":
        return f"{digest({'settings': to_dict(study_config(args)), 'runs': runs})}.json"
    return f"{args.what}-{digest({'what': args.what, 'frames': args.frames, 'seed': args.seed, 'runs': runs})}.json"


def inspect_each(args: Args, loaded: list[Loaded], task: Task, out: Path) -> list[Any]:
    """One result per run, with a line for each; the folders that will be needed are made first.

    After every run but the last, what there is goes to `out` with the names of those that are "missing", so that an
    interruption loses the run it falls in and no other, and the same command continues.
    """
    from lpwm.cli.collect import progress_bar, stoppable
    from lpwm.core.files import make_folder, write_whole
    from lpwm.core.json import dump_json

    for folder in (args.pictures, out.parent):
        if folder is not None:
            make_folder(folder)
    results: list[Any] = []
    before, count = known(out), len(loaded)

    def kept() -> str:
        where = f": they are in {out}, and the same command does the others" if results else ""
        return f"{len(results)} of {count} runs were inspected{where}."

    with stoppable(kept), progress_bar("runs", count) as progress:
        for i, one in enumerate(loaded, start=1):
            began = time.perf_counter()
            about = (one.run_hash, one.step, task.settings(one))
            same = (r for r in before if (r.run.hash, r.run.step, r.settings) == about)
            results.append(next(same, None) or task.inspect(one))
            if i < count:
                missing = [Path(other.path).name for other in loaded[i:]]
                write_whole(out, dump_json(task.content(results) | {"missing": missing}))
            spent = time.perf_counter() - began
            print(f"{i} of {count}: {Path(one.path).name}, {spent:.1f} s", file=sys.stderr, flush=True)
            progress(i)
    return results


def known(out: Path) -> list[Any]:
    """The results of an interrupted call that wrote this file."""
    from lpwm.core.json import read_json
    from lpwm.core.version import __version__
    from lpwm.interpret.results import results_of

    try:
        before = read_json(out)
        return [r for r in results_of(before, str(out)) if r.lpwm == __version__] if before.get("missing") else []
    except UserError:
        return []


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _drawn(args: Args, draw: Callable[[Path], list[Path]]) -> None:
    if args.pictures is not None:
        for path in draw(args.pictures):
            print(f"wrote {path}", file=sys.stderr)


def _zones(args: Args, loaded: list[Loaded]) -> Task:
    from dataclasses import replace

    from lpwm.interpret import compare, study
    from lpwm.interpret.compare import cell_lines, heading, table
    from lpwm.interpret.results import STUDIES
    from lpwm.interpret.supports import check_resolution, piecewise_of

    config = study_config(args)
    for one in loaded:  # before the first is inspected
        check_resolution(args.resolution, piecewise_of(one, config.visible).g)

    def ordered(results: list[Any]) -> list[Any]:
        return sorted(results, key=lambda s: not s.run.sparse)  # sparse first

    def content(results: list[Any]) -> dict[str, Any]:
        studies = ordered(results)
        return {"kind": STUDIES, "studies": studies, "comparison": compare(studies)}

    def finish(results: list[Any]) -> str:
        from lpwm.report import figures  # slow to import: matplotlib

        studies = ordered(results)
        _drawn(args, lambda folder: figures.save(folder, figures.of_studies(studies, config.cells)))
        text = f"{heading(studies[0])}\n{table(compare(studies), studies, _width())}"
        return text if args.cell is None else f"{text}\n\n{cell_lines(studies, args.cell)}"

    return Task(
        lambda one: replace(config, visible=piecewise_of(one, config.visible).visible),
        lambda one: study(one, config),
        content,
        finish,
    )


def _sparsity(args: Args, loaded: list[Loaded]) -> Task:
    from lpwm.interpret.codes import need_support
    from lpwm.interpret.results import SAMPLES, TABLE, SampleSettings
    from lpwm.interpret.sparsity import arrange, sparsity, table

    for one in loaded:
        need_support(one)
    return Task(
        lambda one: SampleSettings(args.frames, args.seed),
        lambda one: sparsity(one, frames=args.frames, seed=args.seed),
        lambda results: {"kind": SAMPLES, "readings": results, "table": {"kind": TABLE, "groups": arrange(results)}},
        lambda results: table(arrange(results), _width()),
    )


def _contact(args: Args, loaded: list[Loaded]) -> Task:
    from lpwm.interpret import contact
    from lpwm.interpret.codes import need_support
    from lpwm.interpret.config import ContactConfig
    from lpwm.interpret.results import SAMPLES

    for one in loaded:
        need_support(one)
        contact.factors_of(one)
    config = ContactConfig(frames=args.frames, seed=args.seed)

    def finish(results: list[Any]) -> str:
        from lpwm.report import figures  # slow to import: matplotlib

        _drawn(args, lambda folder: figures.save(folder, figures.of_contact(results)))
        return contact.table(results, _width())

    return Task(
        lambda one: config,
        lambda one: contact.contact_study(one, config),
        lambda results: {"kind": SAMPLES, "readings": contact.sweep(results)},
        finish,
    )
