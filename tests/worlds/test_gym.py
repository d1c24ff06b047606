"""The worlds as gymnasium environments."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import lpwm.worlds.gymnasium as worlds_gym
from lpwm.core.errors import UserError
from lpwm.worlds import WORLDS, gym_ids, make

IDS = [(name, env_id) for name, (env_id, _) in gym_ids.IDS.items()]
pytestmark = pytest.mark.filterwarnings("ignore:.*symmetric and normalized space.*")


def test_every_world_has_a_name() -> None:
    assert set(gym_ids.IDS) == set(WORLDS)
    assert all(make(name).spec.episode == steps for name, (_, steps) in gym_ids.IDS.items())
    worlds_gym.register_worlds()  # again, without complaint


@pytest.mark.parametrize(("name", "env_id"), IDS)
def test_gymnasium_finds_no_fault(name: str, env_id: str) -> None:
    env = gymnasium.make(env_id, render_mode="rgb_array")
    check_env(env.unwrapped)
    _, info = env.reset(seed=3)
    frame = env.render()
    side = make(name).spec.frame
    assert frame.shape == (side, side, 3) and frame.dtype == np.uint8
    expected = make(name).render(torch.from_numpy(info["state"])[None])[0].permute(1, 2, 0)
    np.testing.assert_array_equal(frame, expected)


@pytest.mark.parametrize(("name", "env_id"), IDS)
def test_an_episode(name: str, env_id: str) -> None:
    env = gymnasium.make(env_id)
    assert env.render is not None and env.spec is not None
    observation, info = env.reset(seed=0)
    assert {"state", "proprio", "goal_state"} <= set(info)
    np.testing.assert_array_equal(observation, np.concatenate((info["state"], info["goal_state"])))
    np.testing.assert_array_equal(info["proprio"], info["state"][list(make(name).spec.proprio)])
    if name in ("cube", "pusht"):  # no corner of theirs is a state
        return
    corner = np.asarray(make(name).spec.state_low, dtype=np.float32) + 8
    _, info = env.reset(options={"state": corner, "goal_state": corner + 40})
    np.testing.assert_array_equal(info["state"], corner)
    steps, terminated, truncated, reward = 0, False, False, 0.0
    while not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(env.action_space.high * 0.7)
        steps += 1
        assert reward == float(terminated) == float(info["distance"] < make(name).spec.success_within)
    env.reset(options={"state": corner, "goal_state": corner + 40})
    for _ in range(make(name).spec.episode):
        *_, truncated, _ = env.step(env.action_space.low * 0)
    assert truncated or name == "piecewise"


@pytest.mark.parametrize(("name", "env_id"), IDS)
def test_a_batch_equals_single_environments(name: str, env_id: str) -> None:
    """Past the time limit, past successes, and so past resets."""
    n, options = 2 if name == "cube" else 4, {"g": 3} if name == "piecewise" else {}
    batch = gymnasium.make_vec(env_id, num_envs=n, render_mode="rgb_array", size=32, **options)
    sync = gymnasium.make_vec(
        env_id, num_envs=n, vectorization_mode="sync", render_mode="rgb_array", size=32, **options
    )
    assert isinstance(batch.unwrapped, worlds_gym.WorldVectorEnv)
    assert batch.observation_space == sync.observation_space and batch.action_space == sync.action_space
    ours, theirs = batch.reset(seed=11), sync.reset(seed=11)
    actions = np.random.default_rng(0)
    ended = 0
    for t in range(make(name).spec.episode + (5 if name == "cube" else 30)):
        np.testing.assert_array_equal(ours[0], theirs[0])
        for column in ("state", "proprio", "goal_state", "distance"):
            np.testing.assert_array_equal(ours[-1][column], theirs[-1][column])
            np.testing.assert_array_equal(ours[-1][f"_{column}"], theirs[-1][f"_{column}"])
        for a, b in zip(ours[1:-1], theirs[1:-1], strict=True):
            np.testing.assert_array_equal(a, b)
        if t:
            ended += int((ours[2] | ours[3]).sum())
        if t % (202 if name == "cube" else 40) == 0:
            np.testing.assert_array_equal(np.stack(batch.render()), np.stack(sync.render()))
        low, high = batch.action_space.low, batch.action_space.high
        action = actions.uniform(low, high).astype(np.float32)
        ours, theirs = batch.step(action), sync.step(action)
    assert ended >= n


def test_mistakes() -> None:
    env, batch = gymnasium.make("lpwm/Piecewise-v0").unwrapped, worlds_gym.WorldVectorEnv("wall", num_envs=2)
    for match, wrong in (
        ("render_mode", lambda: worlds_gym.WorldEnv("wall", render_mode="human")),
        ("no option 'gg'", lambda: gymnasium.make("lpwm/Piecewise-v0", gg=3)),
        ("goal_state", lambda: env.reset(options={"goal": 1})),
        ("shape", lambda: env.reset(options={"state": np.zeros(3)})),
        ("one seed or 2", lambda: batch.reset(seed=[1, 2, 3])),
        ("at least one", lambda: worlds_gym.WorldVectorEnv("wall", num_envs=0)),
    ):
        with pytest.raises(UserError, match=match):
            wrong()
