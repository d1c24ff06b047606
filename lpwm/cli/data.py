"""`lpwm data info FILE`, `lpwm data convert FILE OUT` and `lpwm data suggest FILE`."""

import json as json_
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lpwm.cli.collect import progress_bar
from lpwm.cli.terminal import say

Camera = Annotated[str | None, tyro.conf.arg(metavar="NAME|observation.images.NAME")]


@dataclass(frozen=True)
class Info:
    """Describe a data set, and what doing nothing and random actions score on it."""

    file: Annotated[Path, tyro.conf.Positional]
    """HDF5, ours or stable-worldmodel's, a Lance table, a folder of DINO-WM's, LeRobot's or videos, or owner/name."""
    camera: Camera = None  # Whose frames, of a LeRobot data set with several.
    json: bool = False  # Print JSON.
    pictures: Path | None = None  # Also draw a contact sheet of frames here (.png).
    overwrite: bool = False  # Replace a picture that lpwm did not make.


@dataclass(frozen=True)
class Convert:
    """Write a data set in another form: HDF5, Lance, LeRobot's; with frames or not."""

    file: Annotated[Path, tyro.conf.Positional]
    """The data set: HDF5, a .lance table, a folder of DINO-WM's, LeRobot's or videos with tables, or owner/name."""
    out: Annotated[Path, tyro.conf.Positional]
    """What to write: a Lance table if it ends in .lance, else HDF5, or LeRobot's. It appears when complete."""
    add_pixels: bool = False  # Render the states.
    remove_pixels: bool = False  # Leave the frames out.
    size: int | None = None
    """The side of the frames written; the world's own, or that of the stored ones, when not given."""
    camera: Camera = None  # Whose frames, of a LeRobot data set with several.
    lerobot: Literal["h264", "av1", "images"] | None = None
    """Write a LeRobot data set (v3.0), with frames in mp4 (H.264, AV1) or as pictures."""
    fps: float | None = None  # Its frames per second; those of the source, or 10, when not given.
    overwrite: bool = False  # Replace OUT.


@dataclass(frozen=True)
class Suggest:
    """Propose how to train on a data set, with the reasons, and warn of what misleads."""

    file: Annotated[Path, tyro.conf.Positional]
    """HDF5, a .lance table, a folder of DINO-WM's, LeRobot's or videos with tables, or owner/name."""
    camera: Camera = None  # Whose frames, of a LeRobot data set with several.
    json: bool = False  # Print JSON.


@dataclass(frozen=True)
class Args:
    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Convert, tyro.conf.subcommand("convert")]
        | Annotated[Suggest, tyro.conf.subcommand("suggest")]
    ]


COMMANDS = {"info": Info, "convert": Convert, "suggest": Suggest}


def defaults(words: list[str], prog: str) -> tuple[Any, str]:
    """The options of a command, for help; all commands where none is named."""
    named = words and words[0] in COMMANDS
    return (COMMANDS[words[0]], f"{prog} {words[0]}") if named else (COMMANDS, prog)


def run(args: Args) -> int:
    if isinstance(args.command, Info):
        return _info(args.command)
    return _convert(args.command) if isinstance(args.command, Convert) else _suggest(args.command)


def _info(args: Info) -> int:
    from lpwm.data import describe, read
    from lpwm.data.info import contact_sheet

    info = describe(args.file, camera=args.camera)
    if args.pictures is not None:
        contact_sheet(read(args.file, verify=False, camera=args.camera), args.pictures, args.overwrite)
    say(json_.dumps(info) if args.json else table(info))
    return 0


def table(info: dict[str, Any]) -> str:
    from lpwm.data.info import AHEAD, BUDGET

    world = info["world"]
    named = "unknown" if world is None else " ".join(f"{k}={v}" if k != "name" else v for k, v in world.items())
    spread = "–".join(dict.fromkeys(str(info["length"][end]) for end in ("least", "most")))
    rows = [
        ("world", named),
        ("policy", f"{info['policy'] or 'unknown'}, seed {'unknown' if info['seed'] is None else info['seed']}"),
        ("episodes", f"{info['episodes']} of {spread} frames, {info['steps']} steps"),
        ("pixels", "none" if info["pixels"] is None else "×".join(map(str, info["pixels"]))),
        ("on disk", "on the Hub" if info["bytes"] is None else f"{info['bytes'] / 1e6:.1f} MB"),
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
    if info["controls"] is not None:
        lines += ["", f"success in %, goals {AHEAD} steps ahead or anywhere, {BUDGET} raw steps:"]
        lines.append(f"{'':<28}{'reached':>10}{'at the end':>12}")
        for name, score in info["controls"].items():
            lines.append(f"{name:<28}{score['latched']:>10.1f}{score['terminal']:>12.1f}")
    return "\n".join(lines)


def _convert(args: Convert) -> int:
    from lpwm.core.files import size_of
    from lpwm.data import convert, read

    episodes = read(args.file, verify=False, camera=args.camera).episodes
    with progress_bar("episodes", episodes) as progress:
        options = {name: value for name, value in vars(args).items() if name not in ("file", "out")}
        digest = convert(args.file, args.out, **options, progress=progress)
    say(f"{args.out}: {size_of(args.out) / 1e6:.1f} MB, digest {digest}")
    return 0


def _suggest(args: Suggest) -> int:
    from lpwm.data import read
    from lpwm.data.suggest import suggest

    made = suggest(read(args.file, camera=args.camera), str(args.file))
    if args.json:
        say(json_.dumps(made.to_json(), ensure_ascii=False))
        return 0
    for choice in made.choices:
        say(f"{choice.field:<26}{choice.value!s:<10}{choice.why}")
    for warning in made.warnings:
        say(f"\nwarning: {warning}")
    say(f"\n{made.command}" + (f" --data.camera {args.camera}" if args.camera else ""))
    return 0
