"""What the policies do."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats

from lpwm.worlds import make, make_policy, rollout, row_keys


def follow(name: str, policy: str | None, n: int, steps: int, **options: float):  # type: ignore[no-untyped-def]
    world = make(name)
    state, goal = world.sample_state(n, (0,)), world.sample_goal(n, (0,))
    chosen = make_policy(world, policy, **options)
    states, actions = rollout(world, chosen, state, goal, row_keys((0, "act"), n), steps)
    return world, goal, states, actions


def test_random_actions_are_uniform() -> None:
    for name in ("piecewise", "two_room", "wall"):
        world, _, _, actions = follow(name, "random", 200, 20)
        low, high = world.spec.action_low[0], world.spec.action_high[0]
        flat = ((actions - low) / (high - low)).flatten().numpy()
        assert stats.kstest(flat, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(actions[..., 0].flatten(), actions[..., 1].flatten())[0, 1]) < 0.06
        assert abs(np.corrcoef(actions[:, 1:, 0].flatten(), actions[:, :-1, 0].flatten())[0, 1]) < 0.06


def test_the_piecewise_expert_lands_on_the_goal() -> None:
    _, goal, states, _ = follow("piecewise", "expert", 200, 100)
    reachable = goal.clamp(21, 203)
    assert (states[:, -1] - reachable).abs().max() < 1e-3


def test_the_two_room_expert_goes_through_the_door() -> None:
    world, goal, states, _ = follow("two_room", "expert", 200, 100, noise=0.0)
    assert world.success(states[:, -1], goal).float().mean() > 0.99
    start_side, goal_side = states[:, 0, 0] > 112, goal[:, 0] > 112
    crossed = states[start_side != goal_side]
    assert len(crossed) > 50
    inside = crossed[(crossed[..., 0] > 100) & (crossed[..., 0] < 124)]
    assert (inside[:, 1] - 49).abs().max() <= 14 + 1.75
    # A straight line would not have done: within one room the path is straight, across the wall it is longer.
    straight = world.distance(states[:, 0], goal)
    length = world.distance(states[:, 1:], states[:, :-1]).sum(1)
    assert (length - straight)[start_side != goal_side].mean() > 10


def test_two_room_noise_is_the_default_and_keyed() -> None:
    _, _, _, noisy = follow("two_room", None, 50, 30)
    _, _, _, exact = follow("two_room", "expert", 50, 30, noise=0.0)
    assert (noisy.abs() == 1).float().mean() > 0.4  # noise 2 mostly saturates the bounds
    assert torch.linalg.vector_norm(exact[:, 0], dim=-1).sub(1).abs().max() < 1e-5


def test_the_drifting_walk() -> None:
    """Heading: uniform at first, then changed by von Mises(5) angles; length: N(1, 0.4) within [0.2, 1.8]."""
    _, _, _, actions = follow("wall", None, 400, 50)
    angle = torch.atan2(actions[..., 1], actions[..., 0]).double()
    assert stats.kstest(angle[:, 0].numpy(), stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-3
    turn = torch.remainder(angle[:, 1:] - angle[:, :-1] + math.pi, 2 * math.pi) - math.pi
    assert abs(float(turn.std()) - 0.48) < 0.02
    assert stats.kstest(turn.flatten().numpy()[::4], stats.vonmises(5.0).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(turn[:, 1:].flatten(), turn[:, :-1].flatten())[0, 1]) < 0.03
    length = torch.linalg.vector_norm(actions, dim=-1).flatten().numpy()
    assert length.min() > 0.1999 and length.max() < 1.8001
    assert stats.kstest(length[::4], stats.truncnorm(-2, 2, loc=1.0, scale=0.4).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(length[:-1:2], length[1::2])[0, 1]) < 0.03
