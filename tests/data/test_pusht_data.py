"""Collecting in a world of live simulators, and PushT's data compared with the public set."""

import json
import math

import h5py
import numpy as np
import pytest
import torch

from lpwm import cli
from lpwm.data import collect, read
from lpwm.data.collecting import SHARD
from lpwm.worlds import PushT
from lpwm.worlds.pusht.policy import Pusher

WORLD = PushT()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pusht") / "a.h5"
    collect(WORLD, path, episodes=200, seed=1)
    return path


def test_the_file_holds_what_the_simulator_does(file):
    data = read(file)
    assert data.episodes == 200 and data.attributes["policy"] == "pusher"
    lengths = data.lengths - 1
    assert lengths.min() >= 100 and lengths.max() <= 300 and 180 < lengths.float().mean() < 220
    with h5py.File(file) as f:
        np.testing.assert_array_equal(f["proprio"][:], f["state"][:][:, [0, 1, 5, 6]])
    for e in (0, 57, 199):
        first, n = int(data.offsets[e]), int(data.lengths[e])
        states, actions = data.states[first : first + n], data.actions[first : first + n]
        assert torch.isnan(actions[-1]).all() and torch.isfinite(actions[:-1]).all()
        live = WORLD.open(states[:1])
        again = torch.cat([live.step(a[None]) for a in actions[:-1]])
        assert torch.equal(again, states[1:])


def test_its_statistics_come_close_to_the_public_set(file):
    """The public set of 18,500 trajectories. 25 % for deviations, 48 ± 10 % still, 31 ± 8 % free goals."""
    data = read(file)
    actions = data.actions[torch.isfinite(data.actions).all(dim=1)]
    assert (actions.mean(0) - torch.tensor([-0.0087, 0.0068])).abs().max() < 0.02
    deviations = torch.cat((actions.std(0), data.states.std(0)))
    public = torch.tensor([0.2019, 0.2002, 101, 87, 53, 57, 1.76, 75, 74])
    assert (deviations / public - 1).abs().max() < 0.25
    quiet = count = easy = pairs = 0
    for e in range(data.episodes):
        s = data.states[data.offsets[e] : data.offsets[e] + data.lengths[e]].double().numpy()
        moved = np.abs(np.diff(s[:, 2:5], axis=0))
        moved[:, 2] = np.minimum(moved[:, 2], 2 * np.pi - moved[:, 2])
        quiet, count = quiet + int((moved.max(1) < 1e-4).sum()), count + len(moved)
        far = s[25:] - s[:-25]
        angle = np.abs((far[:, 4] + np.pi) % (2 * np.pi) - np.pi)
        easy += int(((np.hypot(far[:, 2], far[:, 3]) < 20) & (angle < np.pi / 9)).sum())
        pairs += len(far)
    assert abs(100 * quiet / count - 48) < 10 and abs(100 * easy / pairs - 31) < 8
    # Every angle, and pushes on every side of the T.
    assert torch.histc(data.states[:, 4], 12, 0, 2 * math.pi).min() > 0.03 * len(data.states)


def test_what_needs_no_planner_is_told(file, capsys, monkeypatch):
    monkeypatch.setattr("lpwm.data.info.LIVE_TRIALS", 40)
    assert cli.main(["data", "info", str(file), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    nothing = info["controls"]["dataset goals, nothing"]
    assert nothing["latched"] < 40 and info["controls"]["random goals, nothing"]["latched"] < 2


@pytest.fixture(scope="module")
def quick():
    return Pusher(WORLD, least=2, most=6)


def test_contents_do_not_depend_on_the_workers(tmp_path, quick):
    kw = dict(episodes=SHARD + 20, policy=quick)
    alone = collect(WORLD, tmp_path / "a.h5", workers=1, **kw)
    assert collect(WORLD, tmp_path / "b.h5", workers=2, **kw) == alone
    assert collect(WORLD, tmp_path / "c.h5", seed=1, **kw) != alone
    few = collect(WORLD, tmp_path / "few.h5", episodes=9, policy=quick)
    many, few = read(tmp_path / "a.h5"), read(tmp_path / "few.h5")
    assert torch.equal(many.lengths[:9], few.lengths) and torch.equal(many.states[: len(few.states)], few.states)
    assert many.lengths.unique().tolist() == [3, 4, 5, 6, 7]


def test_steps_that_are_told_are_kept_to(tmp_path):
    collect(WORLD, tmp_path / "a.h5", episodes=3, steps=5)
    assert read(tmp_path / "a.h5").lengths.tolist() == [6, 6, 6]
    collect(WORLD, tmp_path / "b.h5", episodes=2, steps=4, policy="random")
    assert read(tmp_path / "b.h5").lengths.tolist() == [5, 5]


def test_frames_of_ragged_episodes(tmp_path, quick):
    collect(WORLD, tmp_path / "a.h5", episodes=4, policy=quick, pixels=True, size=32)
    data = read(tmp_path / "a.h5")
    assert data.pixels is not None
    expected = WORLD.render(data.states, 32).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(data.pixels[0 : len(data.states)], expected)
