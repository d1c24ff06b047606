"""`lpwm interpret RUN…`: what the codes of runs say, and which part of them says so.

Zones are Piecewise's; --what factors and imagination take any run, --what sparsity sparse ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lpwm.cli.terminal import say, tell, width
from lpwm.core.errors import UserError, require

if TYPE_CHECKING:
    from lpwm.interpret.config import StudyConfig
    from lpwm.train import Loaded

OF_ZONES = ("resolution", "visible", "hidden", "cell", "folds")


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders; sparse and dense ones of Piecewise are compared."""
    what: Literal["zones", "factors", "imagination", "sparsity"] | None = None
    """zones: supports in the arena and probes, on Piecewise; factors: linear probes of every state column, kept with
    the run, elsewhere; imagination: rollouts decoded into frames; sparsity: active units against the target, rung by
    width."""
    resolution: int = 20  # Cells a side of the grid of agent positions.
    visible: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # Draw the zones, however the run was trained.
    hidden: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # Do not draw them, however the run was trained.
    cell: tuple[int, int] | None = None
    """Row and column of a reference cell, counted from 0 at the top left; without it, the middle of every zone."""
    frames: int = 3000  # Held-out frames to probe, at most.
    folds: int = 5  # Folds of trajectories.
    seed: int = 0  # Which frames, and the resampling.
    out: Path | None = None
    """The JSON to write; without it, interpret/HASH.json in the first run's folder, where lpwm report finds it."""
    pictures: Path | None = None  # A folder for figures, PNG and PDF.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    overwrite: bool = False  # Replace files that lpwm did not make.
    json: bool = False  # Print the JSON instead of the table.


@dataclass(frozen=True, kw_only=True)
class Task:
    """What --what does: the settings and the result of one run; file, text, pictures and order of several."""

    settings: Callable[[Loaded], Any]
    inspect: Callable[[Loaded], Any]
    text: Callable[[list[Any]], str]
    content: Callable[[list[Any]], dict[str, Any]] = lambda results: {"kind": "lpwm readings", "readings": results}
    figures: Callable[[Any, list[Any]], Any] | None = None
    order: Callable[[Any], bool] = lambda result: False


def run(args: Args) -> int:
    if not args.runs:
        raise UserError("there is nothing to inspect: give at least one run folder.")
    if len({p.resolve() for p in args.runs}) != len(args.runs):
        raise UserError("a run folder is given twice: name each once.")
    _check(args)
    from lpwm.core.files import check_output, write_whole  # slow to import from here on: torch
    from lpwm.core.json import dump_json
    from lpwm.train import load, pick_device

    device = pick_device(args.device)
    loaded = [load(path, device=device) for path in args.runs]
    if args.what is None:
        args = replace(args, what="zones" if all(one.spec.name == "piecewise" for one in loaded) else "factors")
        _check(args)
    tasks = {"zones": _zones, "factors": _factors, "imagination": _imagination, "sparsity": _sparsity}
    task = tasks[args.what or "zones"](args, loaded)
    out = args.out or args.runs[0] / "interpret" / _name(args, loaded)
    check_output(out, args.overwrite)
    results = sorted(inspect_each(args, loaded, task, out), key=task.order)
    content = dump_json(task.content(results))
    write_whole(out, content)
    tell(f"wrote {out}")
    if args.pictures is not None and task.figures is not None:
        from lpwm.report import figures  # slow to import: matplotlib

        for path in figures.save(args.pictures, task.figures(figures, results), overwrite=args.overwrite):
            tell(f"wrote {path}")
    say(content.rstrip() if args.json else task.text(results))
    return 0


def _check(args: Args) -> None:
    if args.what in ("zones", None):
        study_config(args)
        return
    usual = {f.name: f.default for f in fields(args)}
    given = [name for name in OF_ZONES if getattr(args, name) != usual[name]]
    if given:
        raise UserError(f"--{given[0]} is about zones: leave it out with --what {args.what}.")
    require("--frames", args.frames, 1)
    if args.pictures is not None:
        raise UserError(f"--what {args.what} makes no pictures there: leave --pictures out.")


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
    """One result per run, with a line for each. After every run but the last, what there is goes to `out` with the
    names of those that are "missing": an interruption loses one run at most, and the same command continues."""
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
            tell(f"{i} of {count}: {Path(one.path).name}, {spent:.1f} s")
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


def _zones(args: Args, loaded: list[Loaded]) -> Task:
    from lpwm.interpret import compare, study
    from lpwm.interpret.compare import cell_lines, heading, table
    from lpwm.interpret.results import STUDIES
    from lpwm.interpret.supports import check_resolution, piecewise_of

    config = study_config(args)
    for one in loaded:  # before the first is inspected
        check_resolution(args.resolution, piecewise_of(one, config.visible).g)

    def content(studies: list[Any]) -> dict[str, Any]:
        return {"kind": STUDIES, "studies": studies, "comparison": compare(studies)}

    def text(studies: list[Any]) -> str:
        told = f"{heading(studies[0])}\n{table(compare(studies), studies, width())}"
        return told if args.cell is None else f"{told}\n\n{cell_lines(studies, args.cell)}"

    return Task(
        settings=lambda one: replace(config, visible=piecewise_of(one, config.visible).visible),
        inspect=lambda one: study(one, config),
        content=content,
        text=text,
        figures=lambda figures, studies: figures.of_studies(studies, config.cells),
        order=lambda study: not study.run.sparse,  # sparse first
    )


def _factors(args: Args, loaded: list[Loaded]) -> Task:
    from lpwm.interpret import FactorConfig, factor_study
    from lpwm.interpret.recorded import factor_table

    config = FactorConfig(frames=args.frames, seed=args.seed)
    return Task(
        settings=lambda one: config,
        inspect=lambda one: factor_study(one, config),
        text=lambda results: "\n\n".join(f"{r.run.name}\n{factor_table(r.scores, width())}" for r in results),
    )


def _imagination(args: Args, loaded: list[Loaded]) -> Task:
    from lpwm.interpret.config import DecoderConfig
    from lpwm.interpret.decode import imagination_study

    config = DecoderConfig(seed=args.seed)
    folder = args.runs[0] / "interpret" if args.out is None else args.out.parent
    return Task(
        settings=lambda one: config,
        inspect=lambda one: imagination_study(one, folder, config),
        text=lambda results: "\n\n".join(r.table() for r in results),
    )


def _sparsity(args: Args, loaded: list[Loaded]) -> Task:
    from lpwm.interpret.results import SAMPLES, TABLE, SampleSettings
    from lpwm.interpret.sparsity import arrange, sparsity, table
    from lpwm.interpret.supports import need_support

    for one in loaded:
        need_support(one)
    return Task(
        settings=lambda one: SampleSettings(args.frames, args.seed),
        inspect=lambda one: sparsity(one, frames=args.frames, seed=args.seed),
        content=lambda all: {"kind": SAMPLES, "readings": all, "table": {"kind": TABLE, "groups": arrange(all)}},
        text=lambda results: table(arrange(results), width()),
    )
