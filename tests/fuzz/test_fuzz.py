"""A few cases of every target here, 2,000 in the soak step; `make fuzz` runs 10,000."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzz_harness", Path(__file__).parent / "fuzz_harness.py")
harness = importlib.util.module_from_spec(spec)
sys.modules["fuzz_harness"] = harness
spec.loader.exec_module(harness)
TARGETS = harness.load_targets()
SOAK = 2000


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_is_read_as_it_was_or_refused_in_one_sentence(name):
    report = harness.fuzz(name, 20)
    assert report.cases == 20 and not report.problems, report.problems


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_files(name):
    report = harness.fuzz(name, -(-SOAK // len(TARGETS)), seed=1)
    assert not report.problems, report.problems
    assert report.memory < harness.MEMORY and report.slowest < harness.SECONDS


def test_the_harness_sees_each_fault(monkeypatch):
    """A reader that raises, one that accepts what it should not, one that dies and one that hangs."""
    monkeypatch.setattr(harness, "SECONDS", 0.5)
    make = lambda folder: (folder / "a.json").write_text('{"a": [1, 2], "b": {"c": "d"}}')  # noqa: E731

    def read(fault):
        def reader(folder):
            text = (folder / "a.json").read_text(errors="replace")
            if text == '{"a": [1, 2], "b": {"c": "d"}}':
                return "sound"
            return {"raise": lambda: 1 / 0, "accept": lambda: text, "die": sys.exit, "hang": lambda: time.sleep(9)}[
                fault
            ]()

        return reader

    for fault, said in (("raise", "ZeroDivisionError"), ("accept", "wrong"), ("die", "dies"), ("hang", "hangs")):
        monkeypatch.setitem(TARGETS, "faulty", harness.Target("faulty", make, read(fault), ("*.json",), sealed=True))
        report = harness.fuzz("faulty", 3)
        assert len(report.problems) == 3 and all(said in p for p in report.problems), report.problems


def test_changes_are_many_and_repeat():
    text = json.dumps({"a": [1, 2.5, {"b": None}], "c": "text", "d": {"e": True}})
    made = [harness.change_json(text, random.Random(i)) for i in range(200)]
    assert made == [harness.change_json(text, random.Random(i)) for i in range(200)] and len(set(made)) > 100
    for how in harness.BYTES:
        data = bytearray(range(200))
        how(data, random.Random(0))
        assert data != bytearray(range(200)), how
