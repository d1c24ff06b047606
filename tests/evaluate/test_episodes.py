from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import refused

from lpwm.data import ActionStats, split_episodes
from lpwm.evaluate.agent import LatentActor
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.controls import Nothing, Oracle, RandomActions
from lpwm.evaluate.episodes import Record, Store, run_episodes
from lpwm.evaluate.goals import dataset_goals, episode_sets, random_goals
from lpwm.plan import CEMConfig, MPCConfig
from lpwm.worlds.piecewise import Piecewise

SMALL = CEMConfig(samples=32, elites=6, iterations=4)


class Script:
    """Sends the same actions whatever happens; counts what it is shown."""

    def __init__(self, blocks, frameskip):
        self.blocks, self.frameskip, self.seen, self.at = blocks, frameskip, [], 0

    def begin(self, episodes, state_BS):
        self.batch = len(episodes)

    def act(self):
        raw = torch.full((self.batch, self.blocks * self.frameskip, 2), 0.1 * (self.at + 1))
        self.at += 1
        return raw

    def observe(self, state_BS):
        self.seen.append(state_BS.clone())

    def traces(self):
        return {}


def record(success, tested=1):
    success = np.asarray(success, dtype=bool)
    B, T = success.shape
    return Record(
        ids=tuple(map(str, range(B))),
        states_BTS=np.zeros((B, T + 1, 2)),
        actions_BTA=np.zeros((B, T, 2)),
        success_BT=success,
        distance_BT=np.arange(T + 1, dtype=float)[None].repeat(B, 0),
        frameskip=5,
        tested=tested,
    )


def test_a_budget_that_was_not_run_is_one_sentence():
    refused("run for 20", record(np.zeros((1, 20))).latched, 21)
    refused("first tested after 5", record(np.zeros((1, 20)), tested=5).terminal, 4)


def test_the_loop_is_the_world_stepped_by_hand(world):
    episodes = random_goals(world, 4, seed=2)
    actor = Script(blocks=2, frameskip=3)
    result = run_episodes(world, episodes, actor, steps=14, frameskip=3)
    state = episodes.start_BS
    for t in range(14):
        action = torch.full((4, 2), 0.1 * (t // 6 + 1))
        state = world.step(state, action)
        np.testing.assert_array_equal(result.states_BTS[:, t + 1], state.numpy())
        np.testing.assert_array_equal(result.actions_BTA[:, t], action.numpy())
        near = (state - episodes.goal_BS).square().sum(1).sqrt().numpy()
        np.testing.assert_allclose(result.distance_BT[:, t + 1], near, rtol=1e-6)
        np.testing.assert_array_equal(result.success_BT[:, t], near < 16)
    # Whole blocks end at steps 3, 6, 9, 12; the block cut by the budget is not shown.
    assert len(actor.seen) == 4
    np.testing.assert_array_equal(actor.seen[1].numpy(), result.states_BTS[:, 6])


def test_success_changes_nothing_that_happens(world, agents_of):
    class Generous(Piecewise):
        def success(self, state, goal):
            return torch.ones(state.shape[:-1], dtype=torch.bool)

    def run(w):
        actor = LatentActor(agents_of(world), w, SMALL.build(), MPCConfig(), seed=0)
        return run_episodes(w, random_goals(world, 3), actor, steps=50, frameskip=5)

    plain, told = run(world), run(Generous())
    np.testing.assert_array_equal(plain.states_BTS, told.states_BTS)
    assert told.success_BT.all() and not plain.success_BT.all()


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.booleans(), min_size=20, max_size=20), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(6, 20),
    st.integers(6, 20),
)
def test_latched_terminal_and_steps_by_plain_loops(rows, tested, a, b):
    small, large = sorted((a, b))
    result = record(rows, tested)
    for i, row in enumerate(rows):
        at = [t for t in range(1, large + 1) if t % tested == 0]
        hits = [t for t in at if row[t - 1]]
        assert result.latched(large)[i] == bool(hits)
        assert result.terminal(large)[i] == row[at[-1] - 1]
        assert result.steps_to_success(large)[i] == (hits[0] if hits else -1)
    assert (result.latched(large) >= result.terminal(large)).all()
    assert (result.latched(small) <= result.latched(large)).all()
    assert result.final_distance(small)[0] == small


def test_a_record_survives_storage(world, agent):
    actor = LatentActor(agent, world, SMALL.build(), MPCConfig(), seed=0)
    result = replace(run_episodes(world, random_goals(world, 2), actor, steps=50, frameskip=5), tested=25)
    again = Record.of_arrays(result.arrays())
    for name in ("states_BTS", "actions_BTA", "success_BT", "distance_BT"):
        np.testing.assert_array_equal(getattr(result, name), getattr(again, name))
    assert (again.ids, again.frameskip, again.tested) == (result.ids, 5, 25)
    assert set(again.traces) == {"latent", "predicted"}


def planned(world, agent, episodes, seed=0, steps=30, solver=SMALL, **mpc):
    actor = LatentActor(agent, world, solver.build(), MPCConfig(**mpc), seed=seed)
    return run_episodes(world, episodes, actor, steps=steps, frameskip=5)


def test_an_episode_does_not_depend_on_its_batch_and_repeats(world, agent):
    episodes = random_goals(world, 5)
    whole = planned(world, agent, episodes, receding=1)
    part = planned(world, agent, episodes.select([3, 1]), receding=1)
    np.testing.assert_array_equal(whole.actions_BTA[[3, 1]], part.actions_BTA)
    np.testing.assert_array_equal(whole.states_BTS[[3, 1]], part.states_BTS)
    np.testing.assert_array_equal(planned(world, agent, episodes, receding=1).actions_BTA, whole.actions_BTA)
    assert not np.array_equal(planned(world, agent, episodes, seed=1, receding=1).actions_BTA, whole.actions_BTA)


@pytest.mark.parametrize(("context", "expected"), [(1, {1}), (3, {1, 2, 3})])
def test_plans_start_from_the_real_frames_there_are(world, agents_of, context, expected):
    agent = agents_of(world, history=3)
    planned(world, agent, random_goals(world, 2), receding=1, context=context)
    assert set(agent.model.contexts) == expected


def test_the_true_model_reaches_its_goals_and_forecasts_what_it_sees(world, agent):
    solver = CEMConfig(samples=96, elites=12, iterations=10)
    result = planned(world, agent, random_goals(world, 12), steps=75, solver=solver)
    assert result.latched(75).mean() >= 11 / 12
    seen, forecast = result.traces["latent"], result.traces["predicted"]
    assert seen.shape == (12, 16) and forecast.shape == (12, 15)
    # In the encoder's unit (100 px, RMS over x and y) the latent distance is the state's, off the walls.
    away = result.distance_BT[:, ::5] / 100 / np.sqrt(2)
    assert np.median(np.abs(seen - away)) < 0.02
    assert np.median(np.abs(forecast - seen[:, 1:])) < 0.02


def parts(name):
    """`17@40+25` -> (17, 40, 25)."""
    episode, rest = name.split("@")
    step, offset = rest.split("+")
    return int(episode), int(step), int(offset)


def test_dataset_goals_lie_ahead_in_held_out_trajectories(data):
    result = dataset_goals(data, 60, seed=3, offset=17, holdout=0.2)
    held = set(split_episodes(data.episodes, 0.2)[1].tolist())
    for i, name in enumerate(result.ids):
        episode, step, offset = parts(name)
        states, _ = data.episode(episode)
        assert episode in held and offset == 17
        assert torch.equal(result.start_BS[i], states[step])
        assert torch.equal(result.goal_BS[i], states[step + 17])


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
    assert short.select(torch.arange(5) % 3 == 1).number_B.tolist() == [1, 4]  # which key the noise
    assert short.ids != other.ids


def test_what_cannot_be_drawn_is_one_sentence(world, data):
    refused(r"goal of 101 raw steps is longer than the held-out .* at most 100", dataset_goals, data, 5, offset=101)
    refused(r"planning horizon of 105 raw steps is longer", dataset_goals, data, 5, horizon_steps=105)
    dataset_goals(data, 5, offset=100, horizon_steps=100)
    refused("have only 30 starts", dataset_goals, data, 31, offset=100)
    refused("no trajectory was held out", dataset_goals, data, 5, holdout=0.0)
    refused("at least 1", dataset_goals, data, 5, offset=0)
    refused("0 episodes", random_goals, world, 0)
    for change in ({"episodes": 10**12}, {"budgets": (10**12,)}, {"horizons": (10**12,)}, {"planner_seeds": 10**12}):
        refused("of memory that are free", episode_sets, world, EvalConfig(goals=("random",), **change), None, 0.1, 5)


STATS = ActionStats((0.0, 0.0), (0.577, 0.577))


def run(world, episodes, actor, steps=50):
    return run_episodes(world, episodes, actor, steps=steps, frameskip=5)


def percent(x):
    return 100 * x.mean()


@pytest.mark.parametrize(("who", "latched"), [(Nothing, (2, 10)), (RandomActions, (3, 10))])
def test_what_is_free_in_piecewise(world, who, latched):
    """Random goals, 1500 episodes of 50 raw steps: a standard error of about 1 % (method §5, 2×2)."""
    result = run(world, random_goals(world, 1500), who(world, 5))
    assert latched[0] <= percent(result.latched()) <= latched[1] and 1 <= percent(result.terminal()) <= 5


def test_random_actions_depend_on_the_seed_and_the_episode_alone(world):
    episodes = random_goals(world, 6)
    assert not run(world, episodes, Nothing(world, 5)).actions_BTA.any()
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
    (tmp_path / "file").write_text("")
    refused("not a folder", Store(tmp_path / "file").record, {"a": 1}, make)


def test_records_that_were_swapped_are_refused(world, tmp_path):
    """A file under another name holds another key: it is not used, and its own record is made again."""
    make, store = Counted(world), Store(tmp_path)
    keys = [{"seed": 0}, {"seed": 1}]
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
