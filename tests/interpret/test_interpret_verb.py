"""`lpwm interpret` on run folders with fresh weights, which no test needs to be good."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from lpwm.interpret import study

SMALL = ["--resolution", "6", "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(root, fresh_run):
    return [str(fresh_run(root, name, link, episodes=30)) for name, link in (("lewm", "identity"), ("lpwm", "reprelu"))]


def test_sparse_next_to_dense_in_a_table_with_a_json_and_pictures(runs, tmp_path, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out, pictures = tmp_path / "deep" / "found.json", tmp_path / "pictures"
    status, text, err = call(*runs, *SMALL, "--cell", 1, 4, "--out", out, "--pictures", pictures)
    assert status == 0 and err.count("wrote ") == 9
    head = text.splitlines()[2]
    assert head.index("lpwm") < head.index("lewm") < head.index("sparse − dense")  # whatever order was given
    assert "piecewise 2×2, zones hidden; 6² cells;\n45 held-out frames of 9 trajectories" in text
    assert "mean Jaccard index of cell 1 4" in text and "1 (its own)" in text
    result = json.loads(out.read_text())
    assert [s["run"]["sparse"] for s in result["studies"]] == [True, False]
    assert [(r["row"], r["col"]) for r in result["studies"][0]["grid"]["references"]] == [(1, 4)]
    assert result["comparison"]["methods"][0]["sparse"]
    assert {p.suffix for p in pictures.iterdir()} == {".png", ".pdf"}


def test_json_on_stdout_with_zones_drawn(runs, call):
    status, out, _ = call(runs[1], *SMALL, "--visible", "--json")
    result = json.loads(out)
    kept = list(Path(runs[1]).glob("interpret/*.json"))
    assert [json.loads(k.read_text()) for k in kept] == [result]  # where lpwm report finds it
    assert status == 0 and result["studies"][0]["world"]["options"]["visible"] is True
    status, out, _ = call(runs[1], *SMALL, "--visible")
    assert status == 0 and "zones visible (not as in training)" in out
    status, out, _ = call(runs[1], *SMALL, "--hidden")
    assert status == 0 and "zones hidden;" in out


def test_an_interruption_keeps_the_runs_that_were_read(runs, root, fresh_run, tmp_path, call, monkeypatch):
    """SIGTERM in the second of three: the first is in the file, and the same command does not read it again."""
    out, third, read = tmp_path / "found.json", str(fresh_run(root, "third", "relu", episodes=30)), []

    def stopping(one, config):
        if len(read) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        read.append(one.path)
        return study(one, config)

    monkeypatch.setattr("lpwm.interpret.study", stopping)
    status, _, err = call(*runs, third, *SMALL, "--out", out)
    assert status == 130 and "1 of 3: " in err and "1 of 3 runs were inspected: they are in" in err
    result = json.loads(out.read_text())
    assert [s["run"]["name"] for s in result["studies"]] == [Path(runs[0]).name]
    assert result["missing"] == [Path(runs[1]).name, Path(third).name] and result["comparison"]
    read[:] = ["not the second call's first"] * 2
    status, _, err = call(*runs, third, *SMALL, "--out", out)
    assert status == 0 and [Path(p) for p in read[2:]] == [Path(runs[1]), Path(third)] and "3 of 3: " in err
    again = json.loads(out.read_text())
    assert result["studies"][0] in again["studies"] and len(again["studies"]) == 3 and "missing" not in again
    assert call(*runs, third, *SMALL, "--out", out)[0] == 0 and len(read) == 2 + 2 + 3  # anew


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "at least one run folder"),
        (["nowhere"], "does not exist"),
        (["RUN", "RUN"], "given twice"),
        (["RUN", "--visible", "--hidden"], "not both"),
        (["RUN", "--resolution", "3"], "too coarse or too fine"),
        (["RUN", "--resolution", "6", "--cell", "0", "6"], "there is no cell 0 6"),
        (["RUN", "--resolution", "6", "--folds", "20"], "only 9 held-out trajectories are there"),
        (["RUN", "--folds", "1"], "at least 2 folds"),
        (["RUN", "--frames", "0"], "at least 1 frame"),
        (["WALL", "--what", "zones"], "has no zones"),
        (["WALL", "--resolution", "6"], "--resolution is about zones: leave it out with --what factors"),
        (["RUN", "--device", "tpu9"], "device"),
    ],
)
def test_mistakes_are_one_sentence(runs, root, fresh_run, call, argv, words):
    wall = fresh_run(root, "wall", world="wall", episodes=30) if "WALL" in argv else ""
    status, out, err = call(*[{"RUN": runs[1], "WALL": wall}.get(a, a) for a in argv])
    assert status == 2 and words in err and err.startswith("lpwm: ") and out == ""


def test_a_folder_that_cannot_be_written_to_is_one_sentence(runs, tmp_path, call):
    file = tmp_path / "file"
    file.write_text("")
    status, _, err = call(runs[1], *SMALL, "--pictures", file)
    assert status == 2 and "is a file, not a folder" in err
