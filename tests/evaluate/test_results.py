"""Evaluations as files: what 0.1.0 wrote and what is written now come back typed, and a damaged one is one sentence."""

import copy
import json
from pathlib import Path

import pytest

from lpwm.core.errors import UserError
from lpwm.evaluate.results import KIND, Evaluation, differences

RESULTS = Path(__file__).parents[2] / "results"
FILES = sorted(p for p in RESULTS.rglob("*.json") if f'"kind": "{KIND}"' in p.read_text()[:80])
NEW_NAMES = {"image": "image_size", "regulariser": "regularizer", "normalisation": "normalization"}
NEW_NAMES["along"] = "path_discount"


def todays(value):
    """A record of 0.1.0 under the names of today."""
    if isinstance(value, dict):
        return {NEW_NAMES.get(k, k): todays(v) for k, v in value.items()}
    return [todays(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_of_the_first_version_are_read_whole(path):
    evaluation = Evaluation.read(path)
    written = todays(json.loads(path.read_text()))
    again = evaluation.to_json()
    assert again.pop("version") == written.pop("version", 1)
    written["settings"] = {"path_discount": 0.0, "arrive": False} | written["settings"]
    for entry in written["runs"]:  # a consensus has no run folder
        entry.setdefault("events", [])
        entry.setdefault("training", None)
        if entry.get("config"):
            entry["config"]["data"] |= {"camera": "", "cache": ""}  # fields that came later
    for cell in written["cells"]:  # pairs of checkpoints, until 0.2
        for budgets in cell["comparisons"].values():
            for comparison in budgets.values():
                comparison.pop("checkpoints", None)
    for cell in again["cells"]:  # a planner is kept as it was written
        for row in cell["rows"]:
            row["planner"] = todays(row["planner"])
    assert again == written
    assert repr(Evaluation.from_json(evaluation.to_json())) == repr(evaluation)  # NaN of a collapsed run
    assert differences(evaluation, evaluation) == []


def test_a_cell_gives_results_for_statistics():
    evaluation = Evaluation.read(RESULTS / "piecewise-small-dataset-goals.json")
    (cell,) = evaluation.cells
    row = cell.methods[0]
    result = row.result("terminal", cell.budgets[-1], evaluation.episode_sets[cell.goals].ids)
    assert result.rate == pytest.approx(row.at(cell.budgets[-1]).terminal.rate)
    assert result.success_SPE.shape == (len(row.seeds), len(row.planner_seeds), evaluation.settings.episodes)
    run = evaluation.runs[0]
    assert run.config is not None and run.config.model.latent > 0 and run.training is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.pop("settings"), "settings is missing"),
        (lambda r: r["settings"].update(episodes="many"), "settings.episodes = 'many' must be of type int"),
        (lambda r: r["cells"][0].update(rows=[]), "cells[0] has no rows"),
        (lambda r: r["cells"][0]["rows"][1]["budgets"]["50"].pop("latched"), "rows[1].budgets.50.latched is missing"),
        (lambda r: r["runs"][2].update(step=None), "runs[2].step = None must be of type int"),
        (lambda r: r.update(version=99), "is of version 99"),
        (lambda r: r.update(kind="lpwm study"), "its kind is 'lpwm study'"),
        (lambda r: r.update(episode_sets={}), "goals that are not in episode_sets"),
        (lambda r: r.update(cells=None), "cells = None must be a list"),
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_the_field(tmp_path, change, said):
    record = copy.deepcopy(json.loads((RESULTS / "piecewise-small-dataset-goals.json").read_text()))
    change(record)
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(record))
    with pytest.raises(UserError) as error:
        Evaluation.read(path)
    text = str(error.value)
    assert said in text and str(path) in text and "\n" not in text


def test_differences_names_what_differs():
    record = json.loads((RESULTS / "piecewise-small-dataset-goals.json").read_text())
    before = Evaluation.from_json(record)
    success = record["cells"][0]["rows"][0]["budgets"]["50"]["success"]["terminal"]
    success[0][0][0] = 1 - success[0][0][0]
    del record["cells"][0]["rows"][1]
    record["episode_sets"]["dataset"]["digest"] = "other"
    measured = differences(before, Evaluation.from_json(record))
    assert measured[0] == "dataset goals: not the same episodes"
    assert any(line.endswith("50 steps, terminal: 1 of 250 outcomes differ") for line in measured)
    assert sum(line.endswith("not evaluated again") for line in measured) == 2
