"""Probes on codes with a known answer, by trajectory, with intervals that cover and controls at chance."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_score
from threadpoolctl import threadpool_info, threadpool_limits

from lpwm.core.errors import UserError
from lpwm.interpret import Frames, ProbeConfig, probe, probes
from lpwm.interpret.probes import accuracy, bootstrap, r_squared, regressed, shuffle_trajectories

QUICK = ProbeConfig(resamples=300)


def estimates(scores):
    return {name: s.estimate for name, s in scores.items()}


def between_zones(frames):
    """The share of the positions' variance that lies between zones: what the zone alone explains."""
    left = sum(((p := frames.position_NS[frames.zone_N == k]) - p.mean(0)).__pow__(2).sum() for k in range(4))
    return 1 - left / ((frames.position_NS - frames.position_NS.mean(0)) ** 2).sum()


@pytest.fixture(scope="module")
def result(synthetic):
    made = {kind: synthetic(kind).frames for kind in ("zone", "reverse", "nothing")}
    return {kind: (frames, probe(frames, QUICK)) for kind, frames in made.items()}


def test_zone_coded_supports_with_magnitude_coded_positions(result):
    frames, got = result["zone"]
    zone, position = estimates(got.zone), estimates(got.position)
    assert zone["support"] == 1 and zone["code"] > 0.99
    assert zone["magnitudes"] < 0.45  # linearly, nothing but chance
    assert position["code"] > 0.99
    # The zone's center, no more; a little less, as the centers come from other trajectories.
    assert between_zones(frames) - 0.05 < position["support"] <= between_zones(frames)
    assert got.position_given_support.estimate > 0.98  # the rest is in the magnitudes
    assert position["magnitudes"] == pytest.approx(1 - between_zones(frames), abs=0.05)


def test_the_reverse(result):
    frames, got = result["reverse"]
    zone, position = estimates(got.zone), estimates(got.position)
    assert zone["support"] < 0.4 and zone["code"] > 0.99 and zone["magnitudes"] > 0.99
    assert position["support"] == pytest.approx(1 - between_zones(frames), abs=0.1)  # where in its zone
    assert 0.5 < position["magnitudes"] < between_zones(frames)  # in which zone
    assert position["code"] > 0.9


def test_chance_where_nothing_is_coded(result):
    _, got = result["nothing"]
    for name in ("code", "support", "magnitudes"):
        assert abs(got.zone[name].estimate - got.majority) < 0.12
        assert -0.4 < got.position[name].estimate < 0.02
    assert got.position_given_support.estimate < 0.02
    assert estimates(got.zone)["position"] > 0.9  # the true position still says the zone


@pytest.mark.parametrize("kind", ["zone", "reverse", "nothing"])
def test_shuffled_labels_are_at_chance_whatever_is_coded(result, kind):
    _, got = result[kind]
    for score in got.zone.values():
        assert score.shuffled.estimate < got.majority + 0.12 and score.converged
    for score in (*got.position.values(), got.position_given_support):
        assert score.shuffled.estimate < 0.05


def test_probes_use_one_thread_however_many_are_allowed(synthetic, monkeypatch):
    seen, plain = [], probes.features

    def watched(*args):
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return plain(*args)

    monkeypatch.setattr(probes, "features", watched)
    with threadpool_limits(2):
        before = [pool["num_threads"] for pool in threadpool_info()]
        probe(synthetic("zone").frames, QUICK)
        assert [pool["num_threads"] for pool in threadpool_info()] == before
    assert set(seen) == {1} and 2 in before


def test_a_trajectory_is_never_on_both_sides():
    """Codes that name their trajectory and random labels for whole trajectories: a split by frame would be fooled."""
    draw = np.random.default_rng(0)
    E, T = 80, 10
    trajectory = np.repeat(np.arange(E), T)
    z = np.maximum(draw.normal(size=(E, 64))[trajectory] + 0.1 * draw.normal(size=(E * T, 64)), 0)
    label, place = draw.integers(0, 4, E)[trajectory], draw.uniform(14, 210, (E, 2))[trajectory]
    got = probe(Frames(z, label, place, trajectory, True), QUICK)
    for name in ("code", "support", "magnitudes"):
        assert got.zone[name].estimate < 0.42
        assert got.position[name].estimate < 0.05
    fooled = cross_val_score(LogisticRegression(max_iter=300), z, label, cv=KFold(5, shuffle=True, random_state=0))
    assert fooled.mean() > 0.95


def test_what_is_left_of_the_code_is_uncorrelated_with_the_support():
    draw = np.random.default_rng(1)
    s = (draw.random((200, 12)) < 0.5).astype(float)
    s[:, 11] = s[:, 10]  # units that always go together
    z = s * draw.uniform(0.5, 1.5, s.shape)
    train = np.arange(150)
    left = (z - regressed(z, s, train))[train]
    assert np.abs(left.mean(0)).max() < 1e-10 and np.abs(left.T @ s[train]).max() < 1e-9
    assert left.std() > 0.1
    constant = s * 2.0  # magnitudes that say nothing leave nothing
    assert np.abs(constant - regressed(constant, s, train)).max() < 1e-10


def test_a_unit_that_is_rarely_on_does_not_blow_up():
    draw = np.random.default_rng(2)
    E, T = 50, 10
    position = draw.uniform(14, 210, (E * T, 2))
    z = np.maximum((position - 112) / 98 @ draw.normal(size=(2, 12)) + 0.5, 0)
    rare = np.zeros((E * T, 2))
    rare[[0, 100, 250, 400, 499], 0] = [1.0, 1.001, 1.0, 1.001, 3.0]  # alike, but for one trajectory
    rare[77, 1] = 2.0
    zone = (position[:, 1] >= 112) * 2 + (position[:, 0] >= 112)
    trajectory = np.repeat(np.arange(E), T)
    bare, with_rare = (
        probe(Frames(x, zone.astype(np.int64), position, trajectory, True), QUICK) for x in (z, np.hstack((z, rare)))
    )
    for name in ("code", "support", "magnitudes"):
        a, b = estimates(bare.position)[name], estimates(with_rare.position)[name]
        assert b == pytest.approx(a, abs=0.03)


def test_shuffling_moves_whole_trajectories():
    trajectory = np.repeat([7, 3, 9, 1], [4, 2, 4, 3])
    values = trajectory * 10 + np.concatenate([np.arange(n) for n in (4, 2, 4, 3)])
    out = shuffle_trajectories(values, trajectory, (0,))
    donors = []
    for t in (7, 3, 9, 1):
        rows = out[trajectory == t]
        assert len(set(rows // 10)) == 1  # all from one
        donors.append(rows[0] // 10)
        length = {7: 4, 3: 2, 9: 4, 1: 3}[donors[-1]]
        assert (rows % 10).tolist() == [i % length for i in range(len(rows))]
    assert sorted(donors) == [1, 3, 7, 9] and all(d != t for d, t in zip(donors, (7, 3, 9, 1), strict=True))
    assert np.array_equal(out, shuffle_trajectories(values, trajectory, (0,)))


def test_scores_from_sums_are_those_of_the_frames():
    draw = np.random.default_rng(3)
    y = draw.normal(size=(50, 2)) + 5
    guess = y + 0.3 * draw.normal(size=y.shape)
    sums = np.array([50, ((y - guess) ** 2).sum(), (y**2).sum(), *y.sum(0)])
    assert r_squared(sums) == pytest.approx(1 - ((y - guess) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())


def test_intervals_cover():
    """Trajectories that differ in difficulty: 95 % intervals hold the truth about 95 times in 100."""
    draw = np.random.default_rng(4)
    held = naive = 0
    for k in range(300):
        rate = draw.beta(4, 1, 60)  # mean 0.8
        correct = draw.binomial(20, rate)
        tally = np.stack((np.full(60, 20.0), correct), -1)
        interval = bootstrap(tally, accuracy, ProbeConfig(resamples=300, seed=k))
        held += 0.8 in interval
        p = correct.sum() / 1200
        naive += abs(p - 0.8) < 1.96 * (p * (1 - p) / 1200) ** 0.5
    assert 0.89 <= held / 300 <= 0.985
    assert naive / 300 < 0.75  # frames are not independent trials


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trajectory_N": np.zeros(720, np.int64)}, "only 1 held-out trajectory is there"),
        ({"trajectory_N": np.repeat(np.arange(4), 180)}, "only 4 held-out trajectories are there: hold out more"),
        ({"zone_N": np.zeros(720, np.int64)}, "all held-out frames lie in one zone"),
        ({"zone_N": np.zeros(3, np.int64)}, "for every code"),
        ({"z_ND": np.full((720, 4), np.nan)}, "diverged"),
        ({"z_ND": np.full((720, 4), -1.0)}, "it is dense"),
    ],
)
def test_bad_input_is_one_sentence(synthetic, change, words):
    f = synthetic("zone").frames
    given = dict(z_ND=f.z_ND, zone_N=f.zone_N, position_NS=f.position_NS, trajectory_N=f.trajectory_N, sparse=True)
    with pytest.raises(UserError, match=words):
        probe(Frames(**(given | change)), QUICK)
    with pytest.raises(UserError, match="2 folds"):
        ProbeConfig(folds=1)
