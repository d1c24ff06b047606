"""Dead runs are named with their evidence; young, noisy and healthy ones are left alone."""

import json
import math
import re
from pathlib import Path

import pytest

from lpwm.train.health import Health, HealthConfig, concerns

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


def run(health, records, steps=STEPS):
    """What is said, and at which step, for a log point every EVERY steps."""
    said = []
    for i, record in enumerate(records, start=1):
        if verdict := health.check(i * EVERY, steps, record):
            said.append((i * EVERY, verdict.sentence))
            assert verdict.dead == ("dead (" in verdict.sentence)
    return said


@pytest.mark.parametrize("kind,monitor,value,evidence,limit", DEATHS)
def test_each_death_is_named_once_with_its_evidence(kind, monitor, value, evidence, limit):
    config = HealthConfig()
    said = run(Health(config), [HEALTHY | {monitor: value}] * (STEPS // EVERY))
    assert len(said) == 1
    step, sentence = said[0]
    # Judged from the first log point after the grace period (a tenth of the run), told at the fifth.
    assert step == STEPS * config.grace + config.patience * EVERY
    assert f"dead ({kind})" in sentence and evidence in sentence and limit in sentence
    assert f"steps {step - 4 * EVERY} to {step} of {STEPS}" in sentence
    assert sentence.endswith(".") and sentence.count(". ") == 0 and ";" in sentence  # one sentence, with a remedy


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"relative_error": 0.3, "copy_error": 0.2}, "worse than copying the last frame .* 0.3, above 0.2"),
        ({"relative_error": 0.9, "copy_error": 1.4}, "above 0.5"),
        ({"dead_units": 0.75}, "never active .* a share of 0.75, above 0.5"),
        ({"effective_dimension": 3.0}, "effective dimension of only 3, below 4"),
        ({"action_sensitivity": 0.001}, "predictions ignore the actions"),
    ],
)
def test_what_looks_bad_is_said_in_words_with_a_remedy(bad, words):
    (line,) = concerns(HEALTHY | bad, HealthConfig(), freedom=4)
    assert re.search(words, line) and ";" in line and "\n" not in line and line.endswith(".")
    ((_, sentence),) = run(Health(freedom=4), [HEALTHY | bad] * 100)
    assert re.search(words, sentence)
    assert concerns(HEALTHY, HealthConfig(), freedom=4) == []


@pytest.mark.parametrize("name", ["loss", "regularizer", "code_rms"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite_is_told_at_once_even_in_the_grace_period(name, value):
    records = [HEALTHY, HEALTHY | {name: value}, HEALTHY | {name: value}]
    said = run(Health(), records)
    assert [step for step, _ in said] == [2 * EVERY]
    assert "non-finite" in said[0][1] and "step 100" in said[0][1]
    assert "last finite loss was 0.08, at step 50" in said[0][1] and "learning rate" in said[0][1]


def test_the_deepest_cause_is_named_first():
    """A collapsed code is constant in time and insensitive too; the sentence is about the collapse."""
    everything = {monitor: value for _, monitor, value, *_ in DEATHS}
    said = run(Health(), [HEALTHY | everything] * 100)
    assert len(said) == 1 and "RMS" in said[0][1]
    del everything["code_rms"], everything["code_std"], everything["effective_dimension"]
    assert "time-constant" in run(Health(), [HEALTHY | everything] * 100)[0][1]


def test_young_runs_are_left_alone():
    """AdaLN-zero starts action-blind, any code starts low-dimensional; short runs are never judged."""
    newborn = HEALTHY | {"action_sensitivity": 0.0, "effective_dimension": 1.2, "code_std": 0.001}
    grace = int(0.1 * STEPS / EVERY)
    assert not run(Health(), [newborn] * grace + [HEALTHY] * 100)
    assert not run(Health(), [newborn] * 10, steps=500)
    assert run(Health(HealthConfig(min_steps=0)), [newborn] * 10, steps=500)


def test_agreement_must_be_consecutive():
    bad = HEALTHY | {"effective_dimension": 1.5}
    assert not run(Health(), ([bad] * 4 + [HEALTHY]) * 40)
    assert len(run(Health(), [HEALTHY] * 40 + [bad] * 5)) == 1
    # Different signs do not add up.
    other = HEALTHY | {"action_sensitivity": 0.0}
    assert not run(Health(), [bad, other] * 100)
    # A run that recovers and dies again is told of again.
    assert len(run(Health(), [HEALTHY] * 40 + [bad] * 9 + [HEALTHY] + [bad] * 9)) == 2


def test_what_is_not_measured_is_not_judged():
    assert not run(Health(), [{"loss": 0.1}] * 200)
    unknown = HEALTHY | {"action_sensitivity": math.nan, "effective_dimension": math.nan}
    assert not run(Health(), [unknown] * 200)


def test_what_predicted_once_and_is_worse_than_nothing_is_dead():
    bad = HEALTHY | {"relative_error": 1.5, "copy_error": 1.4}
    (step, sentence), *_ = run(Health(), [HEALTHY] * 40 + [bad] * 10)
    assert "dead (broken)" in sentence and "copying the last frame scores 1.4" in sentence and "above 1" in sentence
    assert step == (40 + HealthConfig().patience) * EVERY
    # One that never learned is slow, and so is one whose error is below 1.
    assert all("learns slowly" in s for _, s in run(Health(), [bad] * 60))
    assert all("learns slowly" in s for _, s in run(Health(), [HEALTHY] * 40 + [bad | {"relative_error": 0.9}] * 10))
    # To have predicted is to have had a third of the error of copying.
    nearly, barely = (HEALTHY | {"relative_error": share, "copy_error": 1.0} for share in (0.34, 0.33))
    assert all("learns slowly" in s for _, s in run(Health(), [nearly] * 40 + [bad] * 10))
    assert "dead (broken)" in run(Health(), [barely] * 40 + [bad] * 10)[0][1]


def test_a_model_that_does_not_predict_yet_may_ignore_the_actions():
    blind = HEALTHY | {"action_sensitivity": 0.008}
    assert "dead (action-blind)" in run(Health(), [blind] * 60)[0][1]
    assert all("learns slowly" in s for _, s in run(Health(), [blind | {"relative_error": 0.9}] * 60))


LOGS = json.loads((Path(__file__).parents[1] / "golden" / "health_logs.json").read_text())["logs"]


def told(log):
    """What is said about a run, and at which step."""
    health, out = Health(freedom=log["degrees_of_freedom"]), []
    for i, step in enumerate(log["step"]):
        values = {name: curve[i] for name, curve in log["monitors"].items()}
        record = {name: math.nan if x is None else x for name, x in values.items()}
        if verdict := health.check(step, log["steps"], record):
            out.append((step, verdict))
    return out


def labeled(label):
    chosen = [log for log in LOGS if log["label"] == label]
    return pytest.mark.parametrize("log", chosen, ids=[f"{log['name']} {log['steps']}" for log in chosen])


@labeled("healthy")
def test_a_healthy_run_is_never_stopped(log):
    verdicts = told(log)
    assert not any(v.dead for _, v in verdicts), verdicts
    # For thousands of steps PushT's codes have fewer dimensions than the world: that is told, and true.
    assert not verdicts or log["degrees_of_freedom"] == 4


@labeled("slow")
def test_a_slow_run_is_warned_about_and_goes_on(log):
    verdicts = told(log)
    assert verdicts and not any(v.dead for _, v in verdicts), verdicts
    assert all("slowly" in v.sentence or "dimension" in v.sentence for _, v in verdicts)


@labeled("dead")
def test_a_dead_run_is_caught(log):
    assert any(v.dead for _, v in told(log))


def test_the_run_that_broke_is_told_within_a_few_hundred_steps():
    (log,) = [log for log in LOGS if log["label"] == "dead" and log["size"] == "224²"]
    ((step, verdict),) = [(s, v) for s, v in told(log) if v.dead]
    assert 3150 < step <= 3800 and "dead (broken)" in verdict.sentence and "learning rate" in verdict.sentence
