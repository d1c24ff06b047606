"""The rules by which a claim is called reproduced or not. Nothing here knows where the numbers come from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lpwm.stats import MIN_SEEDS, Interval

from .claims import FAILS, NEAR, ON_PAR, Claim

REPRODUCED, NOT, INCONCLUSIVE, NOT_RUN = "reproduced", "not reproduced", "inconclusive", "not run"
VERDICTS = (REPRODUCED, NOT, INCONCLUSIVE, NOT_RUN)

RULE = (
    "A *difference* is reproduced when its paired 95 % interval over training seeds (episodes counted as a "
    "sample too) leaves out 0 on the paper's side, not reproduced when it leaves out the paper's smallest "
    "difference (where the paper gives only a direction: when it lies on the other side of 0), and otherwise "
    "inconclusive, with the smallest effect that these seeds show with 80 % power; where neither method does "
    "better than doing nothing or acting at random, it is inconclusive whatever the interval. A *level* is "
    f"reproduced when our 95 % interval reaches the paper's number ± its reported spread (± {NEAR:g} where none "
    "is reported), and otherwise not; a wide interval reaches easily, so read its width. *On par* is reproduced "
    f"when the paired interval lies within ± {100 * ON_PAR:.0f} points (± {100 * NEAR:.0f} for probes), not "
    "reproduced when it lies outside, and otherwise inconclusive. *Fails* is reproduced when the interval lies "
    f"below {100 * FAILS:.0f} %, not reproduced when it lies above. With one seed there is no interval over "
    f"seeds: differences are then inconclusive, and a level is that of one checkpoint. Fewer than {MIN_SEEDS} "
    "seeds is marked exploratory. The line of a claim that counts first is chosen before looking at its "
    "outcome: the paper's size, the recipe unchanged and trained to its end, the preferred budget, then the most "
    "seeds, the largest planner and the most episodes, those of several evaluations of the same checkpoints in the "
    "same way taken together (and shown apart below). Nothing reduced is called anything else."
)


@dataclass(frozen=True)
class Verdict:
    verdict: str
    why: str = ""  # what a reader should know with it
    exploratory: bool = False

    def text(self) -> str:
        marks = [m for m in (self.why, "exploratory" if self.exploratory else "") if m]
        return f"**{self.verdict}**" + (f" ({'; '.join(marks)})" if marks else "")


def judge(claim: Claim, ours: Interval, seeds: int, detectable: float | None = None) -> Verdict:
    """`detectable`: the smallest effect seen with 80 % power, in the unit of the estimate."""
    if claim.kind in ("difference", "parity") and seeds < 2:
        return Verdict(INCONCLUSIVE, f"{seeds or 'no'} shared seed: no interval over seeds", True)
    if claim.kind == "difference":
        verdict, why = _difference(ours, claim.low)
    elif claim.kind == "parity":
        verdict, why = _within(ours, claim.low, claim.high)
    elif claim.kind == "ceiling":
        verdict, why = _within(ours, -math.inf, claim.high)
    else:
        verdict, why = _level(ours, claim.low, claim.high)
    if verdict == INCONCLUSIVE and detectable is not None:
        why = f"smallest effect seen with 80 % power: {scaled(claim, detectable)}"
    return Verdict(verdict, why, seeds < MIN_SEEDS)


def _difference(ours: Interval, smallest: float) -> tuple[str, str]:
    if ours.low > 0:
        return REPRODUCED, "smaller than the paper's" if ours.high < smallest else ""
    if ours.high < 0:
        return NOT, "the other way round"
    if ours.high < smallest:
        return NOT, "the paper's smallest difference is left out"
    return INCONCLUSIVE, ""


def _within(ours: Interval, low: float, high: float) -> tuple[str, str]:
    if low <= ours.low and ours.high <= high:
        return REPRODUCED, ""
    return NOT if ours.low > high or ours.high < low else INCONCLUSIVE, ""


def _level(ours: Interval, low: float, high: float) -> tuple[str, str]:
    slack = 1e-9  # a bound that is met to the last digit is met
    if ours.low > high + slack:
        return NOT, "above"
    return (NOT, "below") if ours.high < low - slack else (REPRODUCED, "")


def share(claim: Claim, good: int, n: int) -> Verdict:
    """Of n cells `good` behave as claimed: no interval, so always exploratory."""
    if n < 2:
        return Verdict(INCONCLUSIVE, "too few cells", True)
    return Verdict(REPRODUCED if good / n >= claim.low and good else NOT, "", True)


def health(good: int, n: int) -> Verdict:
    """Every seed must train."""
    return Verdict(REPRODUCED if good == n else NOT, "", n < MIN_SEEDS)


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
