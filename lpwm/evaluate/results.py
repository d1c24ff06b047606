"""What an evaluation measured: typed, to and from JSON. A cell is one kind of goals with one plan length (horizon H)
and one number of executed blocks (receding R). S training seeds, P planner seeds, E episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import dump_json, fields_json, from_json, read_json, to_json
from lpwm.data.normalize import ActionStats
from lpwm.evaluate.config import EvalConfig
from lpwm.stats import Difference, Interval, RateRow, Result
from lpwm.train.run_config import RunConfig

KIND = "lpwm evaluation"
VERSION = 2  # of the file; files of lpwm 0.1.0 have no number and count as 1
MEASURES = ("latched", "terminal")
OMIT = {"omit": True}  # left out of the file where it is empty

SuccessSPE = tuple[tuple[tuple[int, ...], ...], ...]
FloatsSPE = tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True)
class Rate:
    """A success rate with its interval."""

    rate: float
    low: float
    high: float
    level: float
    unit: str

    @classmethod
    def of(cls, interval: Interval) -> "Rate":
        return cls(interval.estimate, interval.low, interval.high, interval.level, interval.unit)

    @property
    def interval(self) -> Interval:
        return Interval(self.rate, self.low, self.high, self.level, self.unit)


@dataclass(frozen=True)
class Outcome:
    """A row at one budget of raw steps."""

    latched: Rate  # success at any test up to the budget
    terminal: Rate  # success at the last test
    success: dict[str, SuccessSPE]  # measure -> 0 or 1
    rate_per_seed: dict[str, tuple[float, ...]]
    steps_to_success: SuccessSPE  # raw steps; −1 for never
    final_distance: FloatsSPE

    def rate(self, measure: str) -> Rate:
        return self.latched if measure == "latched" else self.terminal


@dataclass(frozen=True)
class Row:
    """One method or control."""

    name: str
    control: bool
    seeds: tuple[int | str, ...]
    planner_seeds: tuple[int, ...]
    planner: dict[str, Any]  # solver and its options, H, R, warm, context
    budgets: dict[str, Outcome]
    mean_latent_distance: dict[str, FloatsSPE]  # "latent": of every frame seen; "predicted": as the plan forecast it
    wall_s: float
    stored_records: int = 0  # of S × P, those that were kept from an earlier call
    records: tuple[tuple[str, ...], ...] = field(default=(), metadata=OMIT)  # their names in the store

    def at(self, budget: int) -> Outcome:
        return self.budgets[str(budget)]

    def success(self, measure: str, budget: int) -> np.ndarray:
        """(S, P, E) bool."""
        return np.array(self.at(budget).success[measure], dtype=bool)

    def result(self, measure: str, budget: int, episodes: Sequence[str]) -> Result:
        success = self.success(measure, budget)
        return Result.of(self.name, success, episodes=episodes, seeds=self.seeds, control=self.control)


@dataclass(frozen=True)
class Group:
    """Some of the episodes, reported apart: `rates[row name][budget][measure]`."""

    episodes: int
    rates: dict[str, dict[str, dict[str, Rate]]]

    @classmethod
    def upgrade(cls, record: dict[str, Any]) -> dict[str, Any]:
        """In the file the rows stand next to the number of episodes."""
        return {"episodes": record.get("episodes"), "rates": {k: v for k, v in record.items() if k != "episodes"}}

    def to_json(self) -> dict[str, Any]:
        return {"episodes": self.episodes, **to_json(self.rates)}


@dataclass(frozen=True)
class Compared:
    """The rows of a cell against one another; or why that cannot be."""

    rates: tuple[RateRow, ...] = field(default=(), metadata=OMIT)
    differences: tuple[Difference, ...] = field(default=(), metadata=OMIT)
    text: tuple[str, ...] = field(default=(), metadata=OMIT)  # one sentence per difference
    refused: str = field(default="", metadata=OMIT)


@dataclass(frozen=True)
class Cell:
    goals: str
    horizon: int
    receding: int
    rows: tuple[Row, ...]
    groups: dict[str, Group]
    comparisons: dict[str, dict[str, Compared]]  # measure -> budget

    @property
    def methods(self) -> list[Row]:
        return [r for r in self.rows if not r.control]

    @property
    def budgets(self) -> list[int]:
        return sorted(int(b) for b in self.rows[0].budgets)

    def compared(self, measure: str, budget: int) -> Compared:
        return self.comparisons.get(measure, {}).get(str(budget), Compared())


@dataclass(frozen=True)
class Curve:
    """Latent distance against state distance. Bin i holds pairs of states with edges[i] ≤ distance < edges[i + 1]; the
    last bin is "far" and the unit."""

    edges: tuple[float, ...]  # bins + 1, in the world's unit
    relative: tuple[float, ...]  # mean latent distance / that of the far bin; NaN for an empty bin
    sd: tuple[float, ...]  # of the same, between pairs
    pairs: tuple[int, ...]
    far: float  # mean RMS latent distance ‖z − z'‖/√D of far pairs
    spearman: float  # rank correlation of the two distances over the pairs used, each bin weighing alike

    @property
    def saturates(self) -> float | None:
        """The state distance from which on the latent distance is 90 % of far or more; None if only far is."""
        for low, high, value in zip(self.edges[:-2], self.edges[1:-1], self.relative[:-1], strict=True):
            if value >= 0.9:
                return (low + high) / 2
        return None

    def to_json(self) -> dict[str, Any]:
        return {**fields_json(self), "saturates": self.saturates}


@dataclass(frozen=True)
class Training:
    """How a run was trained: minutes of every stretch, interrupted ones too; the rest is of the last stretch."""

    minutes: float
    device: str | None = None
    processes: int | None = None
    commit: str | None = None
    source: str | None = None
    versions: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a run folder tells of its training; all of it empty where there is no run folder."""

    recipe: str = field(default="", metadata=OMIT)
    data: str = field(default="", metadata=OMIT)  # digest
    config: RunConfig | None = field(default=None, metadata=OMIT)
    monitors: dict[str, float | tuple[float, ...]] = field(default_factory=dict, metadata=OMIT)  # the last
    events: tuple[str, ...] = ()
    training: Training | None = None  # None for runs that recorded nothing


@dataclass(frozen=True, kw_only=True)
class EvaluatedRun(Provenance):
    """A checkpoint that was evaluated, or several that voted."""

    name: str
    method: str
    seed: int | str
    path: str
    run_hash: str
    step: int
    weights: str  # digest
    frameskip: int
    images: tuple[int, ...]
    normalization: ActionStats
    vote: str | None


@dataclass(frozen=True)
class Episodes:
    """The episodes of one kind of goals; a picture as the goal has no states."""

    kind: str
    digest: str
    source: str
    seed: int
    ids: tuple[str, ...]
    start: tuple[tuple[float, ...], ...]
    goal: tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class WorldName:
    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Repetition:
    """An earlier file that this evaluation repeats, and where it came out differently."""

    file: str
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All that `lpwm eval` writes. `played` has the episodes themselves, in the process that ran them."""

    kind: str = KIND
    version: int = 1
    versions: dict[str, str]
    commit: str | None
    source: str | None
    device: str
    threads: int
    settings: EvalConfig
    world: WorldName
    holdout: float
    runs: tuple[EvaluatedRun, ...]
    episode_sets: dict[str, Episodes]
    cells: tuple[Cell, ...]
    curves: dict[str, Curve]
    predicted_s: float | None
    wall_s: float
    missing: tuple[str, ...] = field(default=(), metadata=OMIT)  # in files of 0.1.0: what was not finished
    repeats: Repetition | None = field(default=None, metadata=OMIT)
    played: Any = field(default=None, repr=False, compare=False, metadata={"json": False})

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Plain values, everything needed to repeat the evaluation; written to `path` where one is given."""
        record = fields_json(self)
        if path is not None:
            make_folder(Path(path).parent)
            write_whole(Path(path), dump_json(record))
        return record

    @classmethod
    def from_json(cls, record: Any, where: str = KIND) -> "Evaluation":
        """From plain values, of this version or of 0.1.0."""
        evaluation = from_json(cls, record, where)
        if evaluation.kind != KIND:
            raise UserError(f"{where} is not an evaluation that lpwm eval wrote: its kind is {evaluation.kind!r}.")
        if evaluation.version > VERSION:
            raise UserError(f"{where} is of version {evaluation.version}, lpwm here reads up to {VERSION}: update it.")
        for i, cell in enumerate(evaluation.cells):
            if not cell.rows or cell.goals not in evaluation.episode_sets:
                raise UserError(f"{where}: cells[{i}] has no rows, or goals that are not in episode_sets.")
            budgets = set(cell.rows[0].budgets)
            if not all(b.isdecimal() for b in budgets) or any(set(row.budgets) != budgets for row in cell.rows):
                raise UserError(f"{where}: the rows of cells[{i}] need the same budgets, in raw steps.")
        return evaluation

    @classmethod
    def read(cls, path: str | Path) -> "Evaluation":
        return cls.from_json(read_json(path, kind=KIND), str(path))

    @property
    def digest(self) -> str:
        """Names what was evaluated: the settings, the weights and the episodes."""
        return digest(
            {
                "settings": self.settings,
                "runs": [[r.weights, r.vote] for r in self.runs],
                "episodes": {kind: s.digest for kind, s in self.episode_sets.items()},
            }
        )

    def table(self) -> str:
        """For people, at most 80 columns wide."""
        from lpwm.evaluate.table import table

        return table(self)


def differences(before: Evaluation, after: Evaluation) -> list[str]:
    """Where two evaluations have other successes, one line each; [] when the second repeats the first."""
    digests = {kind: episodes.digest for kind, episodes in after.episode_sets.items()}
    out = [f"{k} goals: not the same episodes" for k, s in before.episode_sets.items() if digests.get(k) != s.digest]
    old, new = _successes(before), _successes(after)
    for where, a in old.items():
        b = new.get(where)
        if b is None:
            out.append(f"{where}: not evaluated again")
        elif not np.array_equal(a, b):
            count = int((a != b).sum()) if a.shape == b.shape else "all"
            out.append(f"{where}: {count} of {a.size} outcomes differ")
    return out


def _successes(evaluation: Evaluation) -> dict[str, np.ndarray]:
    return {
        f"{cell.goals} goals, H={cell.horizon}, R={cell.receding}, {row.name}, {budget} steps, {m}": np.array(success)
        for cell in evaluation.cells
        for row in cell.rows
        for budget, outcome in row.budgets.items()
        for m, success in outcome.success.items()
    }
