"""Sparsity, contact and the proposition: picked from files, put on the page, drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lpwm.interpret.contact import KIND as CONTACT
from lpwm.interpret.contact import ContactConfig, Track, read_tracks
from lpwm.interpret.sparsity import KIND as SPARSITY
from lpwm.report import contact, figures, page, readings, theory
from lpwm.report.found import found_of
from lpwm.theory.study import StudyConfig


def tracks(seed, episodes=9, T=12, D=20):
    draw, out = np.random.default_rng(seed), []
    for e in range(episodes):
        walk = [np.cumsum(draw.normal(size=(T * 2 - 1, 3)), 0) for _ in range(2)]
        touch = np.zeros(T * 2 - 1, dtype=bool)
        touch[4 + e % 3 : 12] = True
        out.append(Track(e, draw.random((T, D)) < 0.4, *walk, touch, 2))
    return out


def contact_reading(run, weight, seed=0):
    return {
        "kind": CONTACT,
        "tj_weight": weight,
        "world": {"name": "cube", "options": {}},
        "run": {"name": run["name"], "hash": run["hash"], "seed": 0, "method": run["name"]},
        **read_tracks(tracks(seed), ContactConfig(resamples=100)),
    }


def sparsity_reading(run, rung="mlp-lti", D=16, active=0.4):
    near = {"estimate": active, "low": active - 0.01, "high": active + 0.01}
    return {
        "kind": SPARSITY,
        "rung": rung,
        "world": {"name": "piecewise", "options": {"g": 2}},
        "active_fraction": near,
        "run": {"name": run["name"], "hash": run["hash"], "seed": 0, "latent": D},
        "at_least": 0.2,
        "dead_units": 3,
        "target": {"p": 1.0, "mu": 0.0, "axis_fraction": 0.0, "active_fraction": 0.5, "at_least": 0.25},
        "always_on_units": 1,
        "units_on": [1, 2, 3, 4, 5],
        "effective_dimension": 4.5,
    }


@pytest.fixture(scope="module")
def proposition():
    return theory.theory(2, StudyConfig(states=300, sequences=1))


@pytest.fixture(scope="module")
def given(documents, proposition):
    runs = [documents.run("lpwm", 0), documents.run("lpwm", 1)]
    found = [
        sparsity_reading(runs[0]),
        sparsity_reading(runs[1], active=0.5),
        contact_reading(runs[0], 0.0),
        contact_reading(runs[1], 0.1, 1),
        proposition,
    ]
    return runs, found


@pytest.fixture(scope="module")
def text(given):
    runs, found = given
    return page.render(runs, readings=found)


def test_the_page_has_a_section_for_each_and_says_their_numbers(text):
    for name in ("sparsity", "contact", "theory"):
        assert text.count(f'<section id="{name}"') == 1 and f'<a href="#{name}">' in text
    assert "0.450 [" in text  # the two seeds of one cell together
    assert ("3 of 16" in text and "control −0." in text) or "control 0." in text
    assert "d × slope, worst" in text and text.count('src="data:image/png;base64,') == 5
    assert text.count("<img alt=") == 5 and 'alt=""' not in text


def test_a_page_without_them_has_none_of_it(documents):
    text = page.render([documents.run("lpwm")])
    assert not any(f'id="{name}"' in text for name in ("sparsity", "contact", "theory"))


def test_figures_are_files_too(given, tmp_path):
    runs, found = given
    assert set(readings.figures(found_of(runs, (), (), (), found))) == {
        "contact-weights",
        "contact-episode",
        "contact-raster",
        "theory-slopes",
        "theory-borders",
    }
    bare = [{k: v for k, v in run.items() if k not in ("train", "val")} for run in runs]
    made = figures.write(tmp_path, bare, readings=found[2:4], formats=("png",))
    assert {p.name for p in made} == {"contact-weights.png", "contact-episode.png", "contact-raster.png"}


def test_the_newest_reading_of_each_run_is_picked(documents):
    a, b = documents.run("lpwm", 0), documents.run("lpwm", 1)
    old, new = sparsity_reading(a, active=0.1), sparsity_reading(a, active=0.9)
    stranger = sparsity_reading({"name": "x", "hash": "none of these"})
    bundle = {"kind": readings.BUNDLE, "readings": [sparsity_reading(b), old, stranger]}
    dated = [(2.0, new), (1.0, bundle), (0.0, {"kind": "something else"})]
    found = readings.pick(dated, [a["hash"], b["hash"]])
    assert [(r["run"]["hash"], r["active_fraction"]["estimate"]) for r in found] == [(a["hash"], 0.9), (b["hash"], 0.4)]


def test_planning_stands_below_its_weight(documents):
    runs = [documents.run("lpwm", 0), documents.run("lewm", 0)]
    studies = [contact_reading(runs[0], 0.0), contact_reading(runs[1], 0.05)]
    found = contact.planning([documents.evaluation(runs=runs)], studies)
    assert {title.split(",")[0] for title in found} == {"dataset goals", "random goals"}
    for rows in found.values():
        by = {r["name"]: r for r in rows}
        assert by["tiny-lpwm"]["weight"] == 0.0 and by["tiny-lewm"]["weight"] == 0.05
        assert by["oracle"]["weight"] is None and by["tiny-lewm"]["rate"] < by["tiny-lpwm"]["rate"]
    assert contact.planning([], studies) == {}
    assert contact.weights(studies, found).axes[1].get_title() == "Planning"
    assert len(contact.weights(studies).axes) == 1


def test_seeds_of_one_weight_are_pooled(documents):
    runs = [documents.run("lpwm", s) for s in (0, 1)]
    group = [contact_reading(r, 0.1, s) for s, r in enumerate(runs)]
    each = [s["correlations"]["cube"]["estimate"] for s in group]
    found = contact.pooled(group, "cube")
    assert found["estimate"] == pytest.approx(np.mean(each)) and found["unit"] == "checkpoints"
    assert contact.pooled(group[:1], "cube")["unit"] == "episodes of one checkpoint"
    group[0]["correlations"] = {**group[0]["correlations"], "cube": None}
    assert contact.pooled(group, "cube") is None and contact.weights(group) and contact.episode(group)


def test_names_of_runs_are_escaped(documents):
    run = documents.run("lpwm", 0, name="<b>bold")
    text = page.render([run], readings=[sparsity_reading(run), contact_reading(run, 0.0)])
    assert "<b>bold" not in text and "&lt;b&gt;bold" in text


def test_found_keeps_them(given):
    runs, found = given
    kept = found_of(runs, (), (), (), found)
    assert [r["kind"] for r in readings.of_kind(kept, CONTACT)] == [CONTACT] * 2
    json.dumps(found, allow_nan=False)
