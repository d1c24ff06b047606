"""The demo, reduced: every stage, found again, narrow terminals, interrupts and folders that refuse."""

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from lpwm.cli import demo, main
from lpwm.recipes import dense, tiny
from lpwm.train import Run
from lpwm.train.loop import Interrupted


def reduced(name):
    config = tiny()
    config = replace(
        config, data=replace(config.data, steps=60), train=replace(config.train, steps=20, stop_dead=False)
    )
    return dense(config) if name.endswith("lewm") else config


def reduce_demo(monkeypatch):
    planner = {"samples": 16, "elites": 4, "iterations": 2}
    monkeypatch.setattr(demo, "recipe", reduced)
    monkeypatch.setattr(demo, "PLANNING", replace(demo.PLANNING, episodes=6, options=planner, curve=32))
    monkeypatch.setattr("lpwm.interpret.decode.EPOCHS", 2)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    reduce_demo(monkeypatch)
    monkeypatch.setattr(demo, "aside", lambda *args: nullcontext())  # another process takes seconds to start


def columns(monkeypatch, width):
    monkeypatch.setattr(demo.shutil, "get_terminal_size", lambda default=None: os.terminal_size((width, 24)))


def test_a_table_and_a_page_then_found_again(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "out"
    columns(monkeypatch, 140)
    assert main(["demo", "--out", str(folder)]) == 0
    first = capsys.readouterr()
    for words in ("sparse LpWM", "dense LeWM", "do nothing", "random actions", "oracle", "random goals", "zone"):
        assert words in first.out
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    for room, name in (("evaluate", "evaluate"), ("interpret", "study")):  # a second time nothing is made again
        monkeypatch.setattr(sys.modules[f"lpwm.{room}.{name}"], name, None)
    assert main(["demo", "--out", str(folder)]) == 0
    again = capsys.readouterr()
    assert again.out.splitlines()[:6] == first.out.splitlines()[:6]
    assert "already trained" in again.err
    columns(monkeypatch, 40)
    assert main(["demo", "--out", str(folder)]) == 0
    table = capsys.readouterr().out.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 40 and "sparse LpWM" in table
    assert main(["demo", "--out", str(folder), "--json"]) == 0
    out = capsys.readouterr()
    rows = {r["name"]: r for r in json.loads(out.out)["rows"]}
    assert len(rows) == 5 and not out.err and 0 <= rows["lpwm"]["random"]["latched"]["rate"] <= 1
    monkeypatch.undo()  # with a process for training the second model the numbers are the same
    reduce_demo(monkeypatch)
    aside = demo.aside
    monkeypatch.setattr(demo, "aside", lambda work, *a: aside(work, *a) if work is demo._train else nullcontext())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert main(["demo", "--out", str(tmp_path / "pair"), "--json"]) == 0
    pair = capsys.readouterr()
    assert json.loads(pair.out)["rows"] == list(rows.values()) and not pair.err


@pytest.mark.parametrize(
    ("where", "name", "error", "words"),
    [(Run, "train", Interrupted, "interrupted; the same command continues"), (demo, "plan", KeyboardInterrupt, "")],
)
def test_ctrl_c_while_training_and_elsewhere(tmp_path, capsys, monkeypatch, where, name, error, words):
    def stop(*args, **options):
        raise error

    monkeypatch.setattr(where, name, stop)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 130
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err


def test_fresh_starts_over_but_only_its_own_folder(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["demo", "--out", str(tmp_path), "--fresh"]) == 2
    assert "not made by lpwm demo" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()
