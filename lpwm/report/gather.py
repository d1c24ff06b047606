"""What a report is made of: run folders, and what eval and interpret wrote about them, typed."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.files import read_bytes
from lpwm.core.json import read_json
from lpwm.core.provenance import Record
from lpwm.evaluate.results import KIND as EVALUATION
from lpwm.evaluate.results import Cell, EvalConfig, Evaluation, WorldName
from lpwm.interpret import results as codes
from lpwm.interpret.decode import Imagination
from lpwm.interpret.episode_frames import FILE as FRAMES
from lpwm.interpret.episode_frames import CellFrames, EpisodeFrames, folder_of
from lpwm.interpret.recorded import Recorded
from lpwm.interpret.results import FactorStudy, Result, Sparsity, Study, WorldInfo
from lpwm.report.play import first_of_each
from lpwm.train import parse_options, read_record
from lpwm.train.log import LOG, read_log
from lpwm.train.run_config import RunRecord, method_digest

POINTS = 400  # of a curve: more is not seen
ROOM = 1_600_000  # bytes of frames in base64, of a page of 6 MB
R = TypeVar("R", bound=Result)
File = tuple[float, Path, dict[str, Any]]  # time, place, content


def significant(value: float | None, digits: int = 5) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class Log:
    """The records of a run's log.jsonl."""

    records: tuple[Record, ...] = ()

    def of(self, kind: str) -> list[Record]:
        return [r for r in self.records if r.kind == kind]

    def series(self, name: str) -> tuple[list[int], list[float | None]]:
        """(steps, values) of one logged number, thinned evenly to POINTS, the last one kept."""
        kept = [(r.step, significant(r.number(name))) for r in self.of("train") if name in r.values]
        if len(kept) > POINTS:
            kept = [*kept[: -1 : math.ceil(len(kept) / POINTS)], kept[-1]]
        return [s for s, _ in kept], [v for _, v in kept]

    def last(self, name: str) -> float | None:
        train = self.of("train")
        return train[-1].number(name) if train else None

    def held_out(self, name: str) -> Sequence[float]:
        """The last held-out values, by depth."""
        held = self.of("val")
        return held[-1].by_depth(name) if held else ()

    def messages(self) -> list[str]:
        return [f"step {r.step}: {r.message}" for r in self.of("event") if r.message]


@dataclass(frozen=True)
class RunFile(RunRecord):
    """run.json and the log of a run folder."""

    log: Log = field(default_factory=Log)

    @classmethod
    def read(cls, folder: Path) -> "RunFile":
        records = read_log(folder) if (folder / LOG).exists() else []
        return cls(**vars(read_record(folder)), log=Log(tuple(records)))

    @property
    def world(self) -> WorldInfo:
        return WorldInfo(self.config.data.world, parse_options(self.config.data.options))

    @property
    def sparse(self) -> bool:
        return self.config.model.sparse

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def key(self) -> str:
        """Runs that differ in their training seed alone share it."""
        return f"{self.name}{self.start.label if self.start else ''} {method_digest(self.config)[:4]}"

    @property
    def step(self) -> int:
        return max((r.step for r in self.log.of("train")), default=0)

    @property
    def error(self) -> float | None:
        """Held-out, relative, one block ahead."""
        return next(iter(self.log.held_out("error_depth")), None)

    @property
    def copy_error(self) -> float | None:
        return next(iter(self.log.held_out("copy_error_depth")), None)


@dataclass(frozen=True)
class Shown:
    """Frames of a cell's episodes; `sheets` has its pictures by name, as WebP in base64."""

    world: WorldName
    cell: CellFrames
    sheets: Mapping[str, str]
    evaluation: int = 1  # counted from 1


@dataclass(frozen=True)
class CellView:
    """A cell of an evaluation, with what a table of it needs."""

    evaluation: int  # counted from 0
    cell: Cell
    settings: EvalConfig

    @property
    def place(self) -> tuple[str, int, int]:
        return self.cell.goals, self.cell.horizon, self.cell.receding

    @property
    def sweep(self) -> bool:
        return len(self.settings.horizons) > 2

    @property
    def warm(self) -> bool:
        return self.settings.warm and self.cell.receding < self.cell.horizon


def cells(evaluations: Sequence[Evaluation]) -> list[CellView]:
    """Every cell of every evaluation, image goals left out (no state to test)."""
    every = [CellView(i, cell, one.settings) for i, one in enumerate(evaluations) for cell in one.cells]
    return [view for view in every if view.cell.goals != "image"]


def headline(every: Sequence[CellView]) -> list[CellView]:
    """The cells to show at once: of a sweep over horizons only the one nearest to the paper's 5, R = 1 and R = H."""
    shown = [c for c in every if not c.sweep]
    swept = [c for c in every if c.sweep]
    near = min((c.cell.horizon for c in swept), key=lambda h: abs(h - 5), default=0)
    for one in swept:
        if one.cell.horizon == near and one.place not in {c.place for c in shown}:
            shown.append(one)
    return sorted(shown, key=lambda c: (c.cell.goals != "random", c.evaluation))  # random goals judge (§5)


@dataclass(frozen=True)
class Gathered:
    """Everything known about some runs. `notes`: what is there and left out, in sentences."""

    runs: Sequence[RunFile]
    evaluations: Sequence[Evaluation] = ()
    studies: Sequence[Study] = ()
    episodes: Sequence[Shown] = ()
    imagination: Sequence[Imagination] = ()
    strips: Mapping[str, str] = field(default_factory=dict)  # pictures of imagination, as those of `Shown`
    sparsity: Sequence[Sparsity] = ()
    factors: Sequence[FactorStudy] = ()
    recorded: Sequence[Recorded] = ()
    play: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # by number of the run: see report/play.py
    notes: Sequence[str] = ()


def gather(folders: Sequence[str | Path], also: Sequence[str | Path] = ()) -> Gathered:
    """All that is known about these runs: their logs, and every evaluation and study of them alone. also: further files
    that `lpwm eval` or `lpwm interpret` wrote."""
    paths = [Path(f) for f in folders]
    if not paths:
        raise UserError("which runs? lpwm report RUN…, folders that lpwm train made.")
    given = {p.resolve() for p in paths}
    if len(given) != len(paths):
        raise UserError("a run folder is given twice: name each once.")
    more = [_read(Path(f)) for f in also]
    for _, path, content in more:
        if content.get("kind") not in (EVALUATION, codes.STUDIES, codes.SAMPLES, *codes.KINDS):
            raise UserError(f"{path} was not written by lpwm eval or interpret: give their JSON.")
    runs = [RunFile.read(path) for path in paths]
    order = {run.hash: i for i, run in enumerate(runs)}
    evaluations, notes = _evaluations([*_files(given, "eval"), *more], given, set(order), {p for _, p, _ in more})
    files = sorted([*_files(given, "interpret"), *_files(given, "eval"), *more], key=lambda f: f[0])
    results = [r for _, path, content in files for r in codes.results_of(content, str(path)) if r.run.hash in order]
    shown: list[Shown] = []
    for number, path in enumerate(evaluations, start=1):
        shown += shown_frames(path, number, ROOM - sum(len(x) for s in shown for x in s.sheets.values()))
    imagined = _newest(results, Imagination, order)
    names = {strip.file for one in imagined for strip in one.strips}
    near = [path.parent / Path(name).name for _, path, _ in files for name in names]
    return Gathered(
        runs=runs,
        evaluations=list(evaluations.values()),
        studies=_newest(results, Study, order),
        episodes=shown,
        imagination=imagined,
        strips={path.name: picture(path) for path in dict.fromkeys(near) if path.exists()},
        sparsity=_newest(results, Sparsity, order),
        factors=_newest(results, FactorStudy, order),
        recorded=_newest(results, Recorded, order),
        play=first_of_each(paths, [run.sparse for run in runs]),
        notes=notes,
    )


def _evaluations(
    files: Iterable[File], given: set[Path], hashes: set[str], named: set[Path]
) -> tuple[dict[Path, Evaluation], list[str]]:
    """Evaluations whose runs are all given, oldest first; and how many of these runs had others too."""
    kept: dict[str, tuple[float, Path, Evaluation]] = {}
    others = 0
    for when, path, content in files:
        if content.get("kind") != EVALUATION:
            continue
        evaluation = Evaluation.from_json(content, str(path))
        members = {r.run_hash for r in evaluation.runs if r.vote is None}
        if members <= hashes:
            kept.setdefault(digest(content), (when, path, evaluation))
        elif (path in named or path.parent.parent in given) and members & hashes:
            others += 1
    what = "1 evaluation with other runs was" if others == 1 else f"{others} evaluations with other runs were"
    notes = [f"{what} left out: name those runs too."] if others else []
    return {path: evaluation for _, path, evaluation in sorted(kept.values(), key=lambda found: found[0])}, notes


def _newest(results: Iterable[Result], kind: type[R], order: dict[str, int]) -> list[R]:
    """The last result of each run, in the order of the runs; studies with zones drawn and not drawn are two."""
    kept: dict[tuple[int, bool], R] = {}
    for r in results:
        if isinstance(r, kind):
            visible = isinstance(r, Study) and bool(r.settings.visible)
            kept[order[r.run.hash], visible] = r
    return [kept[key] for key in sorted(kept)]


def _files(given: set[Path], room: str) -> list[File]:
    """ROOM/*.json in the given folders and in the run folders next to them: an evaluation of several runs lies in
    the folder of the first."""
    near = given | {run.parent for folder in given for run in folder.parent.glob("*/run.json")}
    return [_read(file) for file in sorted(f for folder in near for f in folder.glob(f"{room}/*.json"))]


def _read(path: Path) -> File:
    content = read_json(path, of=object)
    return path.stat().st_mtime, path, content if isinstance(content, dict) else {}


def shown_frames(evaluation: Path, number: int, room: int) -> list[Shown]:
    """The frames that `lpwm eval` wrote next to an evaluation, as many cells as fit into `room` bytes."""
    folder = folder_of(evaluation)
    if not (folder / FRAMES).exists():
        return []
    frames, out = EpisodeFrames.read(folder), []
    for cell in sorted(frames.cells, key=lambda c: c.goals != "random"):
        names = {cell.goal, *(m.camera for m in cell.methods), *(m.imagined for m in cell.methods if m.imagined)}
        sheets = {name: picture(folder / Path(name).name) for name in names}
        room -= sum(map(len, sheets.values()))
        if room < 0:
            break
        if all(sheets.values()):
            out.append(Shown(frames.world, cell, sheets, number))
    return out


def picture(path: Path) -> str:
    """A WebP file in base64; "" for anything else."""
    try:
        data = read_bytes(path, ROOM)
    except (OSError, UserError):
        return ""
    return base64.b64encode(data).decode() if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""
