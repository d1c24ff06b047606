"""What every world of live simulators promises beyond `lpwm.testing.check_world`, over all of them."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.worlds import POLICIES, WORLDS, Live, SimWorld, make, make_policy, rollout, row_keys

NAMES = [name for name in WORLDS if hasattr(WORLDS.get(name), "open")]
N, T = 6, 12


@pytest.fixture(params=NAMES)
def world(request: pytest.FixtureRequest) -> SimWorld:
    return make(request.param)


def actions_of(world: SimWorld, n: int = N, steps: int = T, seed: int = 0) -> torch.Tensor:
    """A heading that is kept, so that things are met: (n, steps, A)."""
    low, high = torch.tensor(world.spec.action_low), torch.tensor(world.spec.action_high)
    draw = torch.Generator().manual_seed(seed)
    heading = torch.rand((n, 1, len(low)), generator=draw)
    return low + (high - low) * (0.8 * heading + 0.2 * torch.rand((n, steps, len(low)), generator=draw))


def run(live: Live, actions: torch.Tensor) -> torch.Tensor:
    return torch.stack([live.step(a) for a in actions.unbind(1)], 1)


def test_opened_where_told_and_moved_by_actions(world: SimWorld) -> None:
    start = world.sample_state(N, (0,))
    live = world.open(start)
    assert isinstance(live, Live)
    assert live.states.dtype == torch.float32 and torch.allclose(live.states, start, atol=1e-4)
    states = run(live, actions_of(world))
    assert states.shape == (N, T, world.spec.state_dim) and torch.isfinite(states).all()
    assert torch.equal(live.states, states[:, -1]) and not torch.allclose(live.states, start, atol=0.05)
    seen = live.states
    seen.zero_()  # what was given out is not what is kept
    assert torch.equal(live.states, states[:, -1])
    live.close()
    with pytest.raises(UserError, match="closed"):
        live.step(actions_of(world)[:, 0])


def test_nobody_hears_of_the_others(world: SimWorld) -> None:
    start, actions = world.sample_state(N, (1,)), actions_of(world)
    together = run(world.open(start), actions)
    some = [4, 1]
    assert torch.equal(run(world.open(start[some]), actions[some]), together[some])


def test_a_snapshot_is_exact_and_branches_move_nothing(world: SimWorld) -> None:
    start, actions = world.sample_state(N, (3,)), actions_of(world, steps=2 * T)
    live = world.open(start)
    run(live, actions[:, :T])
    snapshot = pickle.loads(pickle.dumps(live.snapshot()))
    before = live.states
    ahead = torch.stack((actions_of(world, seed=5), actions[:, T:]), 1)  # (N, 2, T, A)
    branches = live.branches(ahead)
    assert torch.equal(live.states, before)
    onward = run(live, actions[:, T:])
    assert torch.equal(branches[:, 1], onward)
    assert torch.equal(run(world.open(snapshot), actions[:, T:]), onward)
    other = run(world.open(snapshot), actions_of(world, seed=5))
    assert torch.equal(branches[:, 0], other) and not torch.equal(other, onward)


def test_results_do_not_depend_on_the_workers(world: SimWorld) -> None:
    start, actions = world.sample_state(N, (5,)), actions_of(world)
    alone = world.open(start)
    first = run(alone, actions)
    rows = torch.tensor([5, 0, 2])
    alone.restart(rows, start[rows])
    half = alone.step(actions[rows, 0], rows)
    branches = alone.branches(actions[:, None, :3])
    live = world.open(start, workers=3)
    try:
        assert torch.equal(run(live, actions), first)
        live.restart(rows, start[rows])
        assert torch.equal(live.step(actions[rows, 0], rows), half)
        assert torch.equal(live.branches(actions[:, None, :3]), branches)
        assert torch.equal(live.states, alone.states)
        copy = world.open(live.snapshot(), workers=1)
        assert torch.equal(copy.step(actions[:, 1]), live.step(actions[:, 1]))
    finally:
        live.close()


def test_every_policy_is_keyed_by_row(world: SimWorld) -> None:
    start, goal = world.sample_state(N, (6,)), world.sample_goal(N, (6,))
    low, high = torch.tensor(world.spec.action_low), torch.tensor(world.spec.action_high)
    for name in POLICIES[world.spec.name]:
        policy, keys = make_policy(world, name), row_keys((6,), N)
        steps = torch.tensor([9, 3, 12, 12, 1, 7])
        states, actions = rollout(world, policy, start, goal, keys, steps)
        assert states.shape[:2] == (N, 13) and actions.shape[:2] == (N, 12)
        for i, own in enumerate(steps.tolist()):
            assert torch.isfinite(states[i, : own + 1]).all() and torch.isnan(states[i, own + 1 :]).all()
            assert torch.isfinite(actions[i, :own]).all() and torch.isnan(actions[i, own:]).all()
            one = slice(i, i + 1)
            alone = rollout(world, policy, start[one], goal[one], keys[one], own)
            assert torch.equal(alone[0][0], states[i, : own + 1])
            assert torch.equal(alone[1][0], actions[i, :own])
            assert (alone[1] >= low).all() and (alone[1] <= high).all()
        other = rollout(world, policy, start, goal, row_keys((7,), N), steps)[1]
        assert not torch.equal(other.nan_to_num(), actions.nan_to_num())


ELSEWHERE = """
import sys
from lpwm.worlds import make, make_policy, rollout, row_keys
world = make(sys.argv[1])
start, goal = world.sample_state(2, (4,)), world.sample_goal(2, (4,))
states, actions = rollout(world, make_policy(world), start, goal, row_keys((4,), 2), 60)
print(states.numpy().tobytes().hex() + actions.numpy().tobytes().hex())
"""


def test_the_same_seed_is_the_same_episode_in_another_process(world: SimWorld) -> None:
    start, goal = world.sample_state(2, (4,)), world.sample_goal(2, (4,))
    states, actions = rollout(world, make_policy(world), start, goal, row_keys((4,), 2), 60)
    command = [sys.executable, "-c", ELSEWHERE, world.spec.name]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert there == states.numpy().tobytes().hex() + actions.numpy().tobytes().hex()


def test_starts_and_goals(world: SimWorld) -> None:
    low, high = torch.tensor(world.spec.state_low), torch.tensor(world.spec.state_high)
    for sample in (world.sample_state, world.sample_goal):
        rows = sample(300, (8,))
        assert (rows >= low).all() and (rows <= high).all()
    assert world.success(rows[:150], rows[150:]).float().mean() < 0.1
