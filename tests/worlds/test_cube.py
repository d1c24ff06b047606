"""Cube against ogbench's own environment (golden/make_cube.py), and what a world with live simulators promises."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.worlds import make_policy, rollout, row_keys
from lpwm.worlds.cube.expert import CubeExpert, decide
from lpwm.worlds.cube.model import scene
from lpwm.worlds.cube.sim import SIZE, CubeSim, resting
from lpwm.worlds.cube.world import Cube

if not os.environ.get("CI"):  # there its absence is a failure
    pytest.importorskip("mujoco", reason="pip install 'lpwm[cube]'")
GOLDEN = Path(__file__).parents[1] / "golden" / "cube.npz"


@pytest.fixture(scope="module", params=[5, pytest.param(20, marks=pytest.mark.soak)])
def golden(request):
    """The first episodes of the record, or all of them."""
    with np.load(GOLDEN) as file:
        return {name: array[: request.param] for name, array in file.items()}


@pytest.fixture(scope="module")
def replay(golden):
    """Our simulator given the recorded starts and actions: states before and after every action, float64."""
    sim = CubeSim(np.zeros(SIZE))
    states = np.empty((len(golden["start"]), 201, SIZE))
    for episode, (start, actions) in enumerate(zip(golden["start"], golden["action"], strict=True)):
        sim.place(start)
        states[episode, 0] = sim.state
        for t, action in enumerate(actions):
            sim.step(action)
            states[episode, t + 1] = sim.state
    return states


def test_states_are_ogbench_s(golden, replay):
    ours, theirs = replay[:, 5::5, :47], golden["state"]
    assert theirs.shape[1:] == (40, 47)
    np.testing.assert_allclose(ours[..., :21], theirs[..., :21], rtol=0, atol=2e-6)  # angles, meters
    np.testing.assert_allclose(ours[..., 21:41], theirs[..., 21:41], rtol=1e-5, atol=1e-4)  # their rates
    np.testing.assert_allclose(ours[..., 41:], theirs[..., 41:], rtol=0, atol=2e-6)


def test_rewards_are_ogbench_s(golden, replay):
    states = torch.from_numpy(replay[:, 1:]).float()
    goals = torch.zeros_like(states)
    goals[..., 14:17] = torch.from_numpy(golden["target"][..., :3])
    ours = Cube().success(states, goals).numpy()
    assert golden["reward"].sum() > 50 * len(ours)
    assert np.array_equal(ours, golden["reward"])


def test_touch_is_ogbench_s_contact_list(golden, replay):
    assert golden["touch"].sum() > 50 * len(replay)
    assert np.array_equal(replay[:, 1:, 47] == 1, golden["touch"])
    assert set(np.unique(replay[..., 47])) == {0.0, 1.0}


def test_the_expert_chooses_as_ogbench_s_oracle(golden, replay):
    states = torch.from_numpy(replay[:, :-1]).flatten(0, 1)
    target, rest = (torch.from_numpy(golden[name]).flatten(0, 1).double() for name in ("target", "rest"))
    action, _ = decide(states, target, rest)
    wrong = (action - torch.from_numpy(golden["choice"]).flatten(0, 1)).abs().amax(-1) > 1e-4
    # A distance that equals a threshold to seven digits may fall either way: the record is in single precision.
    assert wrong.sum() <= 2


def test_starts_fall_where_they_should():
    rows = Cube().sample_state(200, (1,))
    effector, cube = rows[:, 41:44], rows[:, 14:17]
    for got, low, high in ((effector, (0.25, -0.35, 0.20), (0.6, 0.35, 0.35)), (cube[:, :2], (0.3, -0.3), (0.55, 0.3))):
        low, high = torch.tensor(low), torch.tensor(high)
        assert (got >= low - 1e-3).all() and (got <= high + 1e-3).all()
        assert torch.allclose(got.mean(0), (low + high) / 2, atol=0.05 * float((high - low).max()))
    assert (cube[:, 2] == 0.02).all() and (rows[:, 21:41] == 0).all()


@settings(max_examples=15)
@given(x=st.floats(0.25, 0.6), y=st.floats(-0.35, 0.35), z=st.floats(0.2, 0.35), yaw=st.floats(-3.1, 3.1))
def test_inverse_kinematics_reaches_the_pose(x, y, z, yaw):
    """Checked through the whole scene, not through the arm the solver knows."""
    sim = CubeSim(np.zeros(SIZE))
    sim.place(resting(np.array([x, y, z]), yaw, np.array([0.4, 0.0]), 0.0))
    got = sim.state[41:45]
    assert np.linalg.norm(got[:3] - [x, y, z]) < 1e-3
    assert abs(math.remainder(got[3] - yaw, 2 * math.pi)) < 1e-3
    down = sim._data.site_xmat[scene().pinch].reshape(3, 3)[:, 2]
    assert down @ [0, 0, -1] > 0.999


def test_actions_are_clipped():
    state = Cube().sample_state(1, (2,))[0].double().numpy()
    one, two = CubeSim(state), CubeSim(state)
    one.step([1.0, -1.0, 1.0, 1.0, 1.0])
    two.step([7.0, -9.0, 1.5, 2.0, 3.0])
    assert np.array_equal(one.state, two.state)


def test_snapshots_and_branches_are_exact_in_mid_grasp_and_bare_states_are_not():
    world = Cube()
    state, goal = world.sample_state(2, (8,)), world.sample_goal(2, (8,))
    states, actions = rollout(world, CubeExpert(world), state, goal, row_keys((8,), 2), 75)
    live = world.open(states[:, 0])
    for t in range(45):
        live.step(actions[:, t])
    assert torch.equal(live.states, states[:, 45]) and states[:, 40:75, 47].any()
    assert torch.equal(live.branches(actions[:, None, 45:50])[:, 0], states[:, 46:51])
    again, near = world.open(live.snapshot()), world.open(live.states)
    for t in range(45, 75):
        after = live.step(actions[:, t])
        assert torch.equal(again.step(actions[:, t]), after)
        nearly = near.step(actions[:, t])
    assert torch.equal(after, states[:, 75])
    assert not torch.equal(nearly, after)
    assert (nearly - after)[:, 14:17].abs().max() < 0.01  # meters, after a second and a half


def test_the_expert_reaches_its_goals():
    world, n = Cube(), 4
    state, goal = world.sample_state(n, (21,)), world.sample_goal(n, (21,))
    states, actions = rollout(world, make_policy(world), state, goal, row_keys((21,), n), 130)
    reached = world.success(states, goal[:, None]).any(1)
    assert reached.sum() >= n - 1
    assert (actions.abs() <= 1).all()


def test_the_expert_s_noise():
    """ξ ~ U(0, 0.1) per episode, times 1, 1, 1, 3, 10: read off a state whose choice is (−0.2, −0.16, −1, −0.3, −1)."""
    world, n = Cube(), 20_000
    state = world.sample_state(1, (0,)).repeat(n, 1)
    state[:, 14:21] = torch.tensor([0.4, 0.0, 0.02, 1.0, 0.0, 0.0, 0.0])
    state[:, 41:45] = torch.tensor([0.41, 0.008, 0.12, 0.1])
    goal = world.sample_goal(1, (0,)).repeat(n, 1)
    policy, keys = CubeExpert(world), row_keys((77,), n)
    carried = policy.begin(state, goal, keys)
    xi = carried[:, 8]
    assert 0 <= xi.min() < 0.005 and 0.095 < xi.max() <= 0.1 and abs(float(xi.mean()) - 0.05) < 0.001
    choice, _ = decide(state, carried[:, :4], carried[:, 4:8])
    assert torch.allclose(choice[0], torch.tensor([-0.198, -0.159, -1.0, -0.3, -1.0]).double(), atol=0.01)
    noisy, _ = policy.act(state, goal, carried, keys, 3)
    some = (xi > 0.005) & (xi < 0.03)  # so little that the far bound is out of reach
    ratio = ((noisy - choice) / xi[:, None])[some]
    spread = (ratio**2).mean(0) * torch.tensor([1, 1, 2, 1, 2])  # at a bound half of the noise is cut off
    assert torch.allclose(spread.sqrt(), torch.tensor([1.0, 1.0, 1.0, 3.0, 10.0]).double(), rtol=0.05)
    silent = CubeExpert(world, noise=0.0)
    quiet, _ = silent.act(state, goal, silent.begin(state, goal, keys), keys, 3)
    assert torch.allclose(quiet, choice.float())


def test_a_new_target_when_done_or_late():
    world = Cube()
    state, goal, keys = world.sample_state(2, (1,)), world.sample_goal(2, (1,)), row_keys((1,), 2)
    policy = CubeExpert(world)
    carried = policy.begin(state, goal, keys)
    assert torch.allclose(carried[:, :3], goal[:, 14:17]) and torch.allclose(carried[:, 4:7], goal[:, 41:44])
    arrived = goal.clone()  # the cube on its target, the effector at its resting place
    _, after = policy.act(arrived, goal, carried, keys, 0)
    assert (after[:, 10] == 1).all() and (after[:, 9] == 0).all()
    assert not torch.allclose(after[:, :2], carried[:, :2]) and torch.equal(after[:, 8], carried[:, 8])
    assert ((after[:, 0] >= 0.3) & (after[:, 0] <= 0.55) & (after[:, 2] == 0.02)).all()
    carried[0, 9] = 199
    _, late = policy.act(state, goal, carried, keys, 5)
    assert late[:, 10].tolist() == [1.0, 0.0]


def test_goals_that_need_no_move_are_told_apart():
    world = Cube()
    state = world.sample_state(3, (2,))
    goal = state.clone()
    goal[1, 14] += 0.05
    goal[2, :14] += 0.5  # the arm alone
    groups = world.goal_groups(state, goal)
    assert groups["cube must move"].tolist() == [False, True, False]
    assert groups["cube is there"].tolist() == [True, False, True]
