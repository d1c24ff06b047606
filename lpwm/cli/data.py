"""`lpwm data info FILE` and `lpwm data convert FILE OUT`."""

from __future__ import annotations

import json as json_
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lpwm.cli.collect import progress_bar


@dataclass(frozen=True)
class Info:
    """Describe a data set, and what doing nothing and random actions score on it."""

    file: Annotated[Path, tyro.conf.Positional]
    """An HDF5 file, ours or stable-worldmodel's, a Lance table, or a folder of DINO-WM's."""
    json: bool = False
    """Print JSON."""
    pictures: Path | None = None
    """Also draw a contact sheet of frames here (.png)."""


@dataclass(frozen=True)
class Convert:
    """Write a data set in another form: HDF5 or Lance, with frames or without."""

    file: Annotated[Path, tyro.conf.Positional]
    """The data set: HDF5, ours or stable-worldmodel's, a .lance table, or a folder of DINO-WM's."""
    out: Annotated[Path, tyro.conf.Positional]
    """What to write: a Lance table if it ends in .lance, else HDF5. It appears when it is complete."""
    add_pixels: bool = False
    """Render the states."""
    remove_pixels: bool = False
    """Leave the frames out."""
    size: int | None = None
    """The side of the frames written; the world's own, or that of the stored ones, when not given."""
    overwrite: bool = False
    """Replace OUT."""


@dataclass(frozen=True)
class Args:
    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Info, tyro.conf.subcommand("info")] | Annotated[Convert, tyro.conf.subcommand("convert")]
    ]


def run(args: Args) -> int:
    return _info(args.command) if isinstance(args.command, Info) else _convert(args.command)


def _info(args: Info) -> int:
    from lpwm.data import describe, read
    from lpwm.data.info import contact_sheet

    info = describe(args.file)
    if args.pictures is not None:
        contact_sheet(read(args.file, verify=False), args.pictures)
    print(json_.dumps(info) if args.json else table(info))
    return 0


def table(info: dict[str, Any]) -> str:
    from lpwm.data.info import AHEAD, BUDGET

    world = info["world"]
    named = "unknown" if world is None else " ".join(f"{k}={v}" if k != "name" else v for k, v in world.items())
    length = info["length"]
    spread = f"{length['least']}" if length["least"] == length["most"] else f"{length['least']}–{length['most']}"
    rows = [
        ("world", named),
        ("policy", f"{info['policy'] or 'unknown'}, seed {'unknown' if info['seed'] is None else info['seed']}"),
        ("episodes", f"{info['episodes']} of {spread} frames, {info['steps']} steps"),
        ("pixels", "none" if info["pixels"] is None else "×".join(map(str, info["pixels"]))),
        ("on disk", f"{info['bytes'] / 1e6:.1f} MB"),
        ("digest", info["digest"]),
    ]
    if info["coverage"] is not None:
        rows.append(("coverage", f"{info['coverage']:.3f} of the cells where goals fall"))
    lines = [f"{name:<10}{value}" for name, value in rows]
    lines += ["", f"{'':<20}{'mean':>10}{'std':>10}{'min':>10}{'max':>10}"]
    for kind in ("action", "state"):
        for name, m in info[kind].items():
            cells = "".join(f"{m[c]:>10.4g}" for c in ("mean", "std", "min", "max"))
            lines.append(f"{kind + ' ' + name:<20}{cells}")
    if info["beside_public"] is not None:
        lines += ["", f"{'':<48}{'ours':>10}{'public':>10}{'ratio':>8}"]
        for row in info["beside_public"]:
            # Means near zero have no ratio worth printing.
            ratio = "" if row["name"].endswith("mean") else f"{row['ours'] / row['public']:>8.2f}"
            lines.append(f"{row['name']:<48}{row['ours']:>10.4g}{row['public']:>10.4g}{ratio}")
    if info["controls"] is not None:
        lines += ["", f"success in %, goals {AHEAD} steps ahead or anywhere, {BUDGET} raw steps:"]
        lines.append(f"{'':<28}{'latched':>10}{'terminal':>10}")
        for name, score in info["controls"].items():
            lines.append(f"{name:<28}{score['latched']:>10.1f}{score['terminal']:>10.1f}")
    return "\n".join(lines)


def _convert(args: Convert) -> int:
    from lpwm.core.files import size_of
    from lpwm.data import convert, read

    episodes = read(args.file, verify=False).episodes
    with progress_bar("episodes", episodes) as progress:
        digest = convert(
            args.file,
            args.out,
            add_pixels=args.add_pixels,
            remove_pixels=args.remove_pixels,
            size=args.size,
            overwrite=args.overwrite,
            progress=progress,
        )
    print(f"{args.out}: {size_of(args.out) / 1e6:.1f} MB, digest {digest}")
    return 0
