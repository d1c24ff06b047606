"""Dead runs: reported early, in one sentence with the evidence, and never on a run that is merely young or slow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lpwm.train.run_config import HealthConfig

_DEAD_UNITS = 0.5  # a larger share of them is told
_TERMS = ("loss", "prediction", "regularizer", "temporal_jaccard", "rollout", "code_rms")
# A model that predicts is held to this multiple of min_sensitivity. One that does not ignores the actions as well: a
# slow run at 224² has 0.003 to 0.009, one with shuffled actions 0.003 to 0.010 (tests/golden/health_logs.json).
_PREDICTING = 5.0


@dataclass(frozen=True)
class _Sign:
    """A monitor beyond its limit, and the end of the sentence about it. A run that is merely slow is not stopped."""

    kind: str
    monitor: str
    limit: float | str  # a number, or another monitor
    what: str
    remedy: str
    above: bool = False

    @property
    def fatal(self) -> bool:
        return self.kind != "slow"

    def seen(self, record: Mapping[str, float]) -> bool:
        value, limit = record.get(self.monitor, math.nan), self._limit(record)
        if not math.isfinite(value):  # not measured here; non-finite codes have their own sentence
            return False
        return value > limit if self.above else value < limit

    def _limit(self, record: Mapping[str, float]) -> float:
        return record.get(self.limit, math.nan) if isinstance(self.limit, str) else self.limit

    def evidence(self, record: Mapping[str, float]) -> str:
        """What the monitor means, its value and its limit."""
        copy, side = record.get("copy_error", math.nan), "above" if self.above else "below"
        told = self.monitor.endswith("error") and self.limit != "copy_error" and math.isfinite(copy)
        copying = f" where copying the last frame scores {copy:.3g}" if told else ""
        return f"{self.what} {record[self.monitor]:.3g}{copying}, {side} {self._limit(record):.3g}"


def _signs(c: HealthConfig, freedom: int) -> tuple[_Sign, ...]:
    """In order of precedence: a collapsed code is also constant in time, and a constant code makes actions idle."""
    more = "raise objective.lam, or objective.rdmreg.mu where it is below 0, or lower the learning rate"
    moving = (
        "check that the data move and that clips differ in more than what moves, use a larger frameskip, or lower "
        "objective.lam"
    )
    paired = "check that actions and frames of the data belong together, or raise the learning rate"
    patient = "it may need more steps, a smaller objective.lam, another learning rate, or other model.encoder.pixels"
    constant = "the codes hardly differ between the frames of a clip, with a temporal variation of"
    blind = "predictions ignore the actions: foreign ones move them by a sensitivity of"
    same = "all frames have the same code, with a standard deviation of"
    flat = "the codes use an effective dimension of only"
    wrong = "predictions miss the codes with a relative error of"
    lost = "predictions were better than copying and are worse than none, with a relative error of"
    steady = "lower the learning rate, or train in float32"
    copied = "predictions are worse than copying the last frame (copy_error): their relative error is"
    silent = "many units are never active (dead_units), so that the code is narrower than it looks: a share of"
    awake = "raise objective.rdmreg.mu, lower objective.lam or the learning rate, or use a smaller model.latent"
    return (
        _Sign("collapsed", "code_rms", c.min_std, "the codes have shrunk to zero, with an RMS of", more),
        _Sign("collapsed", "code_std", c.min_std, same, more),
        _Sign("collapsed", "effective_dimension", c.min_dimension, flat, more),
        _Sign("time-constant", "temporal_variation", c.min_variation, constant, moving),
        _Sign("action-blind", "predicting_sensitivity", _PREDICTING * c.min_sensitivity, blind, paired),
        _Sign("broken", "lost_error", 1.0, lost, steady, above=True),
        _Sign("slow", "relative_error", c.max_relative_error, wrong, patient, above=True),
        _Sign("slow", "effective_dimension", freedom, flat, more),
        _Sign("slow", "relative_error", "copy_error", copied, patient, above=True),
        _Sign("slow", "dead_units", _DEAD_UNITS, silent, awake, above=True),
    )


def concerns(record: Mapping[str, float], config: HealthConfig, freedom: int = 0) -> list[str]:
    """One line for each monitor of a log point that looks bad: what it means, and what helps."""
    record = Health(config)._derived(record)
    return [f"{sign.evidence(record)}; {sign.remedy}." for sign in _signs(config, freedom) if sign.seen(record)]


@dataclass(frozen=True)
class Verdict:
    """One sentence about a run, and whether it says that the run cannot become a world model."""

    sentence: str
    dead: bool


class Health:
    """Watches the records of one run. Not finite: reported at once. Everything else: after the grace period, when
    `patience` log points in a row agree.

    freedom: the world's degrees of freedom. PushT's codes stay below its 4 for thousands of steps and plan in the end,
    so that is a warning.
    """

    def __init__(self, config: HealthConfig | None = None, freedom: int = 0) -> None:
        self.config = config or HealthConfig()
        self._since: dict[_Sign, list[int]] = {sign: [] for sign in _signs(self.config, freedom)}
        self._learned = False  # whether an error was ever below a third of copying's
        self._finite = ""  # the last finite loss, in words
        self._broken = False

    def check(self, step: int, steps: int, record: Mapping[str, float]) -> Verdict | None:
        """The verdict, once for each spell of a sign; None while there is nothing (new) to say. `record`: the numbers
        of a training log point, `step` of `steps`. Monitors that are missing are not judged."""
        before, verdict = self._broken, self._not_finite(step, record)
        self._broken = verdict is not None
        if verdict is not None:
            return None if before else verdict
        record = self._derived(record)
        if step <= self.config.judged_after(steps):
            return None
        for sign, since in self._since.items():
            if not sign.seen(record):
                since.clear()
                continue
            since.append(step)
            if verdict is None and len(since) == self.config.patience:
                verdict = self._sentence(sign, record, since[0], step, steps)
        return verdict

    def _derived(self, record: Mapping[str, float]) -> Mapping[str, float]:
        """With the sensitivity of a model that predicts, and the error of one that once did."""
        error, out = record.get("relative_error", 0.0), dict(record)
        self._learned |= error < record.get("copy_error", 0.0) / 3
        if "action_sensitivity" in record and error <= self.config.max_relative_error:
            out["predicting_sensitivity"] = record["action_sensitivity"]
        if self._learned:
            out["lost_error"] = error
        return out

    def _not_finite(self, step: int, record: Mapping[str, float]) -> Verdict | None:
        bad = [name for name in _TERMS if not math.isfinite(record.get(name, 0.0))]
        if not bad:
            if "loss" in record:
                self._finite = f" (the last finite loss was {record['loss']:.3g}, at step {step})"
            return None
        known = {"code_rms": "the codes", "loss": "the loss"}
        names = ", ".join(known.get(name, "the term " + name.replace("_", " ")) for name in bad)
        sentence = (
            f"this run is dead (non-finite): at step {step} {names} {'is' if len(bad) == 1 else 'are'} not finite"
            f"{self._finite}; lower the learning rate, clip gradients, warm up longer, or train in float32."
        )
        return Verdict(sentence, dead=True)

    def _sentence(self, sign: _Sign, record: Mapping[str, float], first: int, step: int, steps: int) -> Verdict:
        when = f"steps {first} to {step} of {steps}" if first < step else f"step {step} of {steps}"
        kind = f"is dead ({sign.kind})" if sign.fatal else "learns slowly"
        sentence = (
            f"this run {kind}: {sign.evidence(record)} at {self.config.patience} log points in a row ({when}); "
            f"{sign.remedy}."
        )
        return Verdict(sentence, sign.fatal)
