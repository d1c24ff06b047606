"""Comparisons that say what they can and no more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from lpwm.core.errors import UserError
from lpwm.stats.intervals import Floats, Interval, Result, check_level, success_interval
from lpwm.stats.paired import Paired, detectable_ncp, paired_crossed, paired_episodes, welch

MIN_SEEDS = 8  # fewer is exploratory

A_AHEAD = "a ahead"
B_AHEAD = "b ahead"
NO_DIFFERENCE = "no difference shown"
EXPLORATORY = f"exploratory: fewer than {MIN_SEEDS} seeds"
UNPAIRED = "seeds not paired: no winner called"


@dataclass(frozen=True)
class RateRow:
    """A rate as a table of comparisons has it. Fractions, not per cent."""

    name: str
    rate: float
    low: float
    high: float
    level: float
    unit: str
    seeds: int  # 0 for a control
    planner_seeds: int
    episodes: int
    control: bool


@dataclass(frozen=True)
class Difference:
    """A comparison as a table has it: a − b, fractions, p also after Holm's correction over the table."""

    a: str
    b: str
    difference: float
    low: float
    high: float
    level: float
    p: float
    p_holm: float
    seeds: int
    episodes: int
    smallest_detectable: float
    power: float
    method: str
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """a − b, with everything needed to believe it or not."""

    a: str
    b: str
    rate_a: Interval
    rate_b: Interval
    difference: Interval
    p: float
    p_holm: float  # adjusted for the table it stands in; p when it stands alone
    n: int  # paired training seeds
    episodes: int
    smallest_detectable: float  # at `power`, for this spread and this many seeds
    power: float
    method: str
    verdict: str

    @property
    def winner(self) -> str | None:
        return {A_AHEAD: self.a, B_AHEAD: self.b}.get(self.verdict)

    def row(self) -> Difference:
        d = self.difference
        interval = (d.estimate, d.low, d.high, d.level)
        size = (self.n, self.episodes, self.smallest_detectable, self.power)
        return Difference(self.a, self.b, *interval, self.p, self.p_holm, *size, self.method, self.verdict)

    def text(self) -> str:
        p = "p < 0.001" if self.p_holm < 0.001 else f"p = {self.p_holm:.3f}"
        verdict = f"{self.winner} ahead" if self.winner else self.verdict
        return (
            f"{self.a} − {self.b}: {self.difference.text(signed=True)}, {p}, "
            f"{_count(self.n, 'seed')} × {_count(self.episodes, 'episode')}, smallest detectable effect at "
            f"{100 * self.power:.0f} % power {100 * self.smallest_detectable:.1f} points: {verdict}"
        )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _pair(a: Result, b: Result) -> tuple[Floats, Floats, bool]:
    """Cells (S, E) of both with rows paired, and whether they could be; a control pairs with every seed."""
    if set(a.episodes) != set(b.episodes):
        shared = len(set(a.episodes) & set(b.episodes))
        raise UserError(f"{a.name!r} and {b.name!r} were not run on the same episodes ({shared} are): use one set.")
    if a.control and b.control:
        raise UserError(f"{a.name!r} and {b.name!r} are both controls: compare a trained method with a control.")
    unpaired = not (a.control or b.control) and set(a.seeds) != set(b.seeds)
    b = b.only(seeds=None if unpaired or a.control or b.control else a.seeds, episodes=a.episodes)
    if unpaired:
        return a.cells_SE, b.cells_SE, False
    x, y = np.broadcast_arrays(a.cells_SE, b.cells_SE)
    return x, y, True


def _tested(x_SE: Floats, y_SE: Floats, paired: bool, level: float) -> tuple[Paired, str]:
    """The test and its verdict: a winner needs paired seeds, enough of them, and an interval that leaves out 0."""
    if not paired:
        return welch(x_SE.mean(1), y_SE.mean(1), level), UNPAIRED
    d_SE = x_SE - y_SE
    test = paired_episodes(d_SE[0], level) if len(d_SE) == 1 else paired_crossed(d_SE, level)
    if test.n < MIN_SEEDS:
        return test, EXPLORATORY
    if test.p < 1 - level and 0 not in test.difference:
        return test, A_AHEAD if test.difference.estimate > 0 else B_AHEAD
    return test, NO_DIFFERENCE


def compare(a: Result, b: Result, *, level: float = 0.95, power: float = 0.8) -> Comparison:
    """a against b on the same episodes, paired on training seeds; seeds and episodes are both samples.

    A winner is called only from 8 paired seeds on, when the interval of the difference leaves out 0. With
    other seeds in a than in b the difference has Welch's interval and no winner; with one seed, an interval
    over episodes. The interval is cut at ±100 %.
    """
    check_level(level)
    x_SE, y_SE, paired = _pair(a, b)
    if not paired and min(len(x_SE), len(y_SE)) < 2:
        raise UserError(
            f"{a.name!r} and {b.name!r} have different training seeds and one of them has a single one: "
            "train both on the same seeds (McNemar's test would compare the two checkpoints themselves)."
        )
    if x_SE.shape[1] < 2:
        raise UserError("a comparison on one episode shows nothing: evaluate at least 2.")
    test, verdict = _tested(x_SE, y_SE, paired, level)
    return Comparison(
        a=a.name,
        b=b.name,
        rate_a=success_interval(a, level),
        rate_b=success_interval(b, level),
        difference=replace(test.difference, low=max(test.difference.low, -1.0), high=min(test.difference.high, 1.0)),
        p=test.p,
        p_holm=test.p,
        n=test.n,
        episodes=x_SE.shape[1],
        smallest_detectable=detectable_ncp(test.df, 1 - level, power) * test.se,
        power=power,
        method=test.method,
        verdict=verdict,
    )


def holm(p: ArrayLike) -> list[float]:
    """Holm's step-down adjustment (1979): p_(i) → max_{j≤i} min(1, (m − j + 1)·p_(j))."""
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise UserError("Holm's correction takes a list of p values between 0 and 1.")
    order = np.argsort(values, kind="stable")
    out = np.empty_like(values)
    out[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0)
    return out.tolist()


@dataclass(frozen=True)
class ComparisonTable:
    """Every rate and every difference."""

    rates: tuple[RateRow, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def rows(self) -> tuple[Difference, ...]:
        return tuple(c.row() for c in self.comparisons)


def comparison_table(results: Sequence[Result], *, level: float = 0.95, power: float = 0.8) -> ComparisonTable:
    """Every rate with its interval, and every pair with Holm's correction. Controls are compared with methods, not with
    one another. Verdicts use the corrected p: an interval that leaves out 0 on its own need not make a winner in a
    table of many."""
    names = [r.name for r in results]
    if not names:
        raise UserError("there is nothing to compare: give at least one result.")
    if len(set(names)) != len(names):
        raise UserError(f"two results are called {max(names, key=names.count)!r}: give every result its own name.")
    pairs = [(a, b) for a, b in combinations(results, 2) if not (a.control and b.control)]
    singles = [compare(a, b, level=level, power=power) for a, b in pairs]
    comparisons = []
    for single, p in zip(singles, holm([c.p for c in singles]), strict=True):
        lost = single.winner is not None and not p < 1 - level
        comparisons.append(replace(single, p_holm=p, verdict=NO_DIFFERENCE if lost else single.verdict))
    rates = []
    for r in results:
        (S, P, E), i = r.success_SPE.shape, success_interval(r, level)
        seeds = 0 if r.control else S
        rates.append(RateRow(r.name, i.estimate, i.low, i.high, i.level, i.unit, seeds, P, E, r.control))
    return ComparisonTable(tuple(rates), tuple(comparisons))
