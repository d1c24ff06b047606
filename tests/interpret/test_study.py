"""A whole study of real run folders (fresh weights: nothing needs to be good), its JSON, and studies side by side."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.interpret import Frames, ProbeConfig, Study, StudyConfig, compare, study
from lpwm.interpret.compare import MEASURES, table
from lpwm.interpret.results import results_of
from lpwm.interpret.study import held_out_frames, statistics
from lpwm.train import load

QUICK = StudyConfig(resolution=6, resamples=20, probes=ProbeConfig(resamples=100))


@pytest.fixture(scope="module")
def folders(root, fresh_run):
    return {
        (kind, seed): fresh_run(root, kind, link, seed)
        for kind, link in (("lpwm", "reprelu"), ("lewm", "identity"))
        for seed in (0, 1)
    }


@pytest.fixture(scope="module")
def studies(folders):
    return {key: study(load(folder), QUICK) for key, folder in folders.items()}


def test_a_study_survives_json_and_says_what_made_it(studies, folders):
    one = studies["lpwm", 1]
    record = json.loads(json.dumps(one.to_json(), allow_nan=False))
    assert Study.from_json(record) == one and (record["kind"], record["version"]) == ("lpwm interpretation", 1)
    several = {"kind": "lpwm interpretations", "studies": [record]}
    assert results_of(several) == results_of(record) == [one] and results_of({"kind": "other"}) == []
    run = one.run
    assert folders["lpwm", 1].name == run.name == f"lpwm-{run.hash}"
    assert (run.seed, run.step, run.sparse, run.latent) == (1, 7, True, 12)
    assert one.settings.resolution == 6 and one.settings.visible is False
    assert one.probes.frames == 12 * 5 and len(one.probes.trajectories) == 12
    assert one.supports.kind == "support" and studies["lewm", 0].supports.kind == "sign pattern"
    assert sorted(one.supports.unit_order) == sorted(one.units.numbers) == list(range(12)) and one.units.zoned


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "lpwm sparsity"}, "not of the kind 'lpwm interpretation'"),
        ({"version": 2}, "is of version 2"),
        ({"probes": {}}, "file.json: probes.zone is missing"),
        ({"seconds": "long"}, "file.json: seconds = 'long' must be of type float"),
    ],
)
def test_files_of_something_else_name_the_field(studies, change, words):
    with pytest.raises(UserError, match=words):
        Study.from_json(studies["lpwm", 0].to_json() | change, "file.json")


def test_supports_in_the_json_are_those_of_the_model(studies, folders):
    loaded = load(folders["lpwm", 0])
    one = studies["lpwm", 0]
    active = one.grid.supports.unpack()
    assert active.std(axis=(0, 1)).mean() > 0.1  # supports differ from cell to cell
    with torch.no_grad():  # one cell by hand: row 1, column 4
        frame = loaded.world.render(torch.tensor([[14 + 4.5 * 196 / 6, 14 + 1.5 * 196 / 6]]), 28)
        z = loaded.model.encode(frame)[0].numpy()
    assert np.array_equal(z > 0, active[1, 4])
    assert len(one.grid.references) == 4
    for r in one.grid.references:
        assert one.grid.zones[r.row][r.col] == r.zone
        assert np.allclose(one.jaccard_map(r.row, r.col), r.jaccard, atol=5e-7)


def test_statistics_are_of_held_out_frames_only(studies, folders):
    loaded, one = load(folders["lpwm", 0]), studies["lpwm", 0]
    frames = held_out_frames(loaded, loaded.episodes(), QUICK)
    from lpwm.data import split_episodes

    train, held = (set(x.tolist()) for x in split_episodes(40, 0.3))
    used = set(one.probes.trajectories)
    assert used == held and not used & train and one.raster.episode in held
    s = one.supports
    assert s.active_fraction == pytest.approx(frames.active_ND.mean())
    assert s.dead_units == int((~frames.active_ND).all(0).sum())
    assert s.distinct == len({row.tobytes() for row in frames.active_ND})
    fewer = held_out_frames(loaded, loaded.episodes(), replace(QUICK, frames=33))
    assert len(fewer.z_ND) == 30  # whole trajectories of 5 frames


def test_statistics_by_hand():
    """Four units over two trajectories of three frames: never, always, once, now and then."""
    on = np.array([[0, 1, 1, 1], [0, 1, 0, 0], [0, 1, 0, 1], [0, 1, 0, 0], [0, 1, 0, 1], [0, 1, 0, 1]])
    trajectory = np.repeat([5, 2], 3)
    result = statistics(Frames(on * 0.7, trajectory, np.zeros((6, 2)), trajectory, True), ProbeConfig(), np.arange(4))
    assert (result.dead_units, result.always_on_units, result.distinct, result.frames) == (1, 1, 3, 6)
    assert result.activity == (0, 1, pytest.approx(1 / 6, abs=1e-5), pytest.approx(4 / 6, abs=1e-5))
    assert result.active_fraction == pytest.approx(11 / 24)
    changes = [1 - 1 / 3, 1 / 2, 1 / 2, 0]  # within trajectories only
    assert result.instability.estimate == pytest.approx(np.mean(changes))
    assert result.instability_between == pytest.approx(1 - 1 / 3)  # the first frames of the two
    with pytest.raises(UserError, match="a single frame"):
        statistics(Frames(on * 0.7, trajectory, np.zeros((6, 2)), np.arange(6), True), ProbeConfig(), np.arange(4))


def test_the_raster_is_an_episode_step_by_step(studies, folders):
    result = studies["lpwm", 0].raster
    states, _ = load(folders["lpwm", 0]).episodes().episode(result.episode)
    active = result.supports.unpack()
    assert active.shape == (21, 12) and np.allclose(result.positions, states.numpy(), atol=0.005)
    for t in range(20):
        both, either = (active[t] & active[t + 1]).sum(), (active[t] | active[t + 1]).sum()
        assert result.instability[t] == pytest.approx(1 - both / either if either else 0, abs=1e-6)


def test_zones_can_be_drawn_or_hidden(folders):
    loaded = load(folders["lpwm", 0])
    frames = {
        v: held_out_frames(loaded, loaded.episodes(), replace(QUICK, visible=v)).z_ND for v in (None, False, True)
    }
    assert np.array_equal(frames[None], frames[False]) and not np.allclose(frames[False], frames[True])
    one = study(loaded, replace(QUICK, visible=True, cells=((2, 3),)))
    assert one.world.options["visible"] and not one.world.trained_visible
    assert [(r.row, r.col) for r in one.grid.references] == [(2, 3)]


def test_sparse_beside_dense_over_seeds(studies):
    compared = compare(list(studies.values()))
    sparse, dense = compared.methods
    assert sparse.sparse and not dense.sparse and sparse.seeds == dense.seeds == (0, 1)
    gap = next(d for d in compared.differences if d.measure == "sharpness")
    of = {key: s.sharpness.sharpness.estimate for key, s in studies.items()}
    gaps = [of["lpwm", s] - of["lewm", s] for s in (0, 1)]
    assert gap.estimate == pytest.approx(np.mean(gaps)) and gap.unit == "checkpoints"
    assert gap.high - gap.low == pytest.approx(2 * 12.7062 * np.std(gaps, ddof=1) / 2**0.5, rel=1e-4)
    for method in compared.methods:  # shares end at 0 and 1, whatever t says of two seeds
        for key in ("zone_code", "zone_support", "active_fraction", "instability"):
            assert 0 <= method.measures[key].low <= method.measures[key].high <= 1
    text = table(compared, list(studies.values()), width=200)
    assert "sparse − dense" in text and "dense (sign pattern), 2 seeds" in text


def test_two_checkpoints_are_compared_on_the_trajectories_both_were_probed_on(studies):
    a = studies["lpwm", 0]
    b = replace(a, run=replace(a.run, sparse=False, method="twin", hash="other"))

    def gap(b):
        return next(d for d in compare([a, b]).differences if d.measure == "zone_code")

    same = gap(b)
    assert same.estimate == same.low == same.high == 0 and "these two" in same.unit
    code = replace(a.probes.zone["code"], tally=tuple((n, 0.0) for n, _ in a.probes.zone["code"].tally))  # never right
    wrong = replace(a.probes, zone={**a.probes.zone, "code": code})
    assert gap(replace(b, probes=wrong)).estimate == pytest.approx(a.probes.zone["code"].estimate)
    assert gap(replace(b, probes=replace(wrong, trajectories=(0,)))).low is None  # nothing to pair


def test_the_table_fits_the_terminal(studies):
    pair = [studies["lpwm", 0], studies["lewm", 0]]
    compared = compare(pair)
    wide, narrow = table(compared, pair, 200), table(compared, pair)
    assert len(wide.splitlines()) == 1 + len(MEASURES) + 2
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    value = studies["lpwm", 0].sharpness.sharpness.estimate
    assert f"{value:.3f}" in narrow


def test_runs_that_cannot_be_read_say_why(root, folders, fresh_run):
    single = load(fresh_run(root, "single", options=("g=1",)))
    with pytest.raises(UserError, match="single zone"):
        study(single, QUICK)
    loaded = load(folders["lpwm", 0])
    for change, words in (({"resolution": 3}, "use 4 .two a zone. to 64"), ({"resolution": 65}, "to 64")):
        with pytest.raises(UserError, match=words):
            study(loaded, replace(QUICK, **change))


def test_studies_that_cannot_be_compared_say_why(studies):
    one = studies["lpwm", 0]
    with pytest.raises(UserError, match="at least one"):
        compare([])
    with pytest.raises(UserError, match="given twice"):
        compare([one, one])
    lewm = studies["lewm", 0]
    other = replace(lewm, world=replace(lewm.world, options={**lewm.world.options, "visible": True}))
    with pytest.raises(UserError, match="--visible or --hidden"):
        compare([one, other])
