"""Where the variance of a success comes from: training seed, planner seed, episode, and their interactions.

Crossed random effects: y_spe = μ + α_s + β_p + γ_e + (αβ)_sp + (αγ)_se + (βγ)_pe + ε_spe. For two trials
that share exactly the factors T and differ in the others, E[y y'] = μ² + Σ_{∅≠U⊆T} σ_U². So with C_T the
mean product over such pairs,

    σ_T² = Σ_{U⊆T} (−1)^{|T|−|U|} C_U

which in a complete design is the ANOVA estimator (equate mean squares with their expectations). This form is
used because a bootstrap stays unbiased in it: two copies of one seed are not two seeds, and the pairs of
distinct seeds leave them out, where resampled mean squares would count them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.stats.record import Floats, Result, check_level

NAMES = {
    "s": "training seed",
    "p": "planner seed",
    "e": "episode",
    "sp": "training seed × planner seed",
    "se": "training seed × episode",
    "pe": "planner seed × episode",
    "spe": "residual",
}


@dataclass(frozen=True)
class Component:
    """A variance, never negative; `raw` is what the estimator gave before clipping."""

    variance: float
    low: float
    high: float
    raw: float

    @property
    def clipped(self) -> bool:
        return self.raw < 0

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class VarianceSplit:
    """`components` by name; those of the planner seed are absent when there was only one."""

    components: Mapping[str, Component]
    shape: tuple[int, int, int]
    level: float

    def of_rate(self, planner_seeds: int | None = None, episodes: int | None = None) -> dict[str, float]:
        """The variance of *one checkpoint's* measured rate, by source; as measured unless sizes are given.

        σ_s² + (σ_p² + σ_sp²)/P + (σ_e² + σ_se²)/E + (σ_pe² + σ_spe²)/(PE)
        """
        P = self.shape[1] if planner_seeds is None else planner_seeds
        E = self.shape[2] if episodes is None else episodes
        if P < 1 or E < 1:
            raise UserError(f"{P} planner seeds and {E} episodes measure no rate: give at least 1 of each.")
        if P != self.shape[1] == 1:
            raise UserError("one planner seed shows nothing of the others: split a result that has at least 2.")

        def v(key: str) -> float:
            component = self.components.get(NAMES[key])
            return component.variance if component else 0.0

        return {
            "training seed": v("s"),
            "planner seed": (v("p") + v("sp")) / P,
            "episode": (v("e") + v("se")) / E,
            "residual": (v("pe") + v("spe")) / (P * E),
        }

    def shares(self, planner_seeds: int | None = None, episodes: int | None = None) -> dict[str, float]:
        """`of_rate` as fractions of its sum (all 0 when nothing varies)."""
        parts = self.of_rate(planner_seeds, episodes)
        total = sum(parts.values())
        return {name: part / total if total else 0.0 for name, part in parts.items()}

    def text(self) -> str:
        S, P, E = self.shape
        lines = [
            f"sd of a trial by source, in points, with {100 * self.level:g} % intervals "
            f"({S} training seeds × {P} planner seeds × {E} episodes)"
        ]
        width = max(map(len, self.components))
        for name, c in self.components.items():
            bounds = f"[{100 * math.sqrt(c.low):.1f}, {100 * math.sqrt(c.high):.1f}]"
            note = "  (estimated below zero, clipped)" if c.clipped else ""
            lines.append(f"  {name:<{width}}  {100 * c.sd:5.1f}  {bounds}{note}")
        parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in self.shares().items())
        return "\n".join([*lines, f"share of the variance of one checkpoint's rate: {parts}"])


def _pair_sums(y_SPE: Floats, by_seed_BS: Floats, by_episode_BE: Floats) -> dict[str, Floats]:
    """Σ of products y·y' over pairs of trials that share the planner seed and exactly the factors named.

    Per row of counts w (how often a resample drew each seed and episode). Same seed: weight w_s. Distinct
    seeds: w_s·w_t over s ≠ t, that is all pairs less w_s² on the diagonal. Episodes likewise.
    """
    ws, we = by_seed_BS, by_episode_BE
    all_s = np.tensordot(ws, y_SPE, 1)  # (B, P, E)
    all_e = np.tensordot(we, y_SPE, (1, 2))  # (B, S, P)
    square_SE = np.square(y_SPE).sum(1)

    def same_both(u_BS: Floats, v_BE: Floats) -> Floats:
        return np.sum((u_BS @ square_SE) * v_BE, axis=1)

    square_BE = np.square(all_s).sum(1)
    square_BS = np.square(all_e).sum(2)
    square_B = np.square(np.einsum("bs,bsp->bp", ws, all_e)).sum(1)
    return {
        "se": same_both(ws, we),
        "s": np.sum(square_BS * ws, axis=1) - same_both(ws, we**2),
        "e": np.sum(square_BE * we, axis=1) - same_both(ws**2, we),
        "": square_B - np.sum(square_BS * ws**2, axis=1) - np.sum(square_BE * we**2, axis=1) + same_both(ws**2, we**2),
    }


def _components(y_SPE: Floats, by_seed_BS: Floats, by_episode_BE: Floats) -> dict[str, Floats]:
    """σ_T² for every T, per row of counts (all ones: the estimate itself)."""
    S, P, E = y_SPE.shape
    size = {
        "s": (by_seed_BS.sum(1), S**2 - np.square(by_seed_BS).sum(1)),
        "e": (by_episode_BE.sum(1), E**2 - np.square(by_episode_BE).sum(1)),
    }
    same_p = _pair_sums(y_SPE, by_seed_BS, by_episode_BE)
    any_p = _pair_sums(y_SPE.sum(1, keepdims=True), by_seed_BS, by_episode_BE) if P > 1 else same_p
    mean: dict[str, Floats] = {}
    for key in same_p:
        pairs = np.prod([same if axis in key else distinct for axis, (same, distinct) in size.items()], axis=0)
        if P == 1:  # a two-way design
            mean[key] = same_p[key] / pairs
            continue
        mean["".join(axis for axis in "spe" if axis in key + "p")] = same_p[key] / (pairs * P)
        mean[key] = (any_p[key] - same_p[key]) / (pairs * P * (P - 1))
    subsets = {key: ["".join(c) for r in range(len(key) + 1) for c in combinations(key, r)] for key in mean}
    return {key: np.sum([(-1) ** (len(key) - len(u)) * mean[u] for u in subsets[key]], axis=0) for key in mean if key}


def variance_split(
    result: Result, level: float = 0.95, resamples: int = 4999, key: tuple[int | str, ...] = (0,)
) -> VarianceSplit:
    """The components with intervals by a bootstrap over training seeds and over episodes.

    Planner seeds, of which there are few, are not resampled. Negative estimates are clipped to 0 and marked.
    Plain percentiles: resampling both factors over-covers interactions and is near its level for the training
    seed from 8 seeds on (docs/statistics.md has the figures).
    """
    check_level(level)
    S, P, E = result.success_SPE.shape
    if S < 2 or E < 2:
        raise UserError(
            f"{result.name!r} has {S} training seeds and {E} episodes: a variance split needs at least 2 of each."
        )
    # Centering changes no component and keeps digits.
    y = result.success_SPE.astype(np.float64) - result.rate
    raw = {k: float(v[0]) for k, v in _components(y, np.ones((1, S)), np.ones((1, E))).items()}
    draw = np.random.default_rng(rng.seed_of("variance split", *key))
    counts = [draw.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64) for n in (S, E)]
    # A resample of one seed (or episode) alone has no pair of distinct ones.
    usable = np.logical_and(*((c > 0).sum(1) > 1 for c in counts))
    star = _components(y, counts[0][usable], counts[1][usable])
    components = {}
    for k in sorted(raw, key=lambda k: (len(k), "spe".index(k[0]), k)):
        low, high = np.quantile(star[k], ((1 - level) / 2, (1 + level) / 2))
        name = "residual" if len(k) == max(map(len, raw)) else NAMES[k]
        components[name] = Component(max(raw[k], 0.0), max(float(low), 0.0), max(float(high), 0.0), raw[k])
    return VarianceSplit(components, (S, P, E), level)
