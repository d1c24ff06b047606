"""The proposition measured on smooth systems over grids of growing N: `lpwm paper theory`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.core.version import __version__
from lpwm.theory.bounds import SMOOTH, Errors, System, measure, slope
from lpwm.theory.one_hot import Floats, Grid, Map, OneHot

# Cells a side by dimension: each several doublings, the largest a few times 10⁵ cells.
SIZES: dict[int, tuple[int, ...]] = {
    1: (16, 32, 64, 128, 256, 512, 1024, 2048),
    2: (8, 16, 32, 64, 128, 256, 512),
    3: (6, 9, 14, 21, 32, 48, 64),
}


@dataclass(frozen=True)
class StudyConfig:
    states: int = 20_000  # uniform on the box
    horizon: int = 5
    sequences: int = 8  # random action sequences of that length
    seed: int = 0

    def __post_init__(self) -> None:
        if self.states < 100 or self.horizon < 1 or self.sequences < 1:
            raise UserError("a theory study needs at least 100 states, 1 step and 1 action sequence.")

    def draws(self, low: Sequence[float], high: Sequence[float], actions: int) -> tuple[Floats, NDArray[np.int64]]:
        """States (M, d) and action sequences (sequences, H)."""
        draw = np.random.default_rng(rng.seed_of("theory study", len(low), self.seed))
        x_Md = draw.uniform(low, high, (self.states, len(low)))
        return x_Md, draw.integers(0, actions, (self.sequences, self.horizon))


@dataclass(frozen=True)
class GridErrors:
    """One grid: errors after one step (worst, mean) and after H ("far"), and their bounds."""

    cells: int
    epsilon: float
    worst: float
    mean: float
    bound: float
    far_worst: float
    far_mean: float
    far_bound: float
    far_beyond: float  # share of states above the bound
    holds: bool
    bytes: int


@dataclass(frozen=True)
class OfSystem:
    name: str
    d: int
    lipschitz: float
    horizon: int
    states: int


@dataclass(frozen=True)
class Convergence(OfSystem):
    """A smooth system over grids of growing N."""

    rows: tuple[GridErrors, ...]
    slope_worst: float
    slope_mean: float
    slope_far: float

    @property
    def holds(self) -> bool:
        return all(r.holds for r in self.rows)

    def problems(self, tolerance: float = 0.1) -> list[str]:
        """What does not come out as the proposition says, in sentences; [] when all does."""
        slopes = {"slope_worst": self.slope_worst, "slope_mean": self.slope_mean}
        out = [
            f"{self.name}: {what} is {value:.3f}, not within 10 % of −1/{self.d}."
            for what, value in slopes.items()
            if abs(self.d * value + 1) > tolerance
        ]
        return out + [f"{self.name}: an error is above its bound."] * (not self.holds)

    def cells_of_table(self) -> list[str]:
        last, slopes = self.rows[-1], [f"{self.d * value:+.3f}" for value in (self.slope_worst, self.slope_mean)]
        error = f"{last.worst:.5f} / {last.bound:.5f}"
        return [self.name, *slopes, "hold" if self.holds else "BROKEN", f"{last.cells:,}", error]


HEADS = ["system", "slope × d, worst", "mean", "bounds", "largest N", "worst error / bound"]


@dataclass(frozen=True)
class SmoothStudy:
    """What `lpwm paper theory` prints."""

    systems: tuple[Convergence, ...]
    lpwm: str = __version__
    version: int = 1


def smooth(sizes: int = 0, config: StudyConfig | None = None) -> SmoothStudy:
    """`sizes` > 1: only the first so many grids of each system."""
    config = config or StudyConfig()
    return SmoothStudy(tuple(converge(s, SIZES[s.d][: sizes or None], config) for s in SMOOTH.values()))


def converge(system: System, sizes: Sequence[int], config: StudyConfig) -> Convergence:
    """One-step and H-step errors of a smooth system on [0, 1]^d over grids of growing N, next to their bounds."""
    x_Md, sequences = config.draws((0.0,) * system.d, (1.0,) * system.d, len(system.actions_AK))
    rows = []
    for n in sizes:
        model = OneHot.of(system.f, Grid.unit(system.d, n), system.actions_AK)
        one = one_step(model, system.f, x_Md, system.lipschitz)
        rows.append(grid_errors(model, system.f, x_Md, sequences, one, system.lipschitz))
    slopes = [slope([r.cells for r in rows], [getattr(r, of) for r in rows]) for of in ("worst", "mean", "far_mean")]
    return Convergence(system.name, system.d, system.lipschitz, config.horizon, config.states, tuple(rows), *slopes)


def one_step(model: OneHot, f: Map, x_Md: Floats, lipschitz: float) -> Errors:
    """Every state under every action, after one step: errors (2, A·M), actions first."""
    each = [measure(model, f, x_Md, [a], lipschitz) for a in range(len(model.actions_AK))]
    return Errors(np.concatenate([e.error_HM for e in each], axis=1), each[0].bound_H)


def grid_errors(
    model: OneHot, f: Map, x_Md: Floats, sequences: NDArray[np.int64], one: Errors, lipschitz: float
) -> GridErrors:
    far = [measure(model, f, x_Md, s, lipschitz) for s in sequences]
    return GridErrors(
        cells=model.cells,
        epsilon=model.quantizer.epsilon,
        worst=float(one.worst_H[1]),
        mean=float(one.mean_H[1]),
        bound=float(one.bound_H[1]),
        far_worst=float(max(e.worst_H[-1] for e in far)),
        far_mean=float(np.mean([e.mean_H[-1] for e in far])),
        far_bound=float(far[0].bound_H[-1]),
        far_beyond=float(np.mean([e.beyond_H[-1] for e in far])),
        holds=one.holds and all(e.holds for e in far),
        bytes=model.bytes,
    )
