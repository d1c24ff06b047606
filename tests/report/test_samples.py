"""Sparsity: the newest of each run, put on the page."""

from __future__ import annotations

from lpwm.interpret import Sparsity
from lpwm.report import page
from lpwm.report.gather import Gathered, _newest


def info(run, latent=20):
    about = {"method": run.name, "latent": latent, "step": 40, "sparse": True, "link": "relu"}
    return {"name": run.name, "hash": run.hash, "seed": run.seed, **about}


def sparsity_result(run, rung="mlp-lti", D=16, active=0.4):
    return Sparsity.from_json(
        {
            "kind": Sparsity.KIND,
            "rung": rung,
            "world": {"name": "piecewise", "options": {"g": 2}},
            "active_fraction": {"estimate": active, "low": active - 0.01, "high": active + 0.01},
            "run": info(run, D),
            "at_least": 0.2,
            "activity": [active] * D,
            "dead_units": 3,
            "target": {"p": 1.0, "mu": 0.0, "axis_fraction": 0.0, "active_fraction": 0.5, "at_least": 0.25},
            "always_on_units": 1,
            "units_on": [1, 2, 3, 4, 5],
            "effective_dimension": 4.5,
        }
    )


def test_the_page_has_a_section_and_says_its_numbers(documents):
    runs = [documents.run("lpwm", 0), documents.run("lpwm", 1)]
    text = page.render(Gathered(runs, sparsity=[sparsity_result(runs[0]), sparsity_result(runs[1], active=0.5)]))
    assert text.count('<section id="sparsity"') == 1 and '<a href="#sparsity">' in text
    assert "0.450 [0.000, 1.000]" in text  # the two seeds of one cell together: a rate ends at 0 and 1
    assert "3 of 16" in text


def test_a_page_without_it_has_none_of_it(documents):
    assert 'id="sparsity"' not in page.render(Gathered([documents.run("lpwm")]))


def test_the_newest_result_of_each_run_is_picked(documents):
    a, b = documents.run("lpwm", 0), documents.run("lpwm", 1)
    results = [sparsity_result(b), sparsity_result(a, active=0.1), sparsity_result(a)]
    newest = _newest(results, Sparsity, {a.hash: 0, b.hash: 1})
    assert newest == [results[2], results[0]]


def test_a_rung_that_the_paper_does_not_have_is_called_by_its_name(documents):
    text = page.render(Gathered([documents.run()], sparsity=[sparsity_result(documents.run(), rung="my-gru")]))
    assert ">my-gru<" in text
