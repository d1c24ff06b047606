"""`lpwm interpret RUN…`: what the codes of runs say, and which part of them says so.

Zones are Piecewise's; --what sparsity reads sparse runs of any world, --what contact those of cube.
"""

from __future__ import annotations

import json as json_
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lpwm.cli.readings import keep, known, read_each, run_reading
from lpwm.core.config import digest, to_dict
from lpwm.core.errors import UserError
from lpwm.core.version import __version__
from lpwm.interpret import ProbeConfig, StudyConfig, compare, study
from lpwm.interpret.supports import check_cell, check_resolution, piecewise_of
from lpwm.interpret.table import table
from lpwm.train import Loaded, load, pick_device


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders, of Piecewise unless told by --what; sparse and dense ones stand side by side."""
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


def settings(args: Args) -> StudyConfig:
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


def run(args: Args) -> int:
    if not args.runs:
        raise UserError("there is nothing to read: give at least one run folder.")
    if args.what != "zones":
        return run_reading(args)
    config = settings(args)
    device = pick_device(args.device)
    if len({p.resolve() for p in args.runs}) != len(args.runs):
        raise UserError("a run folder is given twice: name each once.")
    loaded = [load(path, device=device) for path in args.runs]
    for one in loaded:  # before the first is read
        check_resolution(args.resolution, piecewise_of(one, config.visible).g)
    out = args.out or args.runs[0] / "interpret" / f"{_name(loaded, config)}.json"
    before = {_about(s["run"]["hash"], s["run"]["step"], s["settings"], s["lpwm"]): s for s in known(out)}

    def read(one: Loaded) -> dict[str, Any]:
        drawn = {"visible": piecewise_of(one, config.visible).visible}
        name = _about(one.run_hash, one.step, to_dict(config) | drawn, __version__)
        return before[name] if name in before else study(one, config)

    content = _content(read_each(args, loaded, read, out, _content))
    keep(content, out)
    studies, compared = content["studies"], content["comparison"]
    if args.pictures is not None:
        from lpwm.interpret.figures import draw  # slow to import: matplotlib

        for path in draw(studies, args.pictures, config.cells):
            print(f"wrote {path}", file=sys.stderr)
    if args.json:
        print(json_.dumps(content, allow_nan=False))
        return 0
    print(heading(studies[0]))
    print(table(compared, studies, shutil.get_terminal_size((120, 24)).columns))
    if args.cell is not None:
        print("\n" + cell_lines(studies, args.cell))
    return 0


def _content(studies: list[dict[str, Any]]) -> dict[str, Any]:
    """Sparse beside dense, in this order."""
    ordered = sorted(studies, key=lambda s: not s["run"]["sparse"])
    return {"kind": "lpwm interpretations", "studies": ordered, "comparison": compare(ordered)}


def _about(*parts: Any) -> str:
    """All that a study depends on, as a name."""
    return json_.dumps(parts, sort_keys=True)


def _name(loaded: list[Loaded], config: StudyConfig) -> str:
    return digest({"settings": to_dict(config), "runs": [[one.run_hash, one.step] for one in loaded]})


def heading(first: dict[str, Any]) -> str:
    world, probes = first["world"]["options"], first["probes"]
    zones = "visible" if world["visible"] else "hidden"
    if world["visible"] != first["world"]["trained_visible"]:
        zones += " (not as in training)"
    return (
        f"piecewise {world['g']}×{world['g']}, zones {zones}; {first['grid']['resolution']}² cells; "
        f"{probes['frames']} held-out frames of {len(probes['trajectories'])} trajectories; "
        f"commonest zone {100 * probes['majority']:.1f} %"
    )


def cell_lines(studies: list[dict[str, Any]], cell: tuple[int, int]) -> str:
    """The mean Jaccard index of one reference cell with the cells of every zone."""
    from lpwm.interpret.figures import jaccard_map

    lines = [f"mean Jaccard index of cell {cell[0]} {cell[1]} with the cells of zone"]
    for one in studies:
        values, zones = jaccard_map(one, *cell), one["grid"]["zones"]
        names = sorted({z for row in zones for z in row})
        own = zones[cell[0]][cell[1]]
        means = [
            f"{k}{' (its own)' if k == own else ''} {values[[[z == k for z in row] for row in zones]].mean():.2f}"
            for k in names
        ]
        lines.append(f"  {one['run']['name']}: " + ", ".join(means))
    return "\n".join(lines)
