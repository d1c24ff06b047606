"""Campaigns are ready before a GPU is: their grids expand, and the script of the paper's size runs at a toy size."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from lpwm.recipes import recipe
from lpwm.sweep import expand, read_grid

ROOT = Path(__file__).parents[2]
CAMPAIGNS = ROOT / "results" / "campaigns"


ONE_METHOD = ("pusht-levers", "pusht-lambda", "pusht-patches")  # look for a model to ship; compare no methods


@pytest.mark.parametrize("path", sorted(CAMPAIGNS.glob("*.toml")), ids=lambda path: path.stem)
def test_both_methods_have_the_same_cells(path):
    cells = [c for c in expand(read_grid(path), recipe) if c.where["method"] in ("lpwm", "lewm")]
    if path.stem in ONE_METHOD:
        assert {c.where["method"] for c in cells} == {"lpwm"}
        return
    places = {
        m: sorted(str({**c.where, "method": ""}) for c in cells if c.where["method"] == m) for m in ("lpwm", "lewm")
    }
    assert places["lpwm"] == places["lewm"] and len(cells) == 2 * len(places["lpwm"])
    assert not any(c.config.train.stop_dead for c in cells)  # a verdict is a result, not an end
    assert f"results/campaigns/{path.name}" in (ROOT / "results" / "protocol.md").read_text()


@pytest.mark.soak
def test_the_script_of_the_papers_size_runs(tmp_path):
    words = ["--quick", "--cells", "white-lam1-lr1e-4-layer-fed3"]
    words += ["--seed", "1", "--data-seed", "2", "--episode-seed", "3"]
    command = [sys.executable, CAMPAIGNS / "piecewise_full.py", *words, "--out", tmp_path, "--work", tmp_path / "work"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for method in ("lpwm", "lewm"):
        (cell,) = json.loads((tmp_path / f"{method}.json").read_text())["cells"].values()
        assert cell["finished"] and (cell["norm"], cell["fed"]) == ("layer", 3)
        assert (
            cell["config"]["objective"]["rollout_steps"] == 3
            and cell["config"]["model"]["projector"]["norm"] == "layer"
        )
        assert len(cell["train_log"]["step"]) == 4 and {"R5 along 0", "R1 along 1"} <= cell["planning"].keys()


def test_a_cell_is_chosen_by_the_rule():
    choose = runpy.run_path(str(CAMPAIGNS / "choose.py"))["own"]
    usual = {"objective.lam": 1.0, "optim.lr": 3e-3}

    def row(lam, lr, held, error, seeds=(1, 2)):
        return {"objective.lam": lam, "optim.lr": lr, "held": held, "error": error, "seeds": list(seeds)}

    best, recipe_like, other = row(3.0, 6e-3, 0.70, 0.02), row(1.0, 6e-3, 0.685, 0.03), row(3.0, 3e-3, 0.685, 0.01)
    far, half = row(1.0, 3e-3, 0.67, 0.01), row(0.3, 1e-3, 0.9, 0.01, seeds=(1,))
    assert choose([best, far, half], usual, 0.02) is best  # the recipe is 3 points behind, half a cell is not chosen
    assert choose([best, recipe_like, other, far], usual, 0.02) is other  # as near as the other one, a lower error
    assert choose([best, far], usual, 0.03) is far  # within the margin, nothing of the recipe is changed


def test_the_model_to_ship_is_chosen_by_what_its_codes_tell():
    """Cells that do not learn are left out; of nearly equal probes the one that holds more goals."""
    choose = runpy.run_path(str(CAMPAIGNS / "pusht_model.py"))["choose"]

    def run(r2, held=0.1, dimension=6.0, error=0.1):
        probes = {name: [r2] for name in ("block_x", "block_y", "angle")}
        evals = {cost: {"held": held} for cost in ("end", "path")}
        return {"train": {"effective_dimension": dimension}, "error": error, "probes": probes, "evals": evals}

    best, near, far = run(0.8), run(0.78, held=0.2), run(0.7, held=0.9)
    thin, slow = run(0.9, dimension=3.0), run(0.9, error=0.4)
    assert choose([best, far, thin, slow]) is best and choose([best, near, far]) is near
    assert choose([thin, run(0.5, dimension=2.0)]) is thin  # none learns
    assert choose([run(-5.0, held=0.3), run(0.0)])["evals"]["end"]["held"] == 0.3  # what is not told counts 0
