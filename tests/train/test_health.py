"""Dead runs are named with their evidence; young, noisy and healthy ones are left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lpwm.core.errors import UserError
from lpwm.train.health import Health, HealthConfig
from lpwm.worlds.pusht.world import PushT

STEPS, EVERY = 10_000, 50
HEALTHY = {
    "loss": 0.08,
    "prediction": 0.01,
    "regularizer": 0.07,
    "relative_error": 0.02,
    "copy_error": 0.25,
    "code_rms": 0.65,
    "code_std": 0.55,
    "effective_dimension": 7.5,
    "temporal_variation": 0.15,
    "action_sensitivity": 1.2,
    "active_fraction": 0.5,
    "dead_units": 0.0,
}
DEATHS = [
    ("collapsed", "code_rms", 0.004, "RMS of 0.004", "below 0.01"),
    ("collapsed", "code_std", 0.0008, "standard deviation of 0.0008", "below 0.01"),
    ("collapsed", "effective_dimension", 1.31, "effective dimension of only 1.31", "below 2"),
    ("time-constant", "temporal_variation", 2e-6, "temporal variation of 2e-06", "below 0.0001"),
    ("action-blind", "action_sensitivity", 0.0, "sensitivity of 0", "below"),
]


def run(health: Health, records: list[dict[str, float]], steps: int = STEPS) -> list[tuple[int, str]]:
    """What is said, and at which step, for a log point every EVERY steps."""
    said = []
    for i, record in enumerate(records, start=1):
        if verdict := health.check(i * EVERY, steps, record):
            said.append((i * EVERY, verdict.sentence))
            assert verdict.dead == ("dead (" in verdict.sentence)
    return said


@pytest.mark.parametrize("kind,monitor,value,evidence,limit", DEATHS)
def test_each_death_is_named_once_with_its_evidence(
    kind: str, monitor: str, value: float, evidence: str, limit: str
) -> None:
    config = HealthConfig()
    said = run(Health(config), [HEALTHY | {monitor: value}] * (STEPS // EVERY))
    assert len(said) == 1
    step, sentence = said[0]
    # Judged from the first log point after the grace period (a tenth of the run), told at the fifth.
    assert step == STEPS * config.grace + config.patience * EVERY
    assert f"dead ({kind})" in sentence and evidence in sentence and limit in sentence
    assert f"steps {step - 4 * EVERY} to {step} of {STEPS}" in sentence
    assert sentence.endswith(".") and sentence.count(". ") == 0 and ";" in sentence  # one sentence, with a remedy


def test_a_large_error_alone_is_a_warning_with_the_copy_predictor_next_to_it() -> None:
    """At the paper's size healthy runs are above 0.5 for thousands of steps (results/, Piecewise at 224 pixels)."""
    health = Health()
    verdicts = [
        health.check(i * EVERY, STEPS, HEALTHY | {"relative_error": 0.9, "copy_error": 0.4}) for i in range(1, 60)
    ]
    (verdict,) = [v for v in verdicts if v]
    assert not verdict.dead and "learns slowly" in verdict.sentence and "above 0.5" in verdict.sentence
    assert "copying the last frame scores 0.4" in verdict.sentence


@pytest.mark.parametrize("name", ["loss", "regularizer", "code_rms"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite_is_told_at_once_even_in_the_grace_period(name: str, value: float) -> None:
    records = [HEALTHY, HEALTHY | {name: value}, HEALTHY | {name: value}]
    said = run(Health(), records)
    assert [step for step, _ in said] == [2 * EVERY]
    assert "non-finite" in said[0][1] and "step 100" in said[0][1]
    assert "last finite loss was 0.08, at step 50" in said[0][1] and "learning rate" in said[0][1]


def test_a_run_that_was_never_finite_is_told_too() -> None:
    ((step, sentence),) = run(Health(), [{"loss": math.nan}] * 3)
    assert step == EVERY and "last finite" not in sentence


def test_the_deepest_cause_is_named_first() -> None:
    """A collapsed code is constant in time and insensitive too; the sentence is about the collapse."""
    everything = {monitor: value for _, monitor, value, *_ in DEATHS}
    said = run(Health(), [HEALTHY | everything] * 100)
    assert len(said) == 1 and "RMS" in said[0][1]
    del everything["code_rms"], everything["code_std"], everything["effective_dimension"]
    assert "time-constant" in run(Health(), [HEALTHY | everything] * 100)[0][1]


def test_young_runs_are_left_alone() -> None:
    """AdaLN-zero starts action-blind, any code starts low-dimensional; short runs are never judged."""
    newborn = HEALTHY | {"action_sensitivity": 0.0, "effective_dimension": 1.2, "code_std": 0.001}
    grace = int(0.1 * STEPS / EVERY)
    assert not run(Health(), [newborn] * grace + [HEALTHY] * 100)
    assert not run(Health(), [newborn] * 10, steps=500)
    assert run(Health(HealthConfig(min_steps=0)), [newborn] * 10, steps=500)


def test_agreement_must_be_consecutive() -> None:
    bad = HEALTHY | {"effective_dimension": 1.5}
    assert not run(Health(), ([bad] * 4 + [HEALTHY]) * 40)
    assert len(run(Health(), [HEALTHY] * 40 + [bad] * 5)) == 1
    # Different signs do not add up.
    other = HEALTHY | {"action_sensitivity": 0.0}
    assert not run(Health(), [bad, other] * 100)
    # A run that recovers and dies again is told of again.
    assert len(run(Health(), [HEALTHY] * 40 + [bad] * 9 + [HEALTHY] + [bad] * 9)) == 2


def test_what_is_not_measured_is_not_judged() -> None:
    assert not run(Health(), [{"loss": 0.1}] * 200)
    unknown = HEALTHY | {"action_sensitivity": math.nan, "effective_dimension": math.nan}
    assert not run(Health(), [unknown] * 200)


def test_noisy_healthy_runs_raise_no_alarm() -> None:
    """Records scattered as widely as small healthy runs scatter (and a little wider), 200 runs of 200 log points."""
    generator = np.random.default_rng(0)
    center = HEALTHY | {"effective_dimension": 7.0, "relative_error": 0.1, "temporal_variation": 0.02}
    for _ in range(200):
        health, growth = Health(), generator.uniform(0.2, 1)
        for i in range(1, STEPS // EVERY + 1):
            noise = {name: value * math.exp(0.4 * generator.normal()) for name, value in center.items()}
            young = max(0.0, 1 - i / (20 * growth))  # an early phase that looks dead
            noise["effective_dimension"] = 1 + (noise["effective_dimension"] - 1) * (1 - young)
            noise["action_sensitivity"] *= 1 - young
            assert health.check(i * EVERY, STEPS, noise) is None


@pytest.mark.parametrize("fields", [{"grace": 1.5}, {"patience": 0}, {"min_dimension": -1.0}, {"min_std": math.nan}])
def test_nonsense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"health.{next(iter(fields))}"):
        HealthConfig(**fields)  # type: ignore[arg-type]


def test_the_strictest_judge_is_allowed() -> None:
    """No grace, no patience: the first log point after the fewest steps tells."""
    health = Health(HealthConfig(grace=0, patience=1, min_steps=0))
    assert health.check(1, STEPS, HEALTHY) is None
    assert "step 2 of" in str(health.check(2, STEPS, HEALTHY | {"action_sensitivity": 0.0}))


def test_min_dimension_is_the_worlds() -> None:
    record = HEALTHY | {"effective_dimension": 3.0}
    assert not run(Health(), [record] * 200)
    assert "below 4" in run(Health(HealthConfig().for_world(PushT.degrees_of_freedom)), [record] * 200)[0][1]
    assert not run(Health(HealthConfig().for_world(1)), [record] * 200)
    assert HealthConfig(min_dimension=1.0).for_world(4).min_dimension == 1.0
