"""PushT: against stable-worldmodel's, against geometry done another way, and its pusher against the public set."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tools import refused

from lpwm.worlds import PushT, make_policy, rollout, row_keys
from lpwm.worlds.pusht.physics import Simulator, _gap
from lpwm.worlds.pusht.world import air, block_moved, corners, from_block, to_block, turn

GOLDEN = Path(__file__).parents[1] / "golden" / "pusht.npz"
WORLD = PushT()


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def test_whole_episodes_follow_stable_worldmodel(golden):
    live = WORLD.open(golden["start"])
    ours = torch.stack([live.step(a) for a in golden["action"].unbind(1)], 1)
    theirs = golden["state"]
    assert theirs.shape == (100, 100, 7)
    error = (ours - theirs).abs()
    error[..., 4] = torch.minimum(error[..., 4], 2 * math.pi - error[..., 4])
    assert error.max() < 1e-4
    moved = (theirs[:, 1:, 2:4] - theirs[:, :-1, 2:4]).norm(dim=-1) > 1e-3
    assert moved.any(1).sum() > 60 and moved.float().mean() > 0.3  # the golden file is contact-rich
    assert (theirs[..., 2:4].amin() < 60) and (theirs[..., :2].amin() < 0)  # walls met; the pusher not stopped


def test_gaps_by_another_way():
    """The distance from the disc to the nearest of many points drawn on the T's outline."""
    state = WORLD.sample_state(300, ("gap",))
    state[:100, :2] = state[:100, 2:4] + torch.randn(100, 2, generator=torch.Generator().manual_seed(0)) * 60
    outline = [(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30), (-60, 0)]
    t = np.linspace(0, 1, 400)[:, None]
    points = np.concatenate(
        [(1 - t) * np.array(a) + t * np.array(b) for a, b in zip(outline[:-1], outline[1:], strict=True)]
    )
    gap, contact = WORLD.factors(state)["gap"], WORLD.factors(state)["contact"]
    for i, s in enumerate(state.double().numpy()):
        c, sin = np.cos(s[4]), np.sin(s[4])
        world = points @ np.array([[c, sin], [-sin, c]]) + s[2:4]
        near = np.linalg.norm(world - s[:2], axis=1).min()
        x, y = np.array([[c, sin], [-sin, c]]) @ (s[:2] - s[2:4])
        inside = (abs(x) < 60 and 0 < y < 30) or (abs(x) < 15 and 0 < y < 120)
        if not inside:  # inside the T two boxes' distances differ from the outline's, and only the sign counts
            assert abs(gap[i].item() - (near - 15)) < 0.2
        else:
            assert gap[i] < -15
    assert torch.equal(contact, (gap < 0.5).long()) and 20 < contact.sum() < 150
    inner = torch.randn(300, 2)
    assert torch.allclose(to_block(state[:, 2:4] + from_block(inner, state), state), inner, atol=1e-3)


def test_starts_touch_nothing():
    state = WORLD.sample_state(2000, (0,))
    assert air(state).min() > 1 and corners(state).amin() > 8 and corners(state).amax() < 503
    live = WORLD.open(state[:200])
    for _ in range(3):
        live.step(torch.zeros(200, 2))
    assert torch.allclose(live.states, state[:200], atol=1e-4)
    assert (state[:, 5:] == 0).all() and 55 < state[:, 2].std() < 66 and state[:, 4].std() > 1.7


def test_success_needs_place_and_angle():
    s = torch.tensor([200.0, 200.0, 300.0, 300.0, 0.1, 50.0, 0.0])
    for change, reached in (
        ([0, 0, 0, 0, 0, 300, 300], True),
        ([10, 10, 9.9, 9.9, 0, 0, 0], True),  # 19.9 over all four
        ([10, 10, 10.1, 10.1, 0, 0, 0], False),
        ([0, 0, 0, 0, 0.34, 0, 0], True),
        ([0, 0, 0, 0, 0.36, 0, 0], False),
        ([0, 0, 0, 0, 2 * math.pi - 0.2, 0, 0], True),  # around the circle
    ):
        assert bool(WORLD.success(s, s + torch.tensor(change))) == reached, change
    goal = s + torch.tensor([3.0, 4.0, 0.0, 12.0, 1.0, 9.0, 9.0])
    assert abs(WORLD.distance(s, goal).item() - 13.0) < 1e-4 and abs(turn(s, goal).item() - 1.0) < 1e-5


def test_goals_that_need_no_push_are_told_apart():
    s = WORLD.sample_state(4, (3,))
    goal = s.clone()
    goal[:, :2] += 100  # the pusher elsewhere
    goal[1, 2] += 19
    goal[2, 3] += 21
    goal[3, 4] += 0.4
    assert block_moved(s, goal).tolist() == [False, False, True, True]
    groups = WORLD.goal_groups(s, goal)
    assert list(groups) == ["block moved", "block still"]
    assert torch.equal(groups["block moved"], ~groups["block still"])


def test_branches_and_snapshots_are_exact_in_mid_push_and_bare_states_are_not():
    """Copies begin at the last state that hid nothing; pymunk knows more than the seven numbers."""
    start, keys = WORLD.sample_state(30, (10,)), row_keys((10,), 30)
    states, actions = rollout(WORLD, make_policy(WORLD), start, start, keys, 120)
    live = WORLD.open(start)
    touching, off = 0, []
    for t in range(100):
        if t % 20 == 19:
            ahead = live.branches(actions[:, None, t : t + 20])
            assert torch.equal(ahead[:, 0], states[:, t + 1 : t + 21])
            bare, exact = WORLD.open(live.states), WORLD.open(live.snapshot())
            for a in actions[:, t : t + 10].unbind(1):
                bare.step(a), exact.step(a)
            assert torch.equal(exact.states, states[:, t + 10])
            off.append(float((bare.states - exact.states)[:, 2:4].norm(dim=-1).max()))
            touching += int(WORLD.factors(states[:, t])["contact"].sum())
        live.step(actions[:, t])
    assert touching > 30 and max(off) > 0.01
    assert all(s._plain_at > 0 for s in live._workers[0].simulators)


def test_one_gap_in_plain_numbers():
    state = WORLD.sample_state(200, (12,)).double()
    state[:, :2] = state[:, 2:4] + torch.randn(200, 2, generator=torch.Generator().manual_seed(1)) * 70
    ours = torch.tensor([_gap(s) for s in state.tolist()], dtype=torch.float64)
    assert torch.allclose(ours, air(state), atol=1e-9)


def test_mistakes_are_one_sentence(monkeypatch):
    good = WORLD.sample_state(2, (0,))
    live = WORLD.open(good)
    for match, wrong in (
        (r"\(N, 7\)", lambda: WORLD.open(good[:, :5])),
        ("not finite", lambda: WORLD.open(good * torch.nan)),
        ("as many actions", lambda: live.step(torch.zeros(3, 2))),
        (r"\(N, M, T, A\)", lambda: live.branches(torch.zeros(2, 3, 2))),
        ("at least 1", lambda: WORLD.open(good, workers=0)),
    ):
        refused(match, wrong)
    monkeypatch.setitem(sys.modules, "pymunk", None)
    refused(r"pip install 'lpwm\[pusht\]'", Simulator, good[0])
