"""The rules by which a claim is judged, in two words. Nothing here knows where the numbers come from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lpwm.stats import MIN_SEEDS, Interval

from .claims import FAILS, NEAR, ON_PAR, Claim

SAME, OTHER, OPEN, NOT_TESTED, NOT_RUN = "same", "other", "open", "not tested", "not run"
INSIDE, EXCLUDED = "inside", "excluded"
DIRECTIONS = (SAME, OTHER, OPEN, NOT_TESTED)

RULE = (
    "Success is judged at the end of the budget. "
    "*Direction*, of a difference: `same` when its paired 95 % interval over training seeds (episodes counted as a "
    "sample too) lies on the paper's side of 0, `other` when it lies on the other side, else `open`. *Size*: the "
    "paper's difference, or a part of the range it gives, lies `inside` our interval, or is `excluded` by it; empty "
    "where the paper gives a direction only. *On par*: `same` when the interval lies within "
    f"± {100 * ON_PAR:.0f} points (± {100 * NEAR:.0f} for probes), `other` when it lies outside, else `open`. "
    "A *level* (a success rate, an accuracy, an active fraction) has no direction, and is compared with the paper's "
    f"number ± its spread (± {NEAR:g} where none is reported; *fails* is below {100 * FAILS:.0f} %) only when it was "
    "made with the paper's recipe at the paper's size; of any other recipe it is shown and not judged. Where neither "
    "method does better than doing nothing or acting at random, and where there is one seed, the direction is `open`. "
    "A claim about Cube is `not tested` while the code does not hold the cube (a rank correlation of latent and cube "
    f"distance below 0.3). Fewer than {MIN_SEEDS} seeds are marked few. The line of a claim that counts is chosen "
    "before looking at its outcome: the paper's size, each method at the λ and η that it was tuned to (where both "
    "were, in the same cells), the recipe unchanged and trained to its end, the preferred "
    "budget, then the most seeds, the largest planner and the most episodes, those of several evaluations of the same "
    "checkpoints in the same way taken together. Runs of different rounds are not pooled."
)


@dataclass(frozen=True)
class Verdict:
    direction: str = ""  # empty: a level has none
    size: str = ""  # empty: the paper gives none, or this recipe is not the paper's
    why: str = ""  # what a reader should know with it
    exploratory: bool = False

    def text(self) -> str:
        """`same, excluded (smaller; few seeds)`."""
        marks = [m for m in (self.why, "few seeds" if self.exploratory else "") if m]
        words = ", ".join(w for w in (self.direction, self.size) if w) or "–"
        return words + (f" ({'; '.join(marks)})" if marks else "")


def judge(claim: Claim, ours: Interval, seeds: int, detectable: float | None = None, paper: bool = True) -> Verdict:
    """`detectable`: the smallest effect seen with 80 % power, in the unit of the estimate. `paper`: whether recipe
    and size are the paper's."""
    few = seeds < MIN_SEEDS
    if claim.kind in ("difference", "parity"):
        if seeds < 2:
            return Verdict(OPEN, "", f"{seeds or 'no'} shared seed: no interval over seeds", True)
        verdict = _difference(claim, ours, few) if claim.kind == "difference" else _parity(claim, ours, few)
        if verdict.direction == OPEN and detectable is not None:
            why = f"80 % power from {scaled(claim, detectable)} on"
            return Verdict(OPEN, verdict.size, why, few)
        return verdict
    if not paper:
        return Verdict("", "", "another recipe", few)
    low = -math.inf if claim.kind == "ceiling" else claim.low
    slack = 1e-9  # a bound that is met to the last digit is met
    if ours.low > claim.high + slack:
        return Verdict("", EXCLUDED, "above", few)
    return Verdict("", EXCLUDED, "below", few) if ours.high < low - slack else Verdict("", INSIDE, "", few)


def _difference(claim: Claim, ours: Interval, few: bool) -> Verdict:
    direction = SAME if ours.low > 0 else OTHER if ours.high < 0 else OPEN  # every difference of the paper is positive
    if not claim.low:  # a direction is all the paper gives
        return Verdict(direction, "", "", few)
    if ours.high < claim.low:
        return Verdict(direction, EXCLUDED, "smaller" if direction == SAME else "", few)
    if ours.low > claim.high:
        return Verdict(direction, EXCLUDED, "larger", few)
    return Verdict(direction, INSIDE, "", few)


def _parity(claim: Claim, ours: Interval, few: bool) -> Verdict:
    if claim.low <= ours.low and ours.high <= claim.high:
        return Verdict(SAME, "", "", few)
    return Verdict(OTHER if ours.low > claim.high or ours.high < claim.low else OPEN, "", "", few)


def share(claim: Claim, good: int, n: int, otherwise: str = OTHER) -> Verdict:
    """Of n cells `good` behave as claimed: no interval, so always exploratory."""
    if n < 2:
        return Verdict(OPEN, "", "too few cells", True)
    return Verdict(SAME if good / n >= claim.low and good else otherwise, "", "", True)


def health(good: int, n: int) -> Verdict:
    """Every seed must train."""
    return Verdict(SAME if good == n else OTHER, "", "", n < MIN_SEEDS)


def plain_unit(claim: Claim) -> bool:
    """Numbers that are no percentages: R², correlations, active fractions."""
    names = (claim.query.quantity, claim.query.versus)
    return any(q.startswith(("position", "correlation", "active")) for q in names)


def scaled(claim: Claim, value: float) -> str:
    if plain_unit(claim):
        return f"{value:.3f}"
    return f"{100 * value:.1f} {'points' if claim.kind in ('difference', 'parity') else '%'}"


def interval_text(claim: Claim, ours: Interval) -> str:
    """`+12.0 [3.1, 20.9] points`, `62.0 % [51.0, 72.4]`, `0.412 [0.401, 0.423]`."""
    sign = "+" if claim.kind in ("difference", "parity") else ""
    if plain_unit(claim):
        return f"{ours.estimate:{sign}.3f} [{ours.low:{sign}.3f}, {ours.high:{sign}.3f}]"
    e, low, high = (round(100 * x, 1) + 0.0 for x in (ours.estimate, ours.low, ours.high))
    return f"{e:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}] {'points' if sign else '%'}"
