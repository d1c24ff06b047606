"""The target study on toy runs: numbers by hand, kept readings, tables, mistakes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.data import split_episodes
from lpwm.evaluate.config import EvalConfig
from lpwm.losses.distribution import RectifiedGeneralizedGaussian
from lpwm.recipes import dense, tiny
from lpwm.train import Run, load
from results.tool import figures
from results.tool.study import law_distance, study
from results.tool.study_cells import CELLS, MEASURES, TargetCell
from results.tool.study_summary import flat, summary
from results.tool.study_tables import sentences, table, verdict

PLANNING = EvalConfig(
    goals=("random",),
    episodes=2,
    budgets=(10,),
    planner_seeds=1,
    curve=0,
    receding=(1,),
    horizons=(2,),
    options={"samples": 8, "elites": 2, "iterations": 1},
)
CHOSEN = (TargetCell(1.0, 0.0, 0.0), TargetCell(1.0, 0.0, 0.25))


def base():
    config = tiny()
    return replace(config, data=replace(config.data, episodes=40, holdout=0.3))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def seen():
    return []


@pytest.fixture(scope="module")
def result(root, seen):
    return study(
        base(),
        root,
        cells=CHOSEN,
        seeds=(0, 1),
        steps=25,
        device="cpu",
        planning=PLANNING,
        frames=60,
        progress=lambda done, of, why: seen.append((done, of)),
    )


@pytest.fixture(scope="module")
def folders(result, root):
    return [next(root.glob(f"*-{r['hash']}")) for r in result["runs"]]


def test_the_study_is_json_and_has_every_cell_and_seed(result, seen):
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert [(r["cell"]["axis_fraction"], r["seed"]) for r in result["runs"]] == [(0, 0), (0, 1), (0.25, 0), (0.25, 1)]
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]  # the controls first
    assert set(result["runs"][0]["measures"]) == set(MEASURES)
    assert set(result["controls"]["random H=2 R=1"]) == {"do nothing", "random actions", "oracle"}
    assert result["base"]["train"]["steps"] == 25
    assert all(r["target"]["active"] == pytest.approx(0.5) for r in result["runs"])
    assert len({r["hash"] for r in result["runs"]}) == 4


def test_the_paper_s_grid():
    assert len(CELLS) == 18 and {(c.p, c.mu) for c in CELLS} == {(p, m) for p in (0.5, 1, 2) for m in (0, -1, -2)}
    made = TargetCell(2.0, -1.0, 0.25).config(base(), 7)
    assert (made.objective.rdmreg.p, made.objective.rdmreg.mu, made.objective.rdmreg.axis_fraction) == (2, -1, 0.25)
    assert made.train.seed == 7 and made.model == base().model and made.data == base().data


def test_measures_are_those_of_the_run(result, folders):
    loaded, reading = load(folders[2]), result["runs"][2]
    data = loaded.episodes()
    assert loaded.config.objective.rdmreg.axis_fraction == 0.25 and loaded.step == 25
    held = split_episodes(40, 0.3)[1].tolist()  # 12 trajectories of 5 frames: all 60 are read
    states = torch.cat([data.episode(e)[0][::5] for e in held])
    with torch.no_grad():
        z = loaded.model.encode(loaded.world.render(states, loaded.image)).numpy()
    m = reading["measures"]
    assert m["active"] == pytest.approx((z > 0).mean()) and m["gap"] == pytest.approx((z > 0).mean() - 0.5)
    assert m["at_least"] == pytest.approx(z.mean() ** 2 / (z**2).mean(), rel=1e-5) and m["at_least"] <= m["active"]
    assert m["dead"] == pytest.approx((z == 0).all(0).mean())
    C = np.cov(z.T)
    assert m["dimension"] == pytest.approx(np.trace(C) ** 2 / (C**2).sum(), rel=1e-3)
    log = [json.loads(line) for line in (folders[2] / "log.jsonl").read_text().splitlines()]
    last = [r for r in log if r["kind"] == "val"][-1]
    assert m["ratio"] == pytest.approx(last["error_depth"][0] / last["copy_error_depth"][0])


def test_differences_are_paired_on_seeds(result):
    values = {(r["cell"]["axis_fraction"], r["seed"]): flat(r) for r in result["runs"]}
    for name in ("active", "ratio", "terminal success, random H=2 R=1"):
        each = [values[0.25, s][name] - values[0, s][name] for s in (0, 1)]
        assert result["overall"][0]["measures"][name]["estimate"] == pytest.approx(np.mean(each))
        assert result["overall"][0]["measures"][name]["values"] == pytest.approx(each)


def readings(active):
    """Made-up runs: active(target, axis, seed)."""
    out = []
    for cell in CELLS:
        want = RectifiedGeneralizedGaussian(cell.p, cell.mu).activity
        for seed in range(3):
            measures = dict.fromkeys(MEASURES, 0.1) | {"active": active(want, cell.axis_fraction, seed)}
            out.append(
                {
                    "cell": vars(cell),
                    "seed": seed,
                    "target": {"active": want},
                    "measures": measures,
                    "planning": {"random H=5 R=1": {"terminal": 0.5, "latched": 0.6}},
                }
            )
    return out


def test_obedience_is_seen_and_disobedience_too():
    """Plain slices ignore the target (0.4 and noise), coordinate ones halve the distance."""

    def active(t, axis, seed):
        return 0.01 * seed + ((t + 0.4) / 2 if axis else 0.4 + 0.02 * (seed - 1) * t)

    made = summary(readings(active))
    plain, axis = made["follow"]
    assert plain["slope"]["estimate"] == pytest.approx(0, abs=1e-9) and axis["slope"]["estimate"] == pytest.approx(0.5)
    assert plain["off"]["estimate"] > 1.5 * axis["off"]["estimate"]
    assert len(made["cells"]) == 18
    text = sentences(made | {"seeds": [0, 1, 2]})
    assert text[0].startswith("Plain slices: activity is off its target by 0.2")
    assert text[0].endswith("was not found.") and text[1].endswith("it follows the target in part.")
    assert plain["correlation"]["values"] == pytest.approx([-1, 1]) and plain["correlation"]["missing"] == 1
    assert axis["correlation"]["estimate"] == pytest.approx(1)
    (apart,) = made["follow_differences"]
    assert apart["slope"]["values"] == pytest.approx([0.52, 0.5, 0.48]) and apart["off"]["estimate"] < 0
    assert any("Error / copying" in s and "no difference found (3 seeds: exploratory)" in s for s in text)


def test_a_slope_of_one_that_misses_the_small_targets_is_not_called_obedience():
    """Where the target is a half, a half is active; where it is less, a fifth of it."""
    made = summary(readings(lambda t, axis, seed: (t if t > 0.4 else 0.2 * t) + 0.05 * (seed - 1) * t))
    plain, _ = made["follow"]
    assert plain["slope"]["low"] < 1 + 0.2 and plain["slope"]["high"] > 1
    assert plain["share"]["values"] == pytest.approx([0.15, 0.2, 0.25])
    text = sentences(made | {"seeds": [0, 1, 2]})
    assert "the median cell has 0.20 [" in text[0]
    assert text[0].endswith("it rises with the target, but most cells stay below it.")


def test_a_measure_that_a_dead_run_lacks_is_left_out():
    """Its cell is over the other seeds, and says so; a seed's mean is over the targets that all seeds have."""
    made = readings(lambda t, axis, seed: t + 0.1 * (axis > 0))
    for r in made:
        r["measures"]["ratio"] = 0.5 + r["seed"] + (1 if r["cell"]["axis_fraction"] else 0)
    made[0]["measures"]["ratio"], made[0]["failed"] = None, "diverged"
    made[1]["dead"] = "its codes are constant"
    made[4]["measures"]["active"] = None
    result = summary(made)
    first, second = result["cells"][:2]
    assert first["measures"]["ratio"]["values"] == [1.5, 2.5] and first["measures"]["ratio"]["missing"] == 1
    assert (first["dead"], first["runs"], second["dead"]) == (2, 3, 0)
    assert second["measures"]["ratio"]["missing"] == 0 and second["measures"]["active"]["missing"] == 1
    (overall,) = result["overall"]
    assert overall["measures"]["ratio"]["values"] == pytest.approx([1, 1, 1])
    assert len(overall["pairs"]["ratio"]["values"]) == 26 and overall["pairs"]["ratio"]["missing"] == 1
    assert result["follow"][0]["off"]["estimate"] == pytest.approx(0, abs=1e-9)
    assert result["follow"][1]["off"]["estimate"] == pytest.approx(0.1)
    assert len(result["follow"][0]["seeds"]) == 3
    text = table(result | {"seeds": [0, 1, 2], "runs": made})
    assert "3, 2 dead" in text and "(n=2)" in text and "seed 0: diverged" in text and "constant" in text


def test_pairs_and_seeds_by_hand():
    """A difference that every pair shows but that varies with the seed is settled over pairs alone."""
    shift = {0: 0.01, 1: 0.05, 2: 0.09}
    made = summary(readings(lambda t, axis, seed: t + (shift[seed] if axis else 0)))
    (overall,) = made["overall"]
    m, pairs = overall["measures"]["active"], overall["pairs"]["active"]
    assert m["estimate"] == pytest.approx(0.05) == pairs["estimate"]
    half = 4.302653 * 0.04 / np.sqrt(3)  # t with 2 degrees of freedom
    assert m["low"] == pytest.approx(0.05 - half, rel=1e-5) and m["low"] < 0 < pairs["low"]
    assert verdict(m, pairs) == "more over pairs, not settled over seeds"
    assert verdict(pairs, None) == "more" and verdict(m, m) == "no difference found"


def test_a_study_that_is_not_whole_is_tabulated(result, root):
    """Three seeds are named, two are there; nothing is trained."""
    made = study(
        base(), root, cells=CHOSEN, seeds=(0, 1, 2), steps=25, device="cpu", planning=PLANNING, frames=60, each=None
    )
    assert made["expected"] == 6 and made["missing"] == [f"{c.name} seed 2" for c in CHOSEN]
    assert made["runs"] == result["runs"] and made["controls"] == result["controls"]
    assert made["cells"][0]["measures"]["active"]["missing"] == 1
    assert "2 of 6 runs are missing" in table(made)
    with pytest.raises(UserError, match="no reading"):
        study(base(), root, cells=CHOSEN, seeds=(7, 8), steps=25, device="cpu", planning=PLANNING, each=None)


def test_a_run_that_fails_is_told_and_the_rest_goes_on(result, root):
    class Broken:
        why = "its process ended (signal 9)."

    def each(jobs, work):
        assert [j[1] for j in jobs] == [9, 9]  # what is kept is not trained again
        yield 0, work(jobs[0])
        yield 1, Broken()

    told = []
    made = study(
        base(),
        root,
        cells=CHOSEN,
        seeds=(0, 1, 9),
        steps=25,
        device="cpu",
        planning=PLANNING,
        frames=60,
        each=each,
        progress=lambda *a: told.append(a),
    )
    name = f"{CHOSEN[1].name} seed 9"
    assert made["failed"] == [{"run": name, "why": Broken.why}] and not made["missing"]
    assert [t[:2] for t in told] == [(5, 6), (6, 6)] and told[0][2] == "" and told[1][2] == f"{name}: {Broken.why}"
    assert f"Failed: {name}" in table(made)


def test_a_run_that_diverged_is_a_row_and_not_the_end(result, root, monkeypatch):
    """Codes that are not finite: the reading says so, and the study goes on."""
    monkeypatch.setattr("lpwm.model.WorldModel.encode", lambda self, x: torch.full((len(x), 16), torch.nan))
    made = study(base(), root, cells=CHOSEN[:1], seeds=(0, 1), steps=25, device="cpu", planning=PLANNING, frames=61)
    assert "diverged" in made["runs"][0]["failed"] and made["cells"][0]["measures"]["active"] is None
    assert made["cells"][0]["measures"]["terminal success, random H=2 R=1"] is None
    assert "–" in table(made)


def test_law_distance_is_0_for_the_target_and_sees_its_shape():
    target = RectifiedGeneralizedGaussian(1.0, 0.0)
    same = target.sample((4000, 6), generator(5)).numpy()
    wide = RectifiedGeneralizedGaussian(2.0, 0.0).sample((4000, 6), generator(5)).numpy()
    assert law_distance(same, target) < 0.05 < 0.08 < law_distance(wide, target)
    assert law_distance(np.zeros((500, 3)), target) == pytest.approx(np.sqrt(target.second_moment), rel=0.05)


def test_a_second_call_trains_nothing_and_says_the_same(result, root, monkeypatch):
    monkeypatch.setattr(Run, "train", lambda *_, **__: pytest.fail("trained again"))
    again = study(base(), root, cells=CHOSEN, seeds=(0, 1), steps=25, device="cpu", planning=PLANNING, frames=60)
    assert {**again, "seconds": 0} == {**result, "seconds": 0}


def test_table_and_figure(result, tmp_path):
    text = table(result)
    assert text.splitlines()[0].startswith("p  μ") and "25 % coordinate slices: activity is off" in text
    assert figures.save(tmp_path / "study.png", lambda: figures.targets(result)) == [tmp_path / "study.png"]
    holed = copy.deepcopy(result)
    holed["cells"][0]["measures"]["active"] = holed["cells"][0]["measures"]["ratio"] = None
    assert "–" in table(holed) and figures.targets(holed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": (0,)}, "at least 2 training seeds"),
        ({"cells": ()}, "at least one cell"),
        ({"cells": (CHOSEN[0], CHOSEN[0])}, "no cell or seed twice"),
        ({"base": dense(base())}, "needs a sparse base"),
        ({"base": replace(base(), data=replace(base().data, world="wall"))}, "zones of piecewise"),
    ],
)
def test_wrong_studies_are_one_sentence(changes, words, tmp_path):
    with pytest.raises(UserError, match=words):
        study(changes.pop("base", base()), tmp_path, **{"cells": CHOSEN, "planning": PLANNING, **changes})


@pytest.mark.soak
def test_the_script_s_smoke_run_in_two_processes(tmp_path):
    words = ["study", str(tmp_path), "--quick", "--workers", "2", "--device", "cpu"]
    command = [sys.executable, "-m", "results.tool", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "8 of 8 runs" in done.stderr and "coordinate − plain over 2 targets" in done.stdout
    result = json.loads((tmp_path / "target-study.json").read_text())
    assert len(result["runs"]) == 8 and (tmp_path / "target-study.png").exists()
