from __future__ import annotations

import pytest
import torch

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.data import split_episodes
from lpwm.evaluate.goals import dataset_goals, image_goals, random_goals


def parts(name):
    """`17@40+25` -> (17, 40, 25)."""
    episode, rest = name.split("@")
    step, offset = rest.split("+")
    return int(episode), int(step), int(offset)


def test_dataset_goals_lie_ahead_in_held_out_trajectories(data):
    found = dataset_goals(data, 60, seed=3, offset=17, holdout=0.2)
    held = set(split_episodes(data.episodes, 0.2)[1].tolist())
    for i, name in enumerate(found.ids):
        episode, step, offset = parts(name)
        states, _ = data.episode(episode)
        assert episode in held and offset == 17
        assert torch.equal(found.start_BS[i], states[step])
        assert torch.equal(found.goal_BS[i], states[step + 17])


def test_no_trajectory_is_used_twice_before_all_were_used_once(data):
    held = len(split_episodes(data.episodes, 0.2)[1])
    used = [parts(name)[0] for name in dataset_goals(data, 2 * held + 3, holdout=0.2).ids]
    assert len(set(used[:held])) == held and len(set(used[held : 2 * held])) == held
    assert len(set(dataset_goals(data, 2 * held + 3, holdout=0.2).ids)) == 2 * held + 3


@pytest.mark.parametrize("kind", ["random", "dataset"])
def test_a_set_is_a_function_of_its_source_and_seed_and_short_ones_begin_long_ones(kind, world, data):
    def draw(n, seed=0):
        return random_goals(world, n, seed=seed) if kind == "random" else dataset_goals(data, n, seed=seed)

    short, long, other = draw(5), draw(25), draw(5, seed=1)
    assert draw(5).digest == short.digest != other.digest
    assert long.ids[:5] == short.ids and torch.equal(long.start_BS[:5], short.start_BS)
    assert torch.equal(long.goal_BS[:5], short.goal_BS)
    assert long.select([0, 1, 2, 3, 4]).digest == short.digest
    assert short.ids != other.ids


def test_selecting_keeps_the_numbers_that_key_the_noise(world):
    some = random_goals(world, 6).select(torch.tensor([False, True, False, False, True, False]))
    assert some.number_B.tolist() == [1, 4] and some.ids == ("random/0/1", "random/0/4")


def test_random_goals_fall_in_the_whole_arena(world):
    found = random_goals(world, 400, seed=1)
    for points in (found.start_BS, found.goal_BS):
        assert points.min() < 25 and points.max() > 198
    assert (found.start_BS - found.goal_BS).norm(dim=1).mean() > 80  # independent: 0.52 of 195 px


def test_what_cannot_be_drawn_is_one_sentence(world, data):
    with pytest.raises(UserError, match=r"goal of 101 raw steps is longer than the held-out .* at most 100"):
        dataset_goals(data, 5, offset=101)
    with pytest.raises(UserError, match=r"planning horizon of 105 raw steps is longer"):
        dataset_goals(data, 5, horizon_steps=105)
    dataset_goals(data, 5, offset=100, horizon_steps=100)
    with pytest.raises(UserError, match="have only 30 starts"):
        dataset_goals(data, 31, offset=100)
    with pytest.raises(UserError, match="no trajectory was held out"):
        dataset_goals(data, 5, holdout=0.0)
    with pytest.raises(UserError, match="at least 1"):
        dataset_goals(data, 5, offset=0)
    with pytest.raises(UserError, match="0 episodes"):
        random_goals(world, 0)
    with pytest.raises(UserError, match="uint8 of shape"):
        image_goals(world, torch.zeros(3, 8, 8), 2)


def test_an_image_goal_has_no_state_that_anything_is_near(world):
    picture = worlds.make("piecewise").render(torch.tensor([[100.0, 100.0]]), 32)[0]
    found = image_goals(world, picture, 3)
    assert not world.success(found.start_BS, found.goal_BS).any()
    assert found.entry().goal is None
