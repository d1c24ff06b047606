"""Frames of a few planned episodes, for a page to play: what the camera saw, the goal, and what the model imagined.

What was imagined is the forecast of the plan in force: from the last frame seen before it, under the blocks that were
executed, decoded (see `decode`). Pictures are sheets: a row an episode, a column a step or a block.

Legend: B episodes, T raw steps, K blocks, C context frames, R executed blocks, D latent width, A action block.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import dump_json, fields_json, from_json, read_json
from lpwm.data.normalize import to_blocks
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.results import Evaluation, WorldName
from lpwm.interpret.config import DecoderConfig
from lpwm.interpret.decode import Decoder, decoder_of, sheet
from lpwm.interpret.results import rounded
from lpwm.train import Loaded, Run, load

KIND, FILE = "lpwm episode frames", "frames.json"
SIDE, COLUMNS, CELLS = 112, 30, 4  # pixels of a frame; about so many steps of an episode; cells of an evaluation


@dataclass(frozen=True)
class MethodFrames:
    name: str
    control: bool
    seed: int | str
    frameskip: int
    camera: str  # file of a sheet: a column per entry of `steps`
    imagined: str | None  # file of a sheet: a column per block, the start first
    distance: tuple[tuple[float, ...], ...]  # to the goal, after every raw step, in the world's unit
    success: tuple[str, ...]  # one character a raw step
    latent: tuple[tuple[float, ...], ...] | None  # distance of every frame seen, block by block
    predicted: tuple[tuple[float, ...], ...] | None  # the same as the plan in force had it, from block 1 on


@dataclass(frozen=True)
class CellFrames:
    goals: str
    horizon: int
    receding: int
    ids: tuple[str, ...]
    steps: tuple[int, ...]  # raw steps of the camera's columns
    goal: str  # file of a sheet of one column
    methods: tuple[MethodFrames, ...]


@dataclass(frozen=True)
class EpisodeFrames:
    """frames.json, next to the sheets it names."""

    world: WorldName
    cells: tuple[CellFrames, ...]
    kind: str = KIND
    version: int = 1

    def to_json(self) -> dict[str, Any]:
        return fields_json(self)

    @classmethod
    def read(cls, folder: Path) -> "EpisodeFrames":
        made = from_json(cls, read_json(folder / FILE, kind=KIND), str(folder / FILE))
        if made.version != 1:
            raise UserError(f"{folder / FILE} is of version {made.version}, and this lpwm reads 1: update lpwm.")
        return made


def folder_of(evaluation: Path) -> Path:
    """Where the frames of an evaluation's JSON lie."""
    return evaluation.with_name(f"{evaluation.stem}-frames")


def write_frames(
    result: Evaluation, out: Path, count: int, *, device: str | torch.device = "cpu", checkpoint: str = "latest"
) -> Path | None:
    """Frames of the first `count` episodes of an evaluation that was just run, next to its JSON; None for no episodes.
    Of each method the first training and planner seed. A decoder is fitted to each model whose data are still there."""
    if count < 1 or result.played is None:
        return None
    folder, models = folder_of(out), _models(result, device, checkpoint)
    make_folder(folder)
    near = sorted(range(len(result.cells)), key=lambda i: abs(result.cells[i].horizon - 5))[:CELLS]
    cells = tuple(_cell(result, i, count, models, folder) for i in sorted(near))
    write_whole(folder / FILE, dump_json(EpisodeFrames(result.world, cells)))
    return folder


def _models(result: Evaluation, device: str | torch.device, checkpoint: str) -> dict[str, tuple[Loaded, Decoder]]:
    """The first run of each method with a decoder; left out where its data are gone."""
    out: dict[str, tuple[Loaded, Decoder]] = {}
    for run in result.runs:
        if run.method in out or run.vote is not None or not run.path:
            continue
        try:
            loaded, config = load(run.path, device, checkpoint), DecoderConfig()
            out[run.method] = loaded, decoder_of(loaded, Run.open(loaded.path), config)
        except UserError:
            continue
    return out


def _cell(
    result: Evaluation, index: int, count: int, models: Mapping[str, tuple[Loaded, Decoder]], folder: Path
) -> CellFrames:
    cell, world, episodes = result.cells[index], result.played.world, result.played.sets[result.cells[index].goals]
    rows = [row for row in cell.rows if row.name != "do nothing"]
    records: list[Record] = [result.played.records[index][row.name][0][0] for row in rows]
    stem, count = f"{cell.goals}-H{cell.horizon}-R{cell.receding}", min(count, len(episodes))
    steps = shown_steps(records[0].steps, max(record.frameskip for record in records))
    goal = world.render(episodes.goal_BS[:count], SIDE)
    write_whole(folder / f"{stem}-goal.webp", sheet(goal[:, None]))
    methods = []
    for number, (row, record) in enumerate(zip(rows, records, strict=True)):
        states_BCS = torch.from_numpy(record.states_BTS[:count][:, list(steps)])
        camera = world.render(states_BCS.flatten(0, 1), SIDE).unflatten(0, (count, len(steps)))
        write_whole(folder / f"{stem}-{number}.webp", sheet(camera))
        imagined = None
        if row.name in models and not row.control:
            imagined = f"{stem}-{number}-imagined.webp"
            drawn = _imagined(*models[row.name], world, record, count, cell.receding, result.settings.context)
            write_whole(folder / imagined, sheet(drawn))
        methods.append(
            MethodFrames(
                row.name,
                row.control,
                row.seeds[0],
                record.frameskip,
                f"{stem}-{number}.webp",
                imagined,
                rounded(record.distance_BT[:count], 3),
                tuple("".join("1" if s else "0" for s in line) for line in record.success_BT[:count]),
                _trace(record, "latent", count),
                _trace(record, "predicted", count),
            )
        )
    place = (cell.goals, cell.horizon, cell.receding)
    return CellFrames(*place, tuple(episodes.ids[:count]), steps, f"{stem}-goal.webp", tuple(methods))


def _trace(record: Record, name: str, count: int) -> Any:
    values = record.traces.get(name)
    return None if values is None else rounded(values[:count], 5)


def shown_steps(steps: int, frameskip: int) -> tuple[int, ...]:
    """Evenly spaced raw steps, and the ends of blocks while those are few."""
    every = {*range(0, steps + 1, -(-steps // COLUMNS)), steps}
    return tuple(sorted(every | set(range(0, steps + 1, frameskip)) if steps // frameskip <= COLUMNS else every))


@torch.no_grad()
def forecasts(model: Any, z_BKD: Tensor, blocks_BKA: Tensor, receding: int, context: int) -> Tensor:
    """What each plan in force had the model expect: codes (B, K, D) after blocks 1 to K, from frames 0 to K."""
    out = []
    for p in range(0, blocks_BKA.shape[1], receding):
        since = max(0, p + 1 - context)
        past = blocks_BKA[:, since:p] if p > since else None
        out.append(model.rollout(z_BKD[:, since : p + 1], blocks_BKA[:, None, p : p + receding], past)[:, 0])
    return torch.cat(out, 1)


@torch.no_grad()
def _imagined(
    loaded: Loaded, decoder: Decoder, world: Any, record: Record, count: int, receding: int, context: int
) -> Tensor:
    """uint8 (B, 1 + K, 3, s, s): the start as its code decodes, then the forecasts."""
    device, skip = next(loaded.model.parameters()).device, record.frameskip
    whole = record.steps // skip
    states = torch.from_numpy(record.states_BTS[:count, : whole * skip + 1 : skip]).to(device)
    z = loaded.model.encode(world.render(states.flatten(0, 1), loaded.image)).unflatten(0, states.shape[:2])
    raw = torch.from_numpy(record.actions_BTA[:count, : whole * skip]).to(device)
    blocks = to_blocks(loaded.stats.normalize(raw), skip)
    codes = forecasts(loaded.model, z, blocks, receding, context or loaded.model.history)
    return (decoder(torch.cat((z[:, :1], codes), 1)) * 255).round().to(torch.uint8)
