"""What a report is made of: the files of train, eval, interpret and theory, typed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lpwm.core.errors import UserError
from lpwm.core.json import from_json
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.results import Evaluation
from lpwm.interpret.results import Contact, Sparsity, Study, WorldInfo
from lpwm.report.theory import TheoryStudy
from lpwm.train import RunConfig, parse_options, read_record
from lpwm.train.log import LOG, read_log
from lpwm.train.run_config import method_digest

POINTS = 400  # of a curve: more is not seen


@dataclass(frozen=True)
class Log:
    """The records of a run's log.jsonl, by kind."""

    train: tuple[Mapping[str, Any], ...] = ()
    val: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def from_json(cls, records: Iterable[Mapping[str, Any]]) -> Log:
        every = list(records)
        return cls(*(tuple(r for r in every if r.get("kind") == kind) for kind in ("train", "val", "event")))

    def series(self, name: str) -> tuple[list[int], list[float | None]]:
        """(steps, values) of one logged number, thinned evenly to POINTS, the last one kept."""
        kept = [(r.get("step", 0), r.get(name)) for r in self.train if name in r]
        if len(kept) > POINTS:
            every = math.ceil(len(kept) / POINTS)
            kept = [*kept[:-1:every], kept[-1]]
        return [s for s, _ in kept], [significant(v) for _, v in kept]

    def last(self, name: str) -> Any:
        return self.train[-1].get(name) if self.train else None

    def held_out(self, name: str) -> Sequence[float]:
        """The last held-out values, by depth."""
        return (self.val[-1].get(name) or ()) if self.val else ()

    def messages(self) -> list[str]:
        return [f"step {r.get('step')}: {r.get('message')}" for r in self.events if r.get("message")]


@dataclass(frozen=True)
class RunFile:
    """run.json and the log of a run folder."""

    name: str
    hash: str
    data: str
    version: str
    config: RunConfig
    log: Log = field(default_factory=Log)

    @classmethod
    def read(cls, folder: Path) -> RunFile:
        record, where = read_record(folder), str(folder / "run.json")
        try:
            run = from_json(cls, record, where)
        except UserError as error:
            raise UserError(f"{where} is damaged ({error}): restore it, or start the run again.") from None
        records = read_log(folder) if (folder / LOG).exists() else []
        return replace(run, log=Log.from_json(records))

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
        return f"{self.name} {method_digest(self.config)[:4]}"

    @property
    def step(self) -> int:
        return self.log.last("step") or 0

    @property
    def error(self) -> float | None:
        """Held-out, relative, one block ahead."""
        return next(iter(self.log.held_out("error_depth")), None)

    @property
    def copy_error(self) -> float | None:
        return next(iter(self.log.held_out("copy_error_depth")), None)


@dataclass(frozen=True)
class Replay:
    """The first episodes of a row of an evaluation, as the page plays them: positions, distances, success."""

    world: WorldInfo
    goals: str
    horizon: int
    receding: int
    name: str
    control: bool
    seed: int | str
    frameskip: int
    ids: tuple[str, ...]
    goal: tuple[tuple[float, ...], ...]
    path: tuple[tuple[tuple[float, ...], ...], ...]
    distance: tuple[tuple[float, ...], ...]
    success: tuple[str, ...]  # one character a step
    latent: tuple[tuple[float, ...], ...] | None
    predicted: tuple[tuple[float, ...], ...] | None
    evaluation: int = 1

    @classmethod
    def of(cls, record: Record, goal_BS: np.ndarray, at: Sequence[int], count: int, **where: Any) -> Replay:
        """at: which entries of the state are the position."""

        def trace(name: str) -> Any:
            values = record.traces.get(name)
            return None if values is None else [[significant(v, 4) for v in row] for row in values[:count].tolist()]

        def short(values: np.ndarray) -> Any:
            return np.round(values[:count].astype(float), 2).tolist()

        return cls(
            frameskip=record.frameskip,
            ids=tuple(record.ids[:count]),
            goal=short(goal_BS[:, at]),
            path=short(record.states_BTS[..., at]),
            distance=short(record.distance_BT),
            success=tuple("".join("1" if s else "0" for s in row) for row in record.success_BT[:count]),
            latent=trace("latent"),
            predicted=trace("predicted"),
            **where,
        )


@dataclass(frozen=True)
class Gathered:
    """Everything known about some runs. `notes`: what is there and left out, in sentences."""

    runs: Sequence[RunFile]
    evaluations: Sequence[Evaluation] = ()
    studies: Sequence[Study] = ()
    episodes: Sequence[Replay] = ()
    sparsity: Sequence[Sparsity] = ()
    contact: Sequence[Contact] = ()
    theory: TheoryStudy | None = None
    notes: Sequence[str] = ()


def significant(value: float | None, digits: int = 5) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
