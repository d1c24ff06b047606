"""The scripts of this folder can be started, and what they print and pack is what the files say."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

RESULTS = Path(__file__).parents[1]
SCRIPTS = sorted(RESULTS.glob("*.py"))


def run(name, monkeypatch, *words):
    monkeypatch.syspath_prepend(str(RESULTS))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
    return runpy.run_path(str(RESULTS / f"{name}.py"), run_name="__main__" if words else name)


@pytest.mark.parametrize("name", [p.stem for p in SCRIPTS if p.stem != "compare_along"])
def test_a_script_explains_itself(name, monkeypatch, capsys):
    with pytest.raises(SystemExit) as left:
        run(name, monkeypatch, "--help")
    assert left.value.code == 0 and "usage" in capsys.readouterr().out


def test_the_seventh_round_is_what_the_notes_say(monkeypatch, capsys):
    run("compare_along", monkeypatch, RESULTS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and "lpwm: along 1 − along 0: +51.4 [45.5, 57.3], 92.5 against 41.1 %" in lines[0]


def test_curves_are_packed_as_the_page_reads_them(tmp_path, monkeypatch):
    from results.tool.read import read_results

    monitors = ("relative_error", "copy_error", "effective_dimension", "active_fraction")
    train = dict.fromkeys((*monitors, "loss", "action_sensitivity", "dead_units"), 0.5)
    folder = tmp_path / "tiny-lpwm-abc"
    folder.mkdir()
    config = {"train": {"seed": 3}, "objective": {"lam": 1.0}, "optim": {"lr": 0.1}}
    (folder / "run.json").write_text(json.dumps({"config": config}))
    (folder / "training.json").write_text(json.dumps([{"seconds": 6.0, "device": "cpu"}]))
    rows = [{"kind": "train", "step": s, **train} for s in range(100)]
    rows.append({"kind": "val", "step": 99, "error_depth": [0.1], "copy_error_depth": [0.4]})
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run("pack_curves", monkeypatch, tmp_path / "curves.json", folder)
    (one,) = read_results(tmp_path).curves["curves.json"]["runs"]
    assert (one["recipe"], one["seed"], one["last_step"]) == ("tiny/lpwm", 3, 99) and len(one["curves"]["step"]) == 50


def test_the_pair_collects_what_its_runs_look_for(monkeypatch, tmp_path):
    """Nothing is drawn twice: the data stage and lpwm train name the same data set, and the controls the same cells."""
    import tyro

    from lpwm.cli.eval import Args, settings
    from lpwm.cli.train import parse

    pair = SimpleNamespace(**run("cube_pair", monkeypatch))
    monkeypatch.setattr(sys, "argv", ["cube_pair.py", str(tmp_path), "--episodes", "320", "--steps", "700"])
    args = pair.parse()
    for method, weight in pair.WEIGHTS.items():
        config = parse([f"{args.recipe}/{method}", *pair.overrides(args), "--train.steps", str(args.steps)])[1].run
        assert config.data == pair.data_config(args) and config.data.episodes == 320 and config.data.frames == 112
        assert config.objective.tj_weight == weight and config.objective.lam == 10 and config.train.steps == 700
    result = settings(tyro.cli(Args, args=pair.eval_options(args)))
    assert (result.goals, result.budgets, result.pairs()) == (("dataset",), (50,), [(5, 5)])
    assert result.controls == ("nothing", "random", "oracle") and result.episodes == 50


def test_a_lead_that_goes_with_the_error_vanishes_at_equal_error(monkeypatch):
    """Success falls by 10 points per doubling of the error and by nothing else; sparse errors are half as large."""
    lines = run("open_loop", monkeypatch)["lines"]
    runs, rows = [], []
    for name, base in (("x-lpwm", 0.01), ("x-lewm", 0.02)):
        errors = [base * 2 ** (s / 2) for s in range(4)]
        runs += [{"method": name, "seed": s, "monitors": {"error_depth": [1, e]}} for s, e in enumerate(errors)]
        held = [
            [[1] * (50 - 5 * s - 10 * (name == "x-lewm")) + [0] * (50 + 5 * s + 10 * (name == "x-lewm"))]
            for s in range(4)
        ]
        budget = {"50": {"success": {"terminal": held}}}
        rows.append({"name": name, "control": False, "seeds": [0, 1, 2, 3], "budgets": budget})
    document = {"runs": runs, "cells": [{"goals": "random", "horizon": 5, "receding": 5, "rows": rows}]}
    text, count = lines(document, 2)
    assert "sparse − dense +10.0" in text and "per doubling of the error -10.0" in text and "8 checkpoints" in count
    equal = float(text.partition("at equal error at depth 2 ")[2].split()[0])
    assert abs(equal) < 1e-6

    runs.append({"method": "x-lpwm", "seed": 4, "monitors": {"error_depth": [None, None]}})
    rows[0]["seeds"].append(4)
    rows[0]["budgets"]["50"]["success"]["terminal"].append([[0] * 100])
    assert lines(document, 2) == ["x-lpwm, seed 4: collapsed, left out", text, count]
