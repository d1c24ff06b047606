"""What is said about a sweep, on records with known answers."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lpwm.recipes import recipe
from lpwm.stats import Result, success_interval
from lpwm.sweep.grid import expand, parse_grid
from results.tool import ladder_figures, ladder_page
from results.tool.ladder import best_cells, method_of, results_of, sparse_minus_dense, transfers

spec = importlib.util.spec_from_file_location("made_up", Path(__file__).with_name("made_up.py"))
made_up = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made_up)


@pytest.fixture(scope="module")
def made():
    grid, cells, records = made_up.ladder()
    return results_of(records, made_up.sweep_of(grid, cells))


def test_the_best_cell_is_chosen_on_some_seeds_and_reported_on_the_others(made):
    bests = best_cells(made)
    assert len(bests) == 3 * 3 * 3
    for b in bests:
        assert (b.lam, b.lr) == (1.0, 5e-4) and b.of == 9 and b.honest
        assert b.chosen_on == (0, 1) and b.reported_on == (2, 3)
        # Re-derived from the records: the mean over the reporting seeds, and its interval.
        look = made.looks[0]
        mine = [p for p in made.points if p.key == b.key and (p.lam, p.lr) == (1.0, 5e-4) and p.seed in (2, 3)]
        rates = [
            np.mean([[c == "1" for c in s] for s in p.evals["closed"][1].at(250, "latched").success]) for p in mine
        ]
        assert b.intervals[look].estimate == pytest.approx(np.mean(rates))
        assert b.intervals[look].low < b.intervals[look].estimate < b.intervals[look].high


TWO = """recipe = "tiny/lpwm"
seeds = [0, 1, 2]
select_seeds = [0]
[axes]
"objective.lam" = [1.0, 2.0]
[eval]
preset = "quick"
goals = ["random"]
episodes = 10
budgets = [25]
"""


def two(rates, text=TWO, keep=lambda cell: True):
    """rates[λ][seed]: successes of ten."""
    grid = parse_grid(text, "two")
    cells = expand(grid, recipe)
    records = [
        made_up.record(c, {"eval": ["1" * n + "0" * (10 - n)]})
        for c in cells
        if keep(c)
        for n in [rates[c.config.objective.lam][c.config.train.seed]]
    ]
    return results_of(records, made_up.sweep_of(grid, cells))


def test_a_lucky_seed_chooses_but_does_not_report():
    (b,) = best_cells(two({1.0: [3, 9, 9], 2.0: [8, 1, 2]}))
    assert b.lam == 2.0 and b.intervals[next(iter(b.intervals))].estimate == pytest.approx(0.15)
    expected = np.zeros((2, 1, 10), bool)
    expected[0, 0, :1] = expected[1, 0, :2] = True
    again = success_interval(Result.of("x", expected, episodes=range(10)))
    assert b.intervals[next(iter(b.intervals))].low == pytest.approx(again.low)


def test_ties_go_to_the_smaller_setting_and_a_lone_setting_is_not_chosen():
    (b,) = best_cells(two({1.0: [5, 1, 1], 2.0: [5, 9, 9]}))
    assert b.lam == 1.0
    (b,) = best_cells(two({1.0: [5, 1, 1], 2.0: [0, 0, 0]}, keep=lambda c: c.config.objective.lam == 1.0))
    assert b.of == 1 and b.chosen_on == () and b.reported_on == (0, 1, 2)
    assert b.intervals[next(iter(b.intervals))].estimate == pytest.approx(7 / 30)


def test_without_other_seeds_the_choice_is_called_what_it_is():
    (b,) = best_cells(two({1.0: [3, 0, 0], 2.0: [8, 0, 0]}, keep=lambda c: c.config.train.seed == 0))
    assert not b.honest and b.chosen_on == b.reported_on == (0,)


def test_an_unfinished_setting_does_not_compete():
    keep = lambda c: not (c.config.objective.lam == 2.0 and c.config.train.seed == 0)  # noqa: E731
    (b,) = best_cells(two({1.0: [1, 1, 1], 2.0: [9, 9, 9]}, keep=keep))
    assert b.lam == 1.0


def test_the_dead_count_as_no_success(made):
    dead = [p for p in made.points if p.dead]
    assert dead and all(p.rate(made.looks[0]) == 0.0 for p in dead)
    assert all(p.key.rung == "mlp-lti" and p.lr == 5e-3 for p in dead)


def test_sparse_minus_dense_is_paired_and_signed(made):
    gaps = sparse_minus_dense(made, best_cells(made))
    assert len(gaps) == 2 * 3 * 3 * 2  # two sparse methods, rungs, widths, looks
    for d in gaps:
        assert d.a.sparse and d.b.key.method == "LeWM" and d.a.key.rung == d.b.key.rung and d.comparison.n == 2
        gap = d.comparison.difference.estimate
        a, b = (x.results[d.look].success_SPE.mean() for x in (d.a, d.b))
        assert gap == pytest.approx(a - b)
        if d.a.key.rung == "mlp-lti":
            assert gap > 0.25
        assert d.comparison.verdict.startswith("exploratory")


def test_transfer_names_the_best_rate_of_each_width():
    text = made_up.LADDER.replace(
        'rung = ["lti1", "mlp-lti", "deep-adaln"]', 'rung = ["lti1"]\n"optim.mup" = [true, false]'
    )
    grid = parse_grid(text.replace('["lpwm", "lewm", "lpwm-mu1"]', '["lpwm"]'), "t")
    cells, records = expand(grid, recipe), []
    for cell in cells:
        c = cell.config
        top = 5e-4 if c.optim.mup or c.model.latent == 384 else 5e-5  # plain: the wider want less
        rate = 0.9 if c.optim.lr == top else 0.3
        records.append(made_up.record(cell, {"closed": rate * (c.objective.lam == 1.0), "open": 0.1}))
    result = transfers(results_of(records, made_up.sweep_of(grid, cells)))
    by = {t.mup: t for t in result}
    assert by[True].best == {384: 5e-4, 768: 5e-4, 1536: 5e-4} and by[True].decades == 0 and by[True].loss == 0
    assert by[False].best == {384: 5e-4, 768: 5e-5, 1536: 5e-5} and by[False].decades == pytest.approx(1)
    assert by[False].loss == pytest.approx(0.6, abs=0.1) and by[False].lam == 1.0


def test_methods_have_one_name():
    names = "wall/lti1/lpwm wall/lti1/lewm wall/lti1/lpwm-mu1 wall/lti1/relu wall/mlp-lti/vicreg piecewise-2x2/lpwm-tj"
    methods = [method_of(recipe(name)) for name in names.split()]
    assert methods == ["LpWM", "LeWM", "LpWM μ=−1", "LpWM (ReLU)", "VICReg", "LpWM +TJ 0.01"]


def test_every_figure_is_drawn_and_the_page_holds_every_number(made, tmp_path):
    few = replace(made, points=tuple(p for p in made.points if p.key.latent < 1000))
    bests = best_cells(few)
    gaps, moved = sparse_minus_dense(few, bests), transfers(few)
    drawn = ladder_figures.draw(few, bests, gaps, moved)
    names = [n for n, _, _ in drawn]
    assert {"heat-wall-lpwm-mup", "heat-wall-lpwm-mu-minus1-mup", "ladder-wall-1", "ladder-wall-2"} <= set(names)
    assert {"loops-wall", "scatter-wall", "transfer-wall-lewm"} <= set(names)
    assert len(set(names)) == len(names) and all(n.isascii() for n in names)
    # The ladder's points are the intervals' estimates.
    figure = next(f for n, _, f in drawn if n == "ladder-wall-1")
    shown = {
        round(line.get_ydata()[0], 6) for axis in figure.axes[:2] for line in axis.lines if len(line.get_ydata()) == 1
    }
    assert shown == {round(100 * b.intervals[few.looks[0]].estimate, 6) for b in bests}
    text = ladder_page.render(few, bests, gaps, moved, drawn[:1])
    for b in bests:
        assert b.intervals[few.looks[0]].text().replace(" %", "") in text
    assert "<script" not in text and "http" not in text.replace("http-equiv", "")
    paths = ladder_page.save(tmp_path, drawn[:1], ("png",))
    assert paths[0].read_bytes()[:4] == b"\x89PNG"
