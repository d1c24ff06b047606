"""Dead runs: reported early, in one sentence with the evidence, and never on a run that is merely young or slow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lpwm.train.config import HealthConfig

_TERMS = ("loss", "prediction", "regularizer", "temporal_jaccard", "rollout", "code_rms")


@dataclass(frozen=True)
class _Sign:
    """One sign of death: a monitor beyond its limit, and the end of the sentence about it."""

    kind: str
    monitor: str
    limit: float
    what: str
    remedy: str

    @property
    def fatal(self) -> bool:
        """A run that is merely slow has an error above its limit; every other sign is a monitor below it."""
        return self.kind != "slow"

    def seen(self, record: Mapping[str, float]) -> bool:
        value = record.get(self.monitor)
        if value is None or not math.isfinite(value):  # not measured here; non-finite codes have their own sentence
            return False
        return value < self.limit if self.fatal else value > self.limit


def _signs(c: HealthConfig) -> tuple[_Sign, ...]:
    """In order of precedence: a collapsed code is also constant in time, and a constant code makes actions idle."""
    more = "raise the regularizer's weight (objective.lam) or lower the learning rate"
    moving = (
        "check that the data move and that clips differ in more than what moves, use a larger frameskip, or lower "
        "objective.lam"
    )
    paired = "check that actions and frames of the data belong together, or raise the learning rate"
    patient = (
        "it may need more steps, a smaller objective.lam, another learning rate, or other pixels (model.encoder.pixels)"
    )
    constant = "the codes hardly differ between the frames of a clip, with a temporal variation of"
    blind = "predictions ignore the actions: foreign ones move them by a sensitivity of"
    same = "all frames have the same code, with a standard deviation of"
    flat = "the codes use an effective dimension of only"
    wrong = "predictions miss the codes with a relative error of"
    return (
        _Sign("collapsed", "code_rms", c.min_std, "the codes have shrunk to zero, with an RMS of", more),
        _Sign("collapsed", "code_std", c.min_std, same, more),
        _Sign("collapsed", "effective_dimension", c.min_dimension, flat, more),
        _Sign("time-constant", "temporal_variation", c.min_variation, constant, moving),
        _Sign("action-blind", "action_sensitivity", c.min_sensitivity, blind, paired),
        _Sign("slow", "relative_error", c.max_relative_error, wrong, patient),
    )


@dataclass(frozen=True)
class Verdict:
    """One sentence about a run, and whether it says that the run cannot become a world model."""

    sentence: str
    dead: bool


class Health:
    """Watches the records of one run. Not finite: reported at once. Everything else: after the grace period, when
    `patience` log points in a row agree."""

    def __init__(self, config: HealthConfig | None = None) -> None:
        self.config = config or HealthConfig()
        self._signs = _signs(self.config)
        self._since: dict[_Sign, list[int]] = {sign: [] for sign in self._signs}
        self._finite = ""  # the last finite loss, in words
        self._broken = False

    def check(self, step: int, steps: int, record: Mapping[str, float]) -> Verdict | None:
        """The verdict, once for each spell of a sign; None while there is nothing (new) to say.

        `record`: the numbers of a training log point, `step` of `steps`. Monitors that are missing are not judged.
        """
        broken = self._not_finite(step, record)
        if broken is not None or self._broken:
            return broken
        if step <= self.config.judged_after(steps):
            return None
        verdict = None
        for sign in self._signs:
            since = self._since[sign]
            if not sign.seen(record):
                since.clear()
                continue
            since.append(step)
            if verdict is None and len(since) == self.config.patience:
                verdict = self._sentence(sign, record, since[0], step, steps)
        return verdict

    def _not_finite(self, step: int, record: Mapping[str, float]) -> Verdict | None:
        bad = [name for name in _TERMS if name in record and not math.isfinite(record[name])]
        if not bad:
            self._broken = False
            if "loss" in record:
                self._finite = f" (the last finite loss was {record['loss']:.3g}, at step {step})"
            return None
        if self._broken:
            return None
        self._broken = True
        names = ", ".join(_words(name) for name in bad)
        sentence = (
            f"this run is dead (non-finite): at step {step} {names} {'is' if len(bad) == 1 else 'are'} not finite"
            f"{self._finite}; lower the learning rate, clip gradients, warm up longer, or train in float32."
        )
        return Verdict(sentence, dead=True)

    def _sentence(self, sign: _Sign, record: Mapping[str, float], first: int, step: int, steps: int) -> Verdict:
        when = f"steps {first} to {step} of {steps}" if first < step else f"step {step} of {steps}"
        side = "below" if sign.fatal else "above"
        copying = ""
        if sign.monitor == "relative_error" and math.isfinite(record.get("copy_error", math.nan)):
            copying = f" where copying the last frame scores {record['copy_error']:.3g}"
        kind = f"is dead ({sign.kind})" if sign.fatal else "learns slowly"
        sentence = (
            f"this run {kind}: {sign.what} {record[sign.monitor]:.3g}{copying}, {side} "
            f"{sign.limit:g} at {self.config.patience} log points in a row ({when}); {sign.remedy}."
        )
        return Verdict(sentence, sign.fatal)


def _words(name: str) -> str:
    return {"code_rms": "the codes", "loss": "the loss"}.get(name, "the term " + name.replace("_", " "))
