"""The page of claims: each verdict from made-up results, sizes told apart, and this repository's page from its JSON."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.evaluate.config import EvalConfig
from lpwm.recipes import recipe
from lpwm.stats import Interval
from results.tool import figures, runs
from results.tool.__main__ import main
from results.tool.claims import CLAIMS, PAPER, ROWS
from results.tool.evidence import evidence
from results.tool.page import all_evidence, details, filled, first_page, read_notes, write
from results.tool.provenance import controls
from results.tool.read import read_results
from results.tool.runs import Trained, recipe_of
from results.tool.verdict import EXCLUDED, INSIDE, NOT_RUN, NOT_TESTED, OPEN, OTHER, SAME, judge

RESULTS = Path(__file__).parents[1]
BY_ID = {c.id: c for c in CLAIMS}
EPISODES = 40
CLAIMED = [c for c in PAPER if c.query.source != "contrast"]  # by the paper


def config_of(name, seed, **changes):
    base = {"pusht": "wall/mlp-lti/lpwm"}.get(name.split("/")[0].split("-")[0])
    config = to_dict(recipe(base or name))
    config["train"]["seed"] = seed
    for path, value in changes.items():
        place = config
        *inner, last = path.split("__")
        for key in inner:
            place = place[key]
        place[last] = value
    return config


def evaluation(rates, *, goals="random", receding=5, horizons=(5,), budget=50, noise=0.0, entry=None, **changes):
    """rates: recipe -> {seed: success} or a function of (seed, H); the first rate·E episodes succeed."""
    settings = to_dict(EvalConfig(goals=(goals,), horizons=tuple(horizons), receding=(receding,), budgets=(budget,)))
    runs, cells = [], []
    for name, seeds in rates.items():
        for seed in seeds:
            label = name.replace("/", "-")
            runs.append(
                {
                    "name": f"{label}-{seed}",
                    "method": label,
                    "seed": seed,
                    "run_hash": f"{label}{seed}",
                    "step": 100,
                    "vote": None,
                    "recipe": name,
                    "config": config_of(name, seed, **changes),
                    "data": "d",
                    "training": {"minutes": 2.0, "device": "H200"},
                    "monitors": {},
                    **(entry or {}),
                }
            )
    for h in horizons:
        rows = []
        for name, seeds in rates.items():
            success = []
            for rate in seeds.values():
                p = rate(h) if callable(rate) else rate
                success.append([[int(e < round(p * EPISODES)) for e in range(EPISODES)]])
            one = {"rate": float(np.mean(success)), "low": 0.0, "high": 1.0}
            rows.append(
                {
                    "name": name.replace("/", "-"),
                    "control": False,
                    "seeds": list(seeds),
                    "budgets": {
                        str(budget): {
                            "latched": one,
                            "terminal": one,
                            "success": {"latched": success, "terminal": success},
                        }
                    },
                }
            )
        cells.append({"goals": goals, "horizon": h, "receding": receding, "rows": rows})
    return {
        "kind": "lpwm evaluation",
        "versions": {"lpwm": "0.1.0"},
        "device": "H200",
        "commit": "abc",
        "source": "s",
        "settings": settings,
        "runs": runs,
        "cells": cells,
        "episode_sets": {goals: {"digest": "e"}},
        "wall_s": 60.0,
    }


def put(folder, **documents):
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return read_results(folder)


def page_of(folder):
    """The text of both pages, without figures."""
    results = read_results(folder)
    ours = all_evidence(results)
    made = (ours, results, read_notes(folder / "notes.md"), [])
    return first_page(*made) + details(*made)


def first(claim, results):
    return evidence(BY_ID[claim], results)[0]


def pair(a, b, seeds=8, spread=0.05, family="piecewise-2x2-paper", tail=("lpwm", "lewm")):
    """Two methods around rates a and b; seeds alternate, so differences have a spread too."""
    wave = [spread * (-1) ** s for s in range(seeds)]
    return {
        f"{family}/{tail[0]}": {s: a + w for s, w in enumerate(wave)},
        f"{family}/{tail[1]}": dict.fromkeys(range(seeds), b),
    }


def test_two_methods_that_do_not_plan_show_nothing(tmp_path):
    document = evaluation(pair(0.05, 0.05, spread=0.02, family="piecewise-2x2-paper"))
    verdict = first("piecewise-2x2-r5-ahead", put(tmp_path, a=document)).verdict
    assert (verdict.direction, verdict.size) == (OPEN, EXCLUDED)
    idle = {"rate": 0.3, "low": 0.2, "high": 0.4}
    document["cells"][0]["rows"].append(
        {"name": "do nothing", "control": True, "seeds": [0], "budgets": {"50": {"latched": idle, "terminal": idle}}}
    )
    verdict = first("piecewise-2x2-r5-ahead", put(tmp_path, a=document)).verdict
    assert (verdict.direction, verdict.size) == (OPEN, "") and "controls" in verdict.why


def test_episodes_of_the_same_checkpoints_are_taken_together_and_shown_apart(tmp_path):
    one, two, longer = (evaluation(pair(*rates)) for rates in ((0.5, 0.3), (0.7, 0.3), (0.9, 0.1)))
    two["episode_sets"]["random"]["digest"] = "f"
    longer["episode_sets"]["random"]["digest"] = "g"
    for run in longer["runs"]:  # other checkpoints: another line
        run["step"] = 200
    rows = evidence(BY_ID["piecewise-2x2-r5-ahead"], put(tmp_path, one=one, two=two, longer=longer))
    assert rows[0].ours.startswith("+30.0") and f" {2 * EPISODES} episodes" in rows[0].protocol
    assert rows[0].files == ("one.json", "two.json")
    assert sorted(e.ours[:5] for e in rows[1:]) == ["+20.0", "+40.0", "+80.0"]
    assert all(f" {EPISODES} episodes" in e.protocol for e in rows[1:])
    two["runs"][0]["run_hash"] = "another"  # one checkpoint is not the same: nothing is taken together
    rows = evidence(BY_ID["piecewise-2x2-r5-ahead"], put(tmp_path, one=one, two=two, longer=longer))
    assert sorted(e.ours[:5] for e in rows) == ["+20.0", "+40.0", "+80.0"]


def test_each_planning_cost_speaks_for_its_own_row(tmp_path):
    end, path, other = evaluation(pair(0.5, 0.3)), evaluation(pair(0.9, 0.1, seeds=12)), evaluation(pair(0.8, 0.2))
    del path["settings"]["path_discount"]
    path["settings"]["along"] = 1.0  # as 0.1.0 called it
    other["settings"]["path_discount"] = 0.5  # a path whose blocks do not count alike: no claim is about it
    alone = first("piecewise-2x2-r5-ahead", put(tmp_path, end=end))
    both = put(tmp_path, end=end, path=path, other=other)
    assert [e.ours for e in evidence(BY_ID["piecewise-2x2-r5-ahead"], both)] == [alone.ours]
    (row,) = evidence(BY_ID["piecewise-2x2-r5-ahead-path"], both)
    assert row.seeds == 12 and row.interval.estimate == pytest.approx(0.8) and row.protocol.endswith("path cost")
    text = controls(both)
    assert "random H=5 R=5, path cost" in text and "| end.json | random H=5 R=5 |" in text


def test_what_is_held_is_judged_and_what_was_reached_stands_next_to_it(tmp_path):
    document = evaluation(pair(0.5, 0.3))
    for row in document["cells"][0]["rows"]:
        for budget in row["budgets"].values():
            budget["success"]["latched"] = [
                [[True] * len(bits) for bits in some] for some in budget["success"]["latched"]
            ]
    row = first("piecewise-2x2-r5-ahead", put(tmp_path, a=document))
    assert row.interval.estimate == pytest.approx(0.2) and row.verdict.direction == SAME
    assert row.reached_interval.estimate == 0 and row.reached.direction == OPEN and row.also.startswith("reached +0.0")
    level = first("piecewise-2x2-r5-lewm", put(tmp_path, a=document))
    assert level.interval.estimate == pytest.approx(0.3) and level.reached_interval.estimate == 1


def test_methods_at_their_own_cells_are_compared_first(tmp_path, monkeypatch):
    """LpWM's own cell is its recipe's, LeWM's is another: its runs there meet LpWM's, and count before equal cells."""
    family = "piecewise-2x2-small"
    own = {f"{family}/lpwm": {"objective.lam": 1.0}, f"{family}/lewm": {"objective.lam": 3.0}}
    monkeypatch.setattr(runs, "OWN", own)
    (a, x), (b, y) = pair(0.7, 0.5, family=family).items()
    (_, _), (_, tuned) = pair(0.7, 0.6, family=family).items()
    results = put(tmp_path, same=evaluation({a: x, b: y}), tuned=evaluation({b: tuned}, objective__lam=3.0))
    first_line, second = evidence(BY_ID["piecewise-2x2-r5-ahead"], results)
    assert "each method at its own λ and η" in first_line.size and first_line.files == ("same.json", "tuned.json")
    assert first_line.interval.estimate == pytest.approx(0.1) and second.interval.estimate == pytest.approx(0.2)
    assert "own" not in second.size and len(evidence(BY_ID["piecewise-2x2-r5-lpwm"], results)) == 1


def test_contrasts_add_up_the_rungs_of_one_file(tmp_path):
    """The lead with LTI(1) minus the lead with Shallow-AdaLN: 0.2 − 0.1; of two files nothing is added up."""
    name, parts = "piecewise-2x2-small", {}
    for rung, rates in (("lti1", (0.7, 0.5)), ("shallow-adaln", (0.6, 0.5))):
        part = evaluation(pair(*rates, family=name), model__predictor__rung=rung)
        for entry in (*part["runs"], *part["cells"][0]["rows"]):
            entry |= {k: f"{entry[k]}-{rung}" for k in ("name", "method", "run_hash") if k in entry}
        parts[rung.replace("-", "_")] = part
    assert evidence(BY_ID["ladder-simpler"], put(tmp_path, **parts)) == []
    one, other = parts.values()
    one["runs"] += other["runs"]
    one["cells"][0]["rows"] += other["cells"][0]["rows"]
    (tmp_path / "shallow_adaln.json").unlink()
    results = put(tmp_path, lti1=one)
    (line,) = evidence(BY_ID["ladder-simpler"], results)
    assert line.interval.estimate == pytest.approx(0.1) and line.seeds == 8 and "two rungs" in line.size
    assert first("ladder-lti1", results).interval.estimate == pytest.approx(0.2)
    assert first("ladder-lewm", results).verdict.direction == OPEN  # both rungs hold half
    assert evidence(BY_ID["piecewise-2x2-r5-ahead"], results) == []  # the paper's claim is of one predictor


# Rules ------------------------------------------------------------------------------------------------------


def interval(low, high):
    return Interval((low + high) / 2, low, high, 0.95, "checkpoints")


@pytest.mark.parametrize(
    ("claim", "low", "high", "direction", "size"),
    [
        ("pusht-mlp-lti", 0.02, 0.60, SAME, INSIDE),  # the paper's: 24 to 57 points
        ("pusht-mlp-lti", 0.02, 0.10, SAME, EXCLUDED),
        ("pusht-mlp-lti", 0.60, 0.70, SAME, EXCLUDED),
        ("pusht-mlp-lti", -0.05, 0.30, OPEN, INSIDE),
        ("pusht-mlp-lti", -0.05, 0.23, OPEN, EXCLUDED),
        ("pusht-mlp-lti", -0.30, -0.01, OTHER, EXCLUDED),
        ("vicreg-mlp-lti", -0.05, 0.01, OPEN, ""),  # only a direction
        ("vicreg-mlp-lti", -0.05, -0.01, OTHER, ""),
        ("pusht-deep-adaln", -0.09, 0.08, SAME, ""),
        ("pusht-deep-adaln", -0.12, 0.08, OPEN, ""),
        ("pusht-deep-adaln", 0.11, 0.30, OTHER, ""),
        ("pusht-lti1-lpwm", 0.0, 0.19, "", INSIDE),
        ("pusht-lti1-lpwm", 0.21, 0.3, "", EXCLUDED),
        ("piecewise-2x2-r1-lpwm", 0.60, 0.81, "", INSIDE),  # 84.7 ± 4.2
        ("piecewise-2x2-r1-lpwm", 0.60, 0.80, "", EXCLUDED),
        ("piecewise-2x2-r1-lpwm", 0.90, 0.95, "", EXCLUDED),
    ],
)
def test_the_rules(claim, low, high, direction, size):
    verdict = judge(BY_ID[claim], interval(low, high), 8)
    assert (verdict.direction, verdict.size) == (direction, size)


def test_a_level_of_another_recipe_is_not_judged_and_a_difference_is():
    level = judge(BY_ID["piecewise-2x2-r1-lpwm"], interval(0.60, 0.81), 8, paper=False)
    assert (level.direction, level.size) == ("", "") and "another recipe" in level.why
    assert judge(BY_ID["pusht-mlp-lti"], interval(0.3, 0.5), 8, paper=False).direction == SAME


def test_fewer_than_eight_seeds_is_exploratory_and_one_decides_no_difference():
    claim = BY_ID["pusht-mlp-lti"]
    assert not judge(claim, interval(0.3, 0.5), 8).exploratory
    assert judge(claim, interval(0.3, 0.5), 7).exploratory
    assert judge(claim, interval(0.3, 0.5), 1).direction == OPEN
    assert judge(claim, interval(0.02, 0.10), 8).text() == "same, excluded (smaller)"
    assert judge(claim, interval(0.6, 0.7), 8).text() == "same, excluded (larger)"


# From files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "spread", "verdict"),
    [
        (0.7, 0.5, 0.05, (SAME, INSIDE)),
        (0.5, 0.7, 0.05, (OTHER, EXCLUDED)),
        (0.5, 0.5, 0.05, (OPEN, EXCLUDED)),
        (0.65, 0.5, 0.35, (OPEN, INSIDE)),
    ],
)
def test_differences_over_seeds(tmp_path, a, b, spread, verdict):
    row = first("piecewise-2x2-r5-ahead", put(tmp_path, x=evaluation(pair(a, b, spread=spread))))
    assert (row.verdict.direction, row.verdict.size) == verdict and row.seeds == 8 and not row.reduced
    assert ("80 % power" in row.verdict.why) == (verdict[0] == OPEN)


def test_the_interval_is_nearly_students_over_paired_seeds_where_episodes_add_little(tmp_path):
    """The seeds differ far more than the episodes, so that sampling episodes too changes the interval little."""
    rates = {
        "piecewise-2x2-paper/lpwm": dict(enumerate((0.1, 0.9, 0.5, 0.8, 0.2))),
        "piecewise-2x2-paper/lewm": dict.fromkeys(range(5), 0.5),
    }
    result = first("piecewise-2x2-r5-ahead", put(tmp_path, x=evaluation(rates))).interval
    d = np.array([round(r * EPISODES) / EPISODES for r in (0.1, 0.9, 0.5, 0.8, 0.2)]) - 0.5
    assert result.estimate == pytest.approx(d.mean())
    half = stats.t.ppf(0.975, 4) * d.std(ddof=1) / math.sqrt(5)
    assert result.high - result.low == pytest.approx(2 * half, rel=0.05)


def test_methods_in_two_files_are_paired_on_shared_seeds_and_each_seed_counts_once(tmp_path):
    both = pair(0.7, 0.5)
    (a, x), (b, y) = both.items()
    results = put(
        tmp_path, a=evaluation({a: x}), b=evaluation({b: {s: r for s, r in y.items() if s < 4}}), c=evaluation({a: x})
    )
    row = first("piecewise-2x2-r5-ahead", results)
    assert row.seeds == 4 and row.verdict.exploratory and row.files == ("a.json", "b.json")
    assert first("piecewise-2x2-r5-lpwm", results).seeds == 8


def test_other_episodes_or_planners_are_not_pooled(tmp_path):
    both = pair(0.7, 0.5)
    (a, x), (b, y) = both.items()
    other = evaluation({b: y})
    other["episode_sets"]["random"]["digest"] = "other"
    assert evidence(BY_ID["piecewise-2x2-r5-ahead"], put(tmp_path, a=evaluation({a: x}), b=other)) == []


def test_sizes_are_found_by_prefix_and_told_apart(tmp_path):
    results = put(
        tmp_path,
        full=evaluation(pair(0.5, 0.5)),
        small=evaluation(pair(0.7, 0.5, family="piecewise-2x2-small")),
        short=evaluation(pair(0.7, 0.5), train__steps=10_000),
        strong=evaluation(pair(0.7, 0.5), objective__lam=1.0),
        visible=evaluation(pair(0.7, 0.5, family="piecewise-2x2-visible-paper")),
    )
    lines = evidence(BY_ID["piecewise-2x2-r5-ahead"], results)
    assert [e.reduced for e in lines] == [False, False, True, True]  # visible zones are another world
    assert "paper's size: 224² frames, patch 14" in lines[0].size and "lam 1.0" in lines[1].size
    assert any("10,000 steps" in e.size for e in lines[2:]) and any("(small): 32² frames" in e.size for e in lines[2:])
    assert lines[0].verdict.size == EXCLUDED  # the paper's size counts first, however the others came out


def test_an_unknown_size_is_reduced():
    run = Trained(recipe_of("piecewise-2x2-96-lpwm-tj"), "h", 0, 1, None)
    assert run.recipe == "piecewise-2x2-96/lpwm-tj" and run.reduced and "not recorded" in run.size
    assert recipe_of("pusht-small-mlp-lti-lewm") == "pusht-small/mlp-lti/lewm"
    assert recipe_of("wall-lti1-lpwm-mu1") == "wall/lti1/lpwm-mu1"


def test_horizons(tmp_path):
    gap = {s: (lambda h, s=s: 0.4 + 0.03 * h + 0.01 * (s % 3)) for s in range(8)}
    flat = dict.fromkeys(range(8), 0.35)
    rates = {"piecewise-2x2-paper/lpwm": gap, "piecewise-2x2-paper/lewm": flat}
    results = put(tmp_path, x=evaluation(rates, receding=1, horizons=range(1, 11)))
    ahead, slope = first("horizon-ahead", results), first("horizon-gap", results)
    assert ahead.verdict.direction == slope.verdict.direction == SAME
    assert slope.interval.estimate == pytest.approx(0.03, abs=0.003)
    behind = {
        "piecewise-2x2-paper/lpwm": {s: (lambda h: 0.3 if h == 1 else 0.8) for s in range(8)},
        "piecewise-2x2-paper/lewm": flat,
    }
    row = first("horizon-ahead", put(tmp_path, x=evaluation(behind, receding=1, horizons=range(1, 11))))
    assert row.verdict.direction == OPEN and "H = 1" in row.verdict.why


def study(seed, support=0.96):
    def score(x):
        return {"estimate": x, "low": x - 0.01, "high": x + 0.01, "level": 0.95}

    return {
        "kind": "lpwm interpretation",
        "lpwm": "0.1.0",
        "seconds": 3.0,
        "run": {
            "name": "r",
            "hash": f"h{seed}",
            "method": "piecewise-2x2-paper-lpwm abcd",
            "seed": seed,
            "step": 100,
            "recipe": "piecewise-2x2-paper/lpwm",
            "config": config_of("piecewise-2x2-paper/lpwm", seed),
        },
        "world": {"options": {"g": 2, "visible": False}, "trained_visible": False},
        "probes": {
            "frames": 3000,
            "zone": {"support": score(support), "code": score(0.97)},
            "position": {"support": score(0.5), "code": score(0.9 + 0.001 * seed)},
        },
    }


def test_probes(tmp_path):
    many = {"kind": "lpwm interpretations", "studies": [study(s, 0.955 + 0.001 * s) for s in range(8)]}
    results = put(tmp_path, x=many)
    assert first("probe-zone", results).verdict.why == "another recipe"  # trained for 100 steps
    assert first("probe-zone-code", results).verdict.direction == SAME
    position = first("probe-position", results)
    assert position.verdict.direction == SAME and position.interval.estimate == pytest.approx(0.4035)
    one = first("probe-zone", put(tmp_path, x=study(0, 0.92)))
    assert one.verdict.exploratory and one.interval.low == pytest.approx(0.91)


def test_studies_of_two_rounds_are_two_lines_and_own_cells_meet(tmp_path, monkeypatch):
    """Two files of a recipe are not pooled; methods at their own cells are compared, and count like recipes."""
    recipes = {m: f"piecewise-2x2-small/{m}" for m in ("lpwm", "lewm")}
    cells = {"lpwm": {"optim.lr": 6e-3}, "lewm": {"optim.lr": 3e-3}}
    monkeypatch.setattr(runs, "OWN", {recipes[m]: cells[m] for m in recipes})

    def one(m, seed, support, lr):
        config = config_of(recipes[m], seed)
        config["optim"] = {**config["optim"], "lr": lr}
        return study(seed, support) | {
            "run": {
                "hash": f"{m}{lr}{seed}",
                "recipe": recipes[m],
                "step": 2500,
                "name": m,
                "method": m,
                "seed": seed,
                "config": config,
            }
        }

    early = [one(m, s, 0.95 if m == "lpwm" else 0.96, 3e-3) for m in recipes for s in range(3)]
    late = [one(m, s, 0.9 if m == "lpwm" else 0.96, cells[m]["optim.lr"]) for m in recipes for s in range(10, 18)]
    kind = {"kind": "lpwm interpretations"}
    results = put(tmp_path, early=kind | {"studies": early}, late=kind | {"studies": late})
    lines = evidence(BY_ID["probe-zone-signs"], results)
    assert [(e.seeds, e.files, round(e.interval.estimate, 2)) for e in lines] == [
        (8, ("late.json",), -0.06),
        (3, ("early.json",), -0.01),
    ]
    assert "each method at its own" in lines[0].size and "own" not in lines[1].size
    assert [e.seeds for e in evidence(BY_ID["probe-zone"], results)] == [8, 3]  # its own cell, then the recipe's
    again = [one("lpwm", s, 0.92, 6e-3) for s in range(20, 25)]
    results = put(tmp_path, early=kind | {"studies": early}, late=kind | {"studies": late}, x=kind | {"studies": again})
    assert [e.seeds for e in evidence(BY_ID["probe-zone"], results)] == [8, 5, 3]


def test_trajectories_that_seeds_share_do_not_shrink_with_them(tmp_path):
    """Eight seeds that agree to the last digit are no more certain than the trajectories they were measured on."""
    results = put(tmp_path, x={"kind": "lpwm interpretations", "studies": [study(s) for s in range(8)]})
    spread = first("probe-zone", results).interval
    own = 0.02 / (2 * stats.norm.ppf(0.975))
    assert spread.high - spread.low == pytest.approx(2 * stats.t.ppf(0.975, 7) * own)


def test_supports_at_zone_borders_are_judged_by_the_share_of_seeds(tmp_path):
    def with_chance(seed, p):
        return study(seed) | {"sharpness": {"matched_translated": {"p": p}}}

    for chances, direction in (((0.01, 0.02, 0.3), SAME), ((0.2, 0.3, 0.04), OPEN)):
        studies = [with_chance(s, p) for s, p in enumerate(chances)]
        row = first("borders", put(tmp_path, x={"kind": "lpwm interpretations", "studies": studies}))
        assert row.verdict.direction == direction and f"of {len(chances)} seeds" in row.ours


def test_health_and_active_fraction_come_from_the_runs(tmp_path):
    fine = {"relative_error": 0.05, "copy_error": 0.3, "effective_dimension": 6.0, "active_fraction": 0.3}
    rates = {"piecewise-2x2-paper/relu": dict.fromkeys(range(3), 0.5)}
    row = first("relu", put(tmp_path, x=evaluation(rates, entry={"monitors": fine})))
    assert row.verdict.direction == SAME and row.ours == "3 of 3 seeds" and row.verdict.exploratory
    dead = evaluation(rates, entry={"monitors": {**fine, "effective_dimension": 1.2}})
    assert first("relu", put(tmp_path, x=dead)).verdict.direction == OTHER
    pusht = evaluation({"pusht-small/mlp-lti/lpwm": {0: 0.5, 1: 0.5}}, goals="dataset", entry={"monitors": fine})
    line = first("active-mlp-lti-384", put(tmp_path, x=pusht))
    assert (
        line.reduced and line.interval.estimate == pytest.approx(0.3) and line.verdict.text().startswith("– (another")
    )


def test_rounds_are_not_pooled(tmp_path):
    """Two files of runs, the same recipe and size: two lines about their activity, the larger first."""
    rounds = {}
    for name, seeds, active in (("one", range(3), 0.48), ("two", range(3, 11), 0.62)):
        entry = {"monitors": {"relative_error": 0.05, "copy_error": 0.3, "active_fraction": active}}
        rates = {"pusht-small/mlp-lti/lpwm": dict.fromkeys(seeds, 0.5)}
        rounds[name] = evaluation(rates, goals="dataset", entry=entry)
    lines = evidence(BY_ID["active-mlp-lti-384"], put(tmp_path, **rounds))
    assert [(e.seeds, round(e.interval.estimate, 2)) for e in lines] == [(8, 0.62), (3, 0.48)]


def test_contact_and_sparsity_readings(tmp_path):
    score = {"estimate": 0.86, "low": 0.8, "high": 0.9, "level": 0.95, "unit": "episodes of one checkpoint"}
    run = {
        "name": "r",
        "hash": "h",
        "method": "cube-lpwm abcd",
        "seed": 0,
        "step": 1,
        "recipe": "cube/lpwm",
        "config": config_of("piecewise-2x2-paper/lpwm", 0),
        "monitors": {"active_fraction": 0.9},
    }
    contact = {
        "kind": "lpwm contact",
        "run": run,
        "world": {"name": "cube", "options": {}},
        "correlations": {"effector": score, "cube": None},
    }
    pusht = {**run, "recipe": "pusht-small/lti/lpwm", "hash": "g", "config": config_of("wall/lti/lpwm", 0)}
    sparse = {"kind": "lpwm sparsity", "run": pusht, "active_fraction": {"estimate": 0.42}}
    results = put(tmp_path, c=contact, s=sparse)
    line = first("cube-effector-tj0", results)
    assert line.verdict.direction == NOT_TESTED and line.interval.low == 0.8
    assert evidence(BY_ID["cube-cube-tj0"], results) == []
    assert first("active-lti-384", results).interval.estimate == 0.42  # held out, not the log's 0.9


def test_the_cube_pair(tmp_path):
    """Readings come as one document for all runs, and Cube's recipes carry the weight in their names."""
    readings = []
    for name, tj, r in (("lpwm", 0.0, 0.87), ("lpwm-tj0.05", 0.05, 0.1), ("lpwm-tj0.1", 0.1, 0.6)):
        score = {"estimate": r, "low": r - 0.02, "high": r + 0.02, "level": 0.95, "unit": "episodes of one checkpoint"}
        config = config_of("cube-112/lpwm", 1, objective__tj_weight=tj)
        run = {
            "name": name,
            "hash": name,
            "method": f"cube-112-{name} abcd",
            "seed": 1,
            "step": 1,
            "recipe": f"cube-112/{name}",
            "config": config,
            "monitors": {},
        }
        readings.append(
            {
                "kind": "lpwm contact",
                "run": run,
                "world": {"name": "cube", "options": {}},
                "correlations": dict.fromkeys(("effector", "cube", "contact"), score),
            }
        )
    rates = {"cube-112/lpwm": {1: 0.5}, "cube-112/lpwm-tj0.1": {1: 0.55}}
    planned = evaluation(rates, goals="dataset")
    results = put(tmp_path, c={"kind": "lpwm readings", "readings": readings}, p=planned)
    assert first("cube-effector-tj0", results).interval.estimate == 0.87
    assert first("cube-contact-tj0.1", results).interval.estimate == 0.6
    assert first("cube-contact-tj0.1", results).verdict.direction == NOT_TESTED
    planned["curves"] = {r["name"]: {"spearman": 0.4} for r in planned["runs"]}
    holds = put(tmp_path, c={"kind": "lpwm readings", "readings": readings}, p=planned)
    assert "another recipe" in first("cube-contact-tj0.1", holds).verdict.why
    line = first("cube-planning", results)
    assert line.reduced and line.interval.estimate == pytest.approx(0.05)
    assert "112² frames" in line.size and "5,000 steps of 128, data 512 × 200" in line.size
    planned["runs"][0]["events"] = ["this run is dead (collapsed): all units are off"]
    put(tmp_path, d=planned)
    text = page_of(tmp_path)
    assert "cube-112/lpwm, cube-112/lpwm-tj0.05" in text  # the provenance of all of them
    dead = f"{planned['runs'][0]['method']} {planned['runs'][0]['seed']}"
    assert f"| {dead} |" in next(row for row in text.splitlines() if row.startswith("| d.json | cube"))


def ledger_cell(rate, latent, score):
    settings = to_dict(EvalConfig(goals=("dataset",), receding=(5,), budgets=(250,)))
    config = config_of("pusht/mlp-lti/lpwm", 0, optim__lr=rate, model__latent=latent)
    bits = "1" * round(score * 20) + "0" * (20 - round(score * 20))
    value = {m: {"rate": score, "success": [bits]} for m in ("latched", "terminal")}
    entry = {"goals": "dataset", "horizon": 5, "receding": 5, "episodes": "e", "count": 20, "budgets": {"250": value}}
    return {
        "hash": f"{rate}{latent}",
        "state": "done",
        "lpwm": "0.1.0",
        "cell": {"name": "pusht/mlp-lti/lpwm", "config": config, "evals": {"closed": settings}},
        "result": {
            "run": f"r{rate}{latent}",
            "dead": "",
            "step": 100,
            "train": {},
            "held_out": {},
            "seconds": {"train": 60.0, "evaluate": 30.0},
            "evals": {"closed": [entry]},
        },
    }


def test_rates_transfer_across_widths_from_a_sweeps_ledger(tmp_path):
    best = {384: 5e-4, 768: 5e-4, 1536: 5e-4}
    cells = {
        f"c{i}": ledger_cell(r, d, 0.0 if r >= 0.005 else 0.8 if r == best[d] else 0.3)
        for i, (d, r) in enumerate((d, r) for d in best for r in (5e-2, 5e-4, 5e-5))
    }
    results = put(tmp_path, **cells)
    assert first("mup-transfer", results).ours.startswith("2 of 2")
    assert first("mup-transfer", results).verdict.direction == SAME
    large = first("mup-large", results)
    assert large.verdict.direction == SAME and large.ours.startswith("3 of 3")
    assert "(9 cells)" in page_of(tmp_path)


# The page ---------------------------------------------------------------------------------------------------


def test_every_row_has_claims_and_ids_are_unique():
    assert {c.row for c in CLAIMS} == set(ROWS) and len(BY_ID) == len(CLAIMS)


def test_the_page_of_this_repository_is_what_its_json_says(tmp_path):
    """Run `python -m results.tool page` when this fails."""
    made = write(RESULTS, tmp_path)
    for name in ("README.md", "details.md", "claims.json"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text(), f"results/{name} is not up to date"
    for path in made["files"][3:]:
        assert path.read_bytes()[:4] == b"\x89PNG" and (RESULTS / "figures" / path.name).exists()


def test_a_level_of_another_recipe_has_one_row_with_both_costs():
    """And none among the claims that are judged."""
    judged, levels = (RESULTS / "README.md").read_text().split("## Levels")
    claims = {c["id"]: c for c in json.loads((RESULTS / "claims.json").read_text())["claims"]}
    rows = [line.split(" | ") for line in levels.splitlines() if line.startswith("| Piecewise 2×2 · R=1: LpWM |")]
    end, path = (claims[f"piecewise-2x2-r1-lpwm{cost}"]["lines"][0]["ours"] for cost in ("", "-path"))
    assert len(rows) == 1 and rows[0][2:4] == [end, path]
    assert "· R=1: LpWM |" not in judged and "R=1: LpWM ahead of LeWM (path cost) |" in judged
    assert all(f"· {claim['text']} |" not in judged for claim in claims.values() if claim["verdict"] == "not judged")


def test_a_changed_number_changes_the_page(tmp_path):
    source = tmp_path / "results"
    shutil.copytree(RESULTS, source)
    path = source / "piecewise-small-random-goals.json"
    document = json.loads(path.read_text())
    cell = next(c for c in document["cells"] if c["receding"] == 5)
    for row in cell["rows"][:2]:  # LpWM's checkpoints are in another file too, LeWM's are not
        for budget in row["budgets"].values():
            success = budget["success"]["terminal"]
            success[0] = [[1 - x for x in line] for line in success[0]]
    path.write_text(json.dumps(document))
    old = "".join((RESULTS / name).read_text() for name in ("README.md", "details.md"))
    new = page_of(source)
    told = [[x for x in text.splitlines() if "R=5: LpWM ahead" in x] for text in (old, new)]
    assert len(told[0]) == len(told[1]) and told[0] != told[1]
    assert "Evaluated twice with different outcomes" in new and "Evaluated twice" not in old


def test_an_empty_folder_is_all_not_run(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["page", str(tmp_path), "--out", str(out)]) == 0
    assert f"{len(CLAIMED)} {NOT_RUN}" in capsys.readouterr().out
    text = (out / "README.md").read_text()
    assert "**Not run**" in text and "None yet." in text


def test_notes_stand_at_their_place(tmp_path):
    summary = "## summary\n\nIt is {wall-lti1-lpwm}, and {not run} were not."
    (tmp_path / "notes.md").write_text(f"Before all.\n\n{summary}\n\n## wall\n\nThe door was *shut*.\n")
    text = page_of(tmp_path)
    assert text.index("Before all.") < text.index("## Rule")
    assert text.index("## Wall") < text.index("The door was *shut*.") < text.index("## Plain ReLU")
    assert f"It is {NOT_RUN}, and {len(CLAIMED)} were not." in text
    with pytest.raises(UserError, match="wall-lti1-lpwm"):
        filled("{wall-lti1-lpwn}", {BY_ID["wall-lti1-lpwm"]: []})
    (tmp_path / "notes.md").write_text("## walls\nx\n")
    with pytest.raises(UserError, match="wall"):
        read_notes(tmp_path / "notes.md")


def test_what_is_no_result_is_listed_and_what_is_damaged_is_named(tmp_path):
    (tmp_path / "bench.json").write_text('{"kind": "lpwm benchmark", "x": 1}')
    assert "bench.json (lpwm benchmark)" in page_of(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad\.json"):
        read_results(tmp_path)
    (tmp_path / "bad.json").write_text('{"kind": "lpwm evaluation"}')
    with pytest.raises(UserError, match=r"bad\.json lacks"):
        read_results(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        read_results(tmp_path / "nowhere")


def test_no_other_folder_s_files_are_replaced(tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    for words, told in ((["page", str(tmp_path)], "--out"), (["page", "--out", str(tmp_path)], "is not empty")):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert told in said and said.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"] and (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("planner", "file", "horizons"),
    [
        ("CEM 100 × 10, 50 goals", "piecewise-small-horizons.json", [1, 2, 3, 5, 8, 10]),
        ("CEM 300 × 30, 50 goals", "piecewise-small-table-horizons.json", [1, 2, 3, 5, 8]),
    ],
)
def test_a_curve_of_horizons_keeps_to_one_planner(planner, file, horizons):
    """This repository's results have H=5 with the paper's planner too: it is no point of the small planner's curve."""
    results = read_results(RESULTS)
    drawn = figures.horizons(results)
    assert drawn is not None
    (axis,) = [a for a in drawn.axes if a.get_visible() and planner in a.get_title("left") + a.get_title()]
    source = json.loads((RESULTS / file).read_text())
    own = {row["name"]: {} for c in source["cells"] for row in c["rows"] if not row["control"]}
    for cell in source["cells"]:
        for row in cell["rows"]:
            if not row["control"]:
                own[row["name"]][cell["horizon"]] = 100 * row["budgets"]["50"]["terminal"]["rate"]
    shown = sorted(tuple(line.get_ydata()) for line in axis.lines)
    want = sorted(tuple(points[h] for h in sorted(points)) for points in own.values())
    np.testing.assert_allclose(shown, want)
    assert list(axis.lines[0].get_xdata()) == horizons


def test_training_curves_have_a_line_for_every_run_and_a_name_for_every_cell():
    document = read_results(RESULTS).curves["pusht-112-training.json"]
    drawn = figures.curves(document)
    assert [len(a.lines) for a in drawn.axes] == [12] * 4
    (legend,) = drawn.legends
    assert len(legend.get_texts()) == 4 and all("λ=" in t.get_text() for t in legend.get_texts())
    first = next(r for r in document["runs"] if r["lam"] == 1.0)["curves"]
    assert any(list(line.get_ydata()) == first["effective_dimension"] for line in drawn.axes[2].lines)
