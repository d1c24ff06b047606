"""What `lpwm interpret` writes: frozen results with `to_json` and `from_json`. Files of 0.1.0 are read too.

The fields are those of the files, which also have "kind" and "version". Supports are packed bits (`Packed`).
J = |a ∧ b| / |a ∨ b| with J(∅, ∅) = 1.

Legend: n cells a side, D units, T steps of one episode, E trajectories.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.json import fields_json, from_json
from lpwm.evaluate.results import OMIT, Provenance
from lpwm.interpret.config import FactorConfig, StudyConfig
from lpwm.stats import Interval

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CODE, SUPPORT, MAGNITUDES = FEATURES = ("code", "support", "magnitudes")  # what probes are given
VERSION = 1  # of the files; those of 0.1.0 have no number and count as 1
STUDIES, SAMPLES, TABLE = "lpwm interpretations", "lpwm readings", "lpwm sparsity table"  # kinds of files


class Brief:
    """A dataclass that leaves out of its JSON what is None."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in fields_json(self).items() if value is not None}


@dataclass(frozen=True)
class Estimate(Brief):
    """A number, with its interval where one is known."""

    estimate: float
    low: float | None = None
    high: float | None = None
    level: float | None = None
    unit: str | None = None

    @classmethod
    def of(cls, value: "Interval | Estimate") -> "Estimate":
        return cls(value.estimate, value.low, value.high, value.level, value.unit)


@dataclass(frozen=True)
class Packed:
    """Booleans (…, D) as base64: each row of D bits padded to whole bytes, most significant bit first."""

    data: str
    shape: tuple[int, ...]
    bytes_per_row: int

    @classmethod
    def of(cls, active: Bools) -> "Packed":
        bits = np.packbits(active, axis=-1)
        return cls(base64.b64encode(bits.tobytes()).decode("ascii"), tuple(active.shape), int(bits.shape[-1]))

    def unpack(self) -> Bools:
        *lead, units = self.shape
        raw = np.frombuffer(base64.b64decode(self.data), dtype=np.uint8)
        return np.unpackbits(raw.reshape(*lead, self.bytes_per_row), axis=-1, count=units).astype(np.bool_)


@dataclass(frozen=True, kw_only=True)
class RunInfo(Provenance):
    """Which run. Runs whose configs differ in the training seed alone are one method."""

    name: str
    hash: str
    method: str
    seed: int
    step: int
    sparse: bool
    link: str
    latent: int


@dataclass(frozen=True)
class WorldInfo(Brief):
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    trained_visible: bool | None = None

    @property
    def title(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in sorted(self.options.items()))
        return f"{self.name} ({options})" if options else self.name


KINDS: "dict[str, type[Result]]" = {}  # every kind of result that is defined


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every result says about itself."""

    KIND: ClassVar[str]

    def __init_subclass__(cls) -> None:
        KINDS[cls.KIND] = cls

    run: RunInfo
    world: WorldInfo
    lpwm: str = ""
    commit: str | None = None
    source: str | None = None
    device: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.KIND, "version": VERSION, **fields_json(self)}

    @classmethod
    def from_json(cls, record: Any, where: str = "") -> Self:
        kind, version = (record.get("kind"), record.get("version", 1)) if isinstance(record, Mapping) else (None, 1)
        if kind != cls.KIND:
            raise UserError(f"{where or 'this'} is not of the kind {cls.KIND!r}: its kind is {kind!r}.")
        if version != VERSION:
            raise UserError(f"{where or 'this'} is of version {version}, and this lpwm reads {VERSION}: update lpwm.")
        return from_json(cls, record, where)


@dataclass(frozen=True)
class Reference:
    """The Jaccard map of one cell, to check others against."""

    row: int
    col: int
    zone: int
    jaccard: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class GridMap:
    """Supports at the centers of n×n cells, row by row from the top left."""

    resolution: int
    x: tuple[float, ...]  # centers, in pixels
    y: tuple[float, ...]
    zones: tuple[tuple[int, ...], ...]
    supports: Packed
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class ZoneSharpness:
    """Means over the reference cells of one zone."""

    zone: int
    cells: int
    within: float
    across: float
    sharpness: float


@dataclass(frozen=True)
class Control:
    """The same number with the zones put elsewhere: mean and central range of the copies. p = (1 + copies at or above
    the true number) / (1 + copies), where that means something."""

    mean: float
    low: float
    high: float
    copies: int
    p: float | None = None


@dataclass(frozen=True)
class Sharpness:
    sharpness: Interval  # over units: would other units of such a code say the same?
    within: float
    across: float
    zones: tuple[ZoneSharpness, ...]
    shuffled: Control  # zone labels dealt anew to the cells: 0 by construction
    translated: Control  # borders moved: about what nearness alone gives
    matched: float  # same zone minus other zone at the same displacement: nearness cancels
    matched_translated: Control


@dataclass(frozen=True)
class Score(Interval):
    """One probe: the held-out score with its interval over trajectories, and the same under shuffled labels.

    `tally` holds each trajectory's sums, from which the score of any set of trajectories follows (`probes.Rescore`):
    accuracy: (n, correct). R²: (n, squared error, Σ‖y‖², Σy …).
    """

    shuffled: Interval
    converged: bool = True
    tally: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Probes:
    zone: dict[str, Score]  # by feature set; also "position", what a linear probe makes of the true position
    position: dict[str, Score]
    position_given_support: Score  # the share of what the support leaves open that the magnitudes explain
    majority: float  # the accuracy of always naming the commonest zone
    frames: int
    trajectories: tuple[int, ...]

    def of(self, target: str) -> dict[str, Score]:
        return self.zone if target == "zone" else self.position

    def shuffled(self, target: str) -> Interval:
        """The code's probe with shuffled labels."""
        return self.of(target)[CODE].shuffled


@dataclass(frozen=True)
class Statistics:
    """How many units are on, which never, and how fast supports change along held-out trajectories."""

    kind: str  # "support" or "sign pattern"
    active_fraction: float
    activity: tuple[float, ...]
    dead_units: int
    always_on_units: int
    distinct: int
    frames: int
    instability: Interval
    instability_between: float  # of frames that have nothing to do with each other
    unit_order: tuple[int, ...] = ()  # units that prefer the same zone stand together


@dataclass(frozen=True)
class Raster:
    """Every raw step of one held-out episode."""

    episode: int
    steps: tuple[int, ...]
    supports: Packed
    zones: tuple[int, ...]
    positions: tuple[tuple[float, ...], ...]
    instability: tuple[float, ...]


@dataclass(frozen=True)
class Units:
    """What each unit answers to: mean |z| over two factors, and over held-out frames sorted by zone.

    Where a world has no zones, the quarters of the plane of the two factors stand in for them. Units stand in the
    order of the zone they prefer. Values are bytes in base64, 255 for the largest common ones.
    """

    x: str
    y: str
    low: tuple[float, float]
    high: tuple[float, float]
    side: int  # bins a side
    numbers: tuple[int, ...]  # of the units shown, U of D
    prefers: tuple[int, ...]  # the zone of each
    on: tuple[float, ...]  # the share of frames in which each is on; of a dense code, above a twentieth of the largest
    maps: str  # (U, side, side), the first row at the top
    empty: tuple[int, ...]  # bins without a frame
    frames: str  # (F, U)
    zones: tuple[int, ...]  # of these frames, F
    zoned: bool  # zones of the world, not quarters

    @property
    def frames_FU(self) -> NDArray[np.uint8]:
        return np.frombuffer(base64.b64decode(self.frames), np.uint8).reshape(len(self.zones), len(self.numbers))


@dataclass(frozen=True, kw_only=True)
class Study(Result):
    """Supports in the arena, their sharpness, probes and statistics of one Piecewise run."""

    KIND: ClassVar[str] = "lpwm interpretation"

    settings: StudyConfig
    grid: GridMap
    sharpness: Sharpness
    probes: Probes
    supports: Statistics
    raster: Raster | None = None
    seconds: float = 0.0
    units: Units | None = field(default=None, metadata=OMIT)

    @property
    def zones_nn(self) -> Ints:
        return np.array(self.grid.zones, dtype=np.int64)

    def jaccard_map(self, row: int, col: int) -> Floats:
        """The Jaccard map of any reference cell, from the packed supports: (n, n)."""
        from lpwm.interpret.supports import jaccard_map

        return jaccard_map(self.grid.supports.unpack(), row, col)


@dataclass(frozen=True)
class Target:
    """What the regularizer's target wants of the activity."""

    p: float
    mu: float
    axis_fraction: float
    active_fraction: float  # P(y > 0)
    at_least: float  # E[y]²/E[y²]


@dataclass(frozen=True)
class SampleSettings:
    frames: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Sparsity(Result):
    """The activity of one sparse run on its held-out trajectories, next to its target's."""

    KIND: ClassVar[str] = "lpwm sparsity"

    active_fraction: Estimate  # over trajectories
    at_least: float  # E[z]²/E[z²]
    activity: tuple[float, ...]  # of every unit
    dead_units: int
    always_on_units: int
    units_on: tuple[float, ...]  # in a frame: least, quartiles, most
    effective_dimension: float
    frames: int = 0
    trajectories: int = 0
    rung: str
    history: int = 0
    target: Target | None  # None: the regularizer has none
    settings: SampleSettings | None = None


@dataclass(frozen=True)
class FactorScore:
    """A linear probe of one factor; R² on held-out trajectories, also with shuffled labels."""

    name: str
    angle: bool  # probed as sin and cos
    r2: float
    r2_low: float  # 95 %, over held-out trajectories
    r2_high: float
    shuffled: float
    spread: float  # the standard deviation over training frames; of an angle that of (sin, cos)
    low: float  # the range seen in training
    high: float
    frames: int


@dataclass(frozen=True, kw_only=True)
class FactorStudy(Result):
    """Linear probes of every factor of one run; the probes themselves are kept with the run."""

    KIND: ClassVar[str] = "lpwm factors"

    settings: FactorConfig
    scores: tuple[FactorScore, ...]
    units: Units | None = field(default=None, metadata=OMIT)


def results_of(data: Any, where: str = "") -> list[Any]:
    """Every result in a file of one or of several; [] for a file of something else."""
    if not isinstance(data, Mapping):
        return []
    several = {STUDIES: "studies", SAMPLES: "readings"}.get(str(data.get("kind")))
    parts: Sequence[Any] = data.get(several, ()) if several else [data]
    out = []
    for i, part in enumerate(parts):
        cls = KINDS.get(str(part.get("kind"))) if isinstance(part, Mapping) else None
        if cls is not None:
            out.append(cls.from_json(part, f"{where}: {several}[{i}]" if several else where))
    return out


def clipped(interval: Interval, least: float, most: float = 1.0) -> Interval:
    """The part of an interval that can be: a t interval over few seeds knows no bounds."""
    return replace(interval, low=max(interval.low, least), high=min(interval.high, most))


def rounded(values: Any, digits: int = 6) -> Any:
    """An array as nested tuples of rounded numbers."""
    plain = np.round(np.asarray(values, dtype=np.float64), digits).tolist()
    return _tuples(plain)


def _tuples(x: Any) -> Any:
    return tuple(_tuples(v) for v in x) if isinstance(x, list) else x
