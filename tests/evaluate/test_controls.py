from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.data import ActionStats, from_arrays
from lpwm.data.info import controls
from lpwm.evaluate.cache import Store
from lpwm.evaluate.controls import Nothing, Oracle, RandomActions
from lpwm.evaluate.episodes import run_episodes
from lpwm.evaluate.goals import dataset_goals, random_goals
from lpwm.plan import CEMConfig, MPCConfig

STATS = ActionStats((0.0, 0.0), (0.577, 0.577))


def run(world, episodes, actor, steps=50):
    return run_episodes(world, episodes, actor, steps=steps, frameskip=5)


def percent(x):
    return 100 * x.mean()


@pytest.mark.parametrize(
    ("kind", "who", "latched", "terminal"),
    [  # method §5, 2×2, 50 raw steps
        ("dataset", "nothing", (72, 77), (43, 69)),
        ("dataset", "random", (80, 89), (43, 69)),
        ("random", "nothing", (2, 10), (1, 5)),
        ("random", "random", (3, 10), (1, 5)),
    ],
)
def test_what_is_free_in_piecewise(world, kind, who, latched, terminal):
    """1500 episodes, a standard error of about 1 %. The method's dataset figures are those of 200-step episodes:
    with 100 steps, when the biases have herded the dot less, doing nothing scores 76.5 and random actions 88.7 %
    (terminal 62.8 and 41.2 %)."""
    if kind == "dataset":
        start = world.sample_state(300, (0, "data"))
        policy, keys = worlds.make_policy(world, "random"), worlds.row_keys((0, "acts"), 300)
        states, actions = worlds.rollout(world, policy, start, start, keys, 200)
        data = from_arrays(list(states.numpy()), list(actions.numpy()), spec=world.spec)
        episodes = dataset_goals(data, 1500, holdout=0.9)
    else:
        episodes = random_goals(world, 1500)
    actor = Nothing(world, 5) if who == "nothing" else RandomActions(world, 5)
    found = run(world, episodes, actor)
    assert latched[0] <= percent(found.latched()) <= latched[1]
    assert terminal[0] <= percent(found.terminal()) <= terminal[1]


def test_the_controls_are_those_of_the_data_room(world, data):
    """`lpwm data info` counts them with code of its own, on other starts."""
    expected = controls(data, world)
    for who, actor in (("nothing", Nothing(world, 5)), ("random", RandomActions(world, 5))):
        found = run(world, dataset_goals(data, 1500, holdout=0.9), actor)
        there = expected[f"dataset goals, {who}"]
        assert abs(percent(found.latched()) - there["latched"]) < 4
        assert abs(percent(found.terminal()) - there["terminal"]) < 4


def test_doing_nothing_sends_zeros_and_random_actions_fill_the_bounds(world):
    episodes = random_goals(world, 50)
    assert not run(world, episodes, Nothing(world, 5)).actions_BTA.any()
    actions = run(world, episodes, RandomActions(world, 5)).actions_BTA
    assert actions.min() >= -1 and actions.max() <= 1 and abs(actions.mean()) < 0.03
    assert abs(actions.std() - 1 / np.sqrt(3)) < 0.02
    flat = actions.reshape(-1)
    assert abs(np.corrcoef(flat[:-2], flat[2:])[0, 1]) < 0.05  # steps are independent


def test_random_actions_depend_on_the_seed_and_the_episode_alone(world):
    episodes = random_goals(world, 6)
    whole = run(world, episodes, RandomActions(world, 5, seed=1)).actions_BTA
    part = run(world, episodes.select([4, 2]), RandomActions(world, 5, seed=1)).actions_BTA
    np.testing.assert_array_equal(whole[[4, 2]], part)
    assert not np.array_equal(whole, run(world, episodes, RandomActions(world, 5, seed=2)).actions_BTA)


def test_the_oracle_reaches_random_goals_and_its_budget_can_be_reduced(world):
    episodes = random_goals(world, 30, seed=3)
    rates = {}
    for name, solver in {
        "paper's elites": CEMConfig(samples=100, elites=10, iterations=12),
        "almost nothing": CEMConfig(samples=4, elites=2, iterations=1),
    }.items():
        oracle = Oracle(world, STATS, 5, solver.build(), MPCConfig())
        rates[name] = percent(run(world, episodes, oracle).latched())
    assert rates["paper's elites"] >= 95
    assert rates["almost nothing"] < 60


class Counted:
    def __init__(self, world):
        self.world, self.calls = world, 0

    def __call__(self):
        self.calls += 1
        return run(self.world, random_goals(self.world, 3), Nothing(self.world, 5), steps=10)


def test_the_store_runs_once_per_key(world, tmp_path):
    make, store = Counted(world), Store(tmp_path / "kept")
    first, kept = store.record({"episodes": "a", "seed": 0}, make)
    again, kept_again = store.record({"seed": 0, "episodes": "a"}, make)
    assert (kept, kept_again, make.calls) == (False, True, 1)
    np.testing.assert_array_equal(first.states_BTS, again.states_BTS)
    assert again.ids == first.ids
    store.record({"episodes": "b", "seed": 0}, make)
    assert make.calls == 2
    assert Store(tmp_path / "kept", fresh=True).record({"episodes": "a", "seed": 0}, make)[1] is False
    assert make.calls == 3


def test_a_damaged_or_absent_store_only_costs_time(world, tmp_path):
    make, store = Counted(world), Store(tmp_path)
    store.record({"a": 1}, make)
    (file,) = tmp_path.glob("*.npz")
    whole = file.read_bytes()
    for broken in (b"", whole[:100], whole[: len(whole) // 2], b"not a zip at all"):
        file.write_bytes(broken)
        _, kept = store.record({"a": 1}, make)
        assert not kept
    assert make.calls == 5 and store.record({"a": 1}, make)[1]
    assert not list(tmp_path.glob(".*"))  # no temporary file is left
    assert Store(None).record({"a": 1}, make)[1] is False


def test_records_that_were_swapped_are_refused(world, tmp_path):
    """A file under another name holds another key: it is not used, and its own record is made again."""
    make, store = Counted(world), Store(tmp_path)
    keys: list[dict[str, Any]] = [{"seed": 0}, {"seed": 1}]
    files = []
    for key in keys:
        store.record(key, make)
        files.append(tmp_path / f"{Store.name(key)}.npz")
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        file.write_bytes(content)
    assert [store.load(key) for key in keys] == [None, None]
    assert [store.record(key, make)[1] for key in keys] == [False, False] and make.calls == 4
    assert [store.record(key, make)[1] for key in keys] == [True, True]


def test_a_store_that_is_a_file_is_one_sentence(world, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a folder"):
        Store(tmp_path / "file").record({"a": 1}, Counted(world))
