"""Sparsity, contact and the proposition: the newest of each run, put on the page, drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lpwm.core.json import to_json
from lpwm.interpret import Contact, ContactConfig, Sparsity, Track, inspect_tracks
from lpwm.report import figures, page
from lpwm.report.figures import contact
from lpwm.report.gather import Gathered, _newest


def tracks(seed, episodes=9, T=12, D=20):
    draw, out = np.random.default_rng(seed), []
    for e in range(episodes):
        walk = [np.cumsum(draw.normal(size=(T * 2 - 1, 3)), 0) for _ in range(2)]
        touch = np.zeros(T * 2 - 1, dtype=bool)
        touch[4 + e % 3 : 12] = True
        out.append(Track(e, draw.random((T, D)) < 0.4, *walk, touch, 2))
    return out


def info(run, latent=20):
    about = {"method": run.name, "latent": latent, "step": 40, "sparse": True, "link": "relu"}
    return {"name": run.name, "hash": run.hash, "seed": run.seed, **about}


def contact_result(run, weight, seed=0):
    numbers = to_json(inspect_tracks(tracks(seed), ContactConfig(resamples=100)))
    about = {"kind": Contact.KIND, "tj_weight": weight, "world": {"name": "cube"}, "run": info(run)}
    return Contact.from_json(about | numbers)


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


@pytest.fixture(scope="module")
def given(documents):
    runs = [documents.run("lpwm", 0), documents.run("lpwm", 1)]
    return Gathered(
        runs,
        sparsity=[sparsity_result(runs[0]), sparsity_result(runs[1], active=0.5)],
        contact=[contact_result(runs[0], 0.0), contact_result(runs[1], 0.1, 1)],
    )


@pytest.fixture(scope="module")
def text(given):
    return page.render(given)


def test_the_page_has_a_section_for_each_and_says_their_numbers(text):
    for name in ("sparsity", "contact"):
        assert text.count(f'<section id="{name}"') == 1 and f'<a href="#{name}">' in text
    assert "0.450 [0.000, 1.000]" in text  # the two seeds of one cell together: a rate ends at 0 and 1
    assert "3 of 16" in text and ("control −0." in text or "control 0." in text)
    assert text.count('src="data:image/png;base64,') == 2
    assert text.count("<img alt=") == 2 and 'alt=""' not in text


def test_a_page_without_them_has_none_of_it(documents):
    text = page.render(Gathered([documents.run("lpwm")]))
    assert not any(f'id="{name}"' in text for name in ("sparsity", "contact"))


def test_figures_are_files_too(documents, given, tmp_path):
    bare = replace(given, runs=[documents.run("lpwm", seed, log=False) for seed in (0, 1)])
    made = figures.write(tmp_path, bare, formats=("png",))
    names = ("contact-episode", "contact-raster")
    assert {p.name for p in made} == {f"{name}.png" for name in names}


def test_the_newest_result_of_each_run_is_picked(documents):
    a, b = documents.run("lpwm", 0), documents.run("lpwm", 1)
    results = [sparsity_result(b), sparsity_result(a, active=0.1), contact_result(a, 0.0), sparsity_result(a)]
    newest = _newest(results, Sparsity, {a.hash: 0, b.hash: 1})
    assert newest == [results[3], results[0]]


def test_an_episode_is_drawn_for_each_weight_and_without_a_factor_that_varies(documents):
    group = [contact_result(documents.run("lpwm", s), weight, s) for s, weight in enumerate((0.1, 0.1, 0.0))]
    group[0] = replace(group[0], correlations={**group[0].correlations, "cube": None})
    titles = [axis.get_title() for axis in contact.episode(group).axes]
    assert [title.split(",")[0] for title in titles] == [f"temporal-Jaccard weight {w}" for w in ("0", "0.1")]


def test_a_rung_that_the_paper_does_not_have_is_called_by_its_name(documents):
    text = page.render(Gathered([documents.run()], sparsity=[sparsity_result(documents.run(), rung="my-gru")]))
    assert ">my-gru<" in text
