"""The rules by which a claim is called reproduced or not. Nothing here knows where the numbers come from."""

from __future__ import annotations

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
    why: str = ""  # what a reader should know beside it
    exploratory: bool = False

    def text(self) -> str:
        marks = [m for m in (self.why, "exploratory" if self.exploratory else "") if m]
        return f"**{self.verdict}**" + (f" ({'; '.join(marks)})" if marks else "")


def judge(claim: Claim, found: Interval, seeds: int, detectable: float | None = None) -> Verdict:
    """`detectable`: the smallest effect seen with 80 % power, in the unit of the estimate."""
    few = seeds < MIN_SEEDS
    paired = claim.kind in ("difference", "parity")
    if paired and seeds < 2:
        return Verdict(INCONCLUSIVE, f"{seeds or 'no'} shared seed: no interval over seeds", True)
    if claim.kind == "difference":
        verdict = _difference(found, claim.low)
    elif claim.kind == "parity":
        verdict = _within(found, claim.low, claim.high)
    elif claim.kind == "ceiling":
        verdict = _ceiling(found, claim.high)
    else:
        verdict = _level(found, claim.low, claim.high)
    why = verdict.why
    if verdict.verdict == INCONCLUSIVE and detectable is not None:
        why = f"smallest effect seen with 80 % power: {scaled(claim, detectable)}"
    return Verdict(verdict.verdict, why, few)


def _difference(found: Interval, smallest: float) -> Verdict:
    if found.low > 0:
        return Verdict(REPRODUCED, "smaller than the paper's" if found.high < smallest else "")
    if found.high < 0:
        return Verdict(NOT, "the other way round")
    if smallest > 0 and found.high < smallest:
        return Verdict(NOT, "the paper's smallest difference is left out")
    return Verdict(INCONCLUSIVE)


def _within(found: Interval, low: float, high: float) -> Verdict:
    if low <= found.low and found.high <= high:
        return Verdict(REPRODUCED)
    return Verdict(NOT) if found.low > high or found.high < low else Verdict(INCONCLUSIVE)


def _ceiling(found: Interval, high: float) -> Verdict:
    if found.high <= high:
        return Verdict(REPRODUCED)
    return Verdict(NOT) if found.low > high else Verdict(INCONCLUSIVE)


def _level(found: Interval, low: float, high: float) -> Verdict:
    slack = 1e-9  # a bound that is met to the last digit is met
    if found.low > high + slack:
        return Verdict(NOT, "above")
    return Verdict(NOT, "below") if found.high < low - slack else Verdict(REPRODUCED)


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
    names = (claim.reads.quantity, claim.reads.versus)
    return any(q.startswith(("position", "correlation", "active")) for q in names)


def scaled(claim: Claim, value: float, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if plain_unit(claim):
        return f"{value:{sign}.3f}"
    return f"{100 * value:{sign}.1f} points" if claim.kind in ("difference", "parity") else f"{100 * value:.1f} %"


def interval_text(claim: Claim, found: Interval) -> str:
    """`+12.0 [3.1, 20.9] points`, `62.0 % [51.0, 72.4]`, `0.412 [0.401, 0.423]`."""
    signed = "+" if claim.kind in ("difference", "parity") else ""
    if plain_unit(claim):
        return f"{found.estimate:{signed}.3f} [{found.low:{signed}.3f}, {found.high:{signed}.3f}]"
    e, low, high = (round(100 * x, 1) + 0.0 for x in (found.estimate, found.low, found.high))
    unit = " points" if signed else " %"
    return f"{e:{signed}.1f} [{low:{signed}.1f}, {high:{signed}.1f}]{unit}"
