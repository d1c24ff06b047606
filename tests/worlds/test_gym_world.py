"""Any gymnasium environment as a world. `gym_envs.py` is a user's module; the classic environments need pygame."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch

import lpwm
from lpwm import testing
from lpwm.core import plugins
from lpwm.core.errors import UserError
from lpwm.data import describe, read
from lpwm.evaluate.gif import episode_gif
from lpwm.worlds import gym_sim, make_policy, make_world, row_keys

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLASSIC = ["Pendulum-v1", "CartPole-v1", "MountainCarContinuous-v0", "MountainCar-v0", "Acrobot-v1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    shutil.copy(HERE / "gym_envs.py", folder / "my_envs.py")
    return folder


@pytest.fixture(autouse=True)
def mine(folder, monkeypatch):
    """The user's module is a plugin, as --plugin makes it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_given", {})
    plugins.load_plugin("my_envs")
    yield
    sys.path[:] = [p for p in sys.path if p != str(folder)]


# The contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_environments_keep_the_contract(name):
    pytest.importorskip("pygame", reason="the classic environments draw with pygame: pip install 'lpwm[gym]'")
    testing.check_world(f"gym:{name}")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Slide", {"columns": "state_0", "within": 0.3, "kwargs": {"drag": 0.2}, "wrapper": "my_envs:Bright"}),
        ("Slide", {"reached": "my_envs:near", "goal_steps": 9}),
        ("Hidden", {"frame": 32}),
        ("Modest", {}),
        ("Hidden", {"reached": "env", "noop": 1, "goal_steps": 20}),
    ],
)
def test_own_environments_keep_the_contract(name, options):
    testing.check_world(f"gym:mine/{name}-v0", **options)


def test_what_an_environment_is_told_by_trying_it():
    slide, hidden = (make_world(f"gym:mine/{name}-v0") for name in ("Slide", "Hidden"))
    assert slide.facts.kind == "attribute" and slide.facts.exact and slide.facts.deterministic
    assert slide.controls == ("nothing", "random", "oracle") and slide.notes() == []
    assert hidden.spec.state_names == ("bead.x", "is_success", "tape_high", "tape_low")
    assert hidden.spec.action_names == ("choice 1", "choice 2") and hidden.spec.discrete
    assert hidden.controls == ("random",) and "replayed" in hidden.notes()[0]
    assert make_world("gym:mine/Hidden-v0", noop=2).controls == ("nothing", "random")
    assert make_world("gym:mine/Hidden-v0", noop=2).still == (0.0, 1.0)
    windy = make_world("gym:mine/Hidden-v0", kwargs={"wind": 0.5})
    assert not windy.facts.deterministic and "not deterministic" in windy.notes()[1]


def test_replaying_what_is_not_deterministic_is_refused():
    world = make_world("gym:mine/Hidden-v0", kwargs={"wind": 0.5})
    live = world.open(world.sample_state(1, (0,)))
    for _ in range(3):
        live.step(torch.tensor([[1.0, 0.0]]))
    with pytest.raises(UserError, match="not deterministic"):
        for _ in range(5):  # the wind of one replay may be that of the first by chance
            world.open(live.states)


def test_a_mid_episode_state_is_replayed():
    world = make_world("gym:mine/Hidden-v0")
    live = world.open(world.sample_state(2, (0,)))
    for _ in range(7):
        live.step(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    again = world.open(live.states)
    assert torch.equal(again.states, live.states)
    step = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert torch.equal(again.step(step), live.step(step))
    assert torch.equal(world.render(live.states, 20), live.frames(20))
    unknown = live.states.clone()
    unknown[:, -1] += 1
    with pytest.raises(UserError, match="is not known here"):
        world.open(unknown)


def test_an_environment_that_ended_stays():
    world = make_world("gym:mine/Slide-v0")
    live = world.open(torch.tensor([[0.95, 0.0]]))
    after = [live.step(torch.ones(1, 1)) for _ in range(3)]
    assert float(after[0][0, 0]) == 1.0 and torch.equal(after[0], after[2])


@pytest.mark.parametrize("workers", [1, 2])
def test_live_simulators_draw_themselves(workers):
    world = make_world("gym:mine/Slide-v0")
    live = world.open(world.sample_state(3, (0,)), workers)
    live.step(torch.ones(3, 1))
    assert torch.equal(live.frames(24), world.render(live.states.double(), 24))
    live.close()


def test_angles_go_around():
    world = make_world("gym:mine/Slide-v0", columns=("state_0",), angles="state_0", within=0.3)
    state, goal = torch.tensor([[3.1, 0.0]]), torch.tensor([[-3.1, 5.0]])
    assert float(world.distance(state, goal)) == pytest.approx(2 * np.pi - 6.2, abs=1e-5)
    assert bool(world.success(state, goal))
    assert set(world.factors(state)) == {"cos state_0", "sin state_0", "state_1"}


def test_the_picture_of_pendulum_shows_more_than_its_state():
    pytest.importorskip("pygame", reason="the classic environments draw with pygame: pip install 'lpwm[gym]'")
    assert "shows more than its state" in make_world("gym:Pendulum-v1").notes()[0]
    assert make_world("gym:CartPole-v1").notes() == []


# Data -----------------------------------------------------------------------------------------------------------


def test_collect(tmp_path):
    data = lpwm.collect("gym:mine/Slide-v0", tmp_path / "a.h5", 20, seed=3, size=24)
    assert data.pixels.shape[1:] == (24, 24, 3) and data.spec.name == "gym:mine/Slide-v0"
    world = make_world("gym:mine/Slide-v0")
    states, actions = data.episode(4)
    assert torch.equal(states[0], world.sample_state(1, (3, "collect"), 4)[0])
    live = world.open(states[:1])
    for t, action in enumerate(actions):
        assert torch.allclose(live.step(action[None])[0], states[t + 1], atol=1e-6)
    first = int(data.offsets[4])
    frames = torch.from_numpy(data.pixels[first : first + len(states)]).permute(0, 3, 1, 2)
    assert torch.equal(frames, world.render(states, 24))
    assert describe(tmp_path / "a.h5")["controls"] is not None


def test_episodes_end_with_the_environment_and_policies_are_functions(tmp_path):
    data = lpwm.collect("gym:mine/Slide-v0", tmp_path / "right.h5", 6, policy="my_envs:right")
    assert (data.lengths < 31).any() and data.attributes["policy"] == "my_envs:right"
    ends = data.offsets + data.lengths - 1
    assert (data.states[ends, 0] == 1.0).any() and (data.actions[~data.actions.isnan()] >= 0).all()
    with pytest.raises(UserError, match="no function 'left'"):
        lpwm.collect("gym:mine/Slide-v0", tmp_path / "left.h5", 6, policy="my_envs:left")


def test_discrete_actions_are_one_hot(tmp_path):
    data = lpwm.collect("gym:mine/Hidden-v0", tmp_path / "h.h5", 4)
    actions = data.actions[data.actions.isfinite().all(1)]
    assert actions.sum(1).eq(1).all() and set(actions.unique().tolist()) == {0.0, 1.0}
    world = make_world("gym:mine/Hidden-v0")
    world.remember(data.states, data.actions)
    rows = data.offsets + 9
    assert torch.equal(world.open(data.states[rows]).states, data.states[rows])
    gym_sim._tapes.clear()  # as in a process that did not collect
    assert describe(tmp_path / "h.h5")["controls"]


def test_workers_make_the_same_file_and_an_interrupted_collection_continues(tmp_path):
    from lpwm.data.collecting import make_shard

    world = make_world("gym:my_envs:mine/Slide-v0", wrapper="my_envs:Bright")
    one, two = tmp_path / "one.h5", tmp_path / "two.h5"
    stop = [0]

    def interrupted(done):
        stop[0] += 1
        if stop[0] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lpwm.collect(world, one, 40, size=16, progress=interrupted)
    assert len(list((tmp_path / "one.h5.partial").glob("*.h5"))) == 2 and make_shard
    lpwm.collect(world, one, 40, size=16)
    lpwm.collect(world, two, 40, size=16, workers=2)
    assert read(one).digest == read(two).digest


# Training, evaluating, acting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Slide", "Hidden"])
def test_train_evaluate_and_act(name, tmp_path):
    lpwm.collect(f"gym:mine/{name}-v0", tmp_path / "d.h5", 30, size=16)
    run = lpwm.train("tiny/lpwm", tmp_path, data=tmp_path / "d.h5", device="cpu", overrides={"data.frameskip": 2})
    changes = {"episodes": 2, "budgets": (8,), "horizons": (2,), "receding": (0,), "offset": 6, "device": "cpu"}
    small = {"samples": 8, "elites": 2, "iterations": 2}
    result = lpwm.evaluate(run, "quick", options={"within": 0.2}, **changes, oracle_options=small)
    rows = {row.name for cell in result.cells for row in cell.rows}
    assert ("oracle" in rows) == (name == "Slide") and "random actions" in rows
    gym_sim._tapes.clear()  # the second evaluation is another process, which finds the episodes kept
    again = lpwm.evaluate(run, "quick", options={"within": 0.2}, **changes, oracle_options=small)
    assert again.cells[0].rows[0].stored_records == 1
    record, sets = again.played.records[0]["random actions"][0][0], again.played.sets["random"]
    assert episode_gif(tmp_path / "a.gif", again.played.world, sets, record, 0).exists()
    assert result.world.options["within"] == 0.2
    agent = lpwm.load(run, horizon=2)
    env = gymnasium.make(f"mine/{name}-v0", render_mode="rgb_array")
    env.reset(seed=1)
    goal = env.render()
    env.reset(seed=2)
    agent.reset(goal=goal)
    for _ in range(3):
        action = agent.act(env.render())
        assert env.action_space.contains(action) if name == "Slide" else int(action) in (1, 2)
        env.step(action)


def test_plans_are_scored_as_they_are_executed(tmp_path):
    from lpwm.data import ActionStats
    from lpwm.evaluate.agent import Projection

    stats = ActionStats((0.4, 0.6), (0.5, 0.5))
    one_hot = Projection(make_world("gym:mine/Hidden-v0").spec, stats, 3)
    blocks = torch.randn(4, 5, 6)
    raw = stats.denormalize(one_hot(blocks)).view(4, 5, 3, 2)
    assert torch.equal(raw.argmax(-1), stats.denormalize(blocks).view(4, 5, 3, 2).argmax(-1))
    assert torch.allclose(raw.sort(-1).values, torch.tensor([0.0, 1.0]).expand(4, 5, 3, 2), atol=1e-6)
    within = Projection(make_world("gym:mine/Slide-v0").spec, ActionStats((0.0,), (3.0,)), 2)
    assert float(3 * within(blocks[..., :2]).abs().max()) <= 1 + 1e-6


# Names in files ---------------------------------------------------------------------------------------------------

EVIL = "raise SystemExit('imported')\n"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gym:mine/Slide-v0", {"wrapper": "evil:function"}),
        ("gym:mine/Slide-v0", {"wrapper": "os:system"}),
        ("gym:mine/Slide-v0", {"reached": "evil:function"}),
        ("gym:evil:Slide-v0", {}),
        ("gym:mine/Slide-v0", {"kwargs": {"drag": "evil:Env-v0"}}),
        ("gym:mine/Slide-v0", {"kwargs": {"drag": [{"inner": "evil:Env-v0"}]}}),
    ],
)
def test_names_in_a_data_file_import_nothing(name, options, tmp_path, folder):
    (folder / "evil.py").write_text(EVIL)
    lpwm.collect("gym:mine/Slide-v0", tmp_path / "d.h5", 30, size=16)
    run = lpwm.train("tiny/lpwm", tmp_path, data=tmp_path / "d.h5", device="cpu", overrides={"data.frameskip": 2})
    spec = {"name": name, "options": options}
    state = make_world("gym:mine/Slide-v0").sample_state(1, (0,))
    for uses in (lambda w: w.spec, lambda w: w.open(state), lambda w: w.success(state, state)):
        if "reached" in options and uses(make_world("gym:mine/Slide-v0")) is None:
            continue
        world = make_world(spec["name"], **spec["options"])
        try:
            uses(world)
        except UserError as error:
            assert "--plugin" in str(error)
    with pytest.raises(UserError, match="--plugin"):
        world.success(state, state)
    with h5py.File(tmp_path / "d.h5", "r+") as file:
        text = file.attrs["world"]
        text = text.decode() if isinstance(text, bytes) else text
        changed = {**__import__("json").loads(text), **spec}
        file.attrs["world"] = __import__("json").dumps(changed)
        del file.attrs["attributes_digest"]  # files of 0.1.0 have none
    with pytest.raises(UserError, match="--plugin"):
        describe(tmp_path / "d.h5")
    assert "evil" not in sys.modules and run.folder.exists()


def test_policies_of_files_import_nothing(folder):
    (folder / "evil.py").write_text(EVIL)
    with pytest.raises(UserError, match="--plugin evil:function"):
        make_policy(make_world("gym:mine/Slide-v0"), "evil:function")


def test_a_plugin_is_trusted_for_what_it_defines(folder):
    assert plugins.named("my_envs:near", "function")
    with pytest.raises(UserError, match="is not defined in 'my_envs'"):
        plugins.named("my_envs:join", "function")
    with pytest.raises(UserError, match="names a module"):  # nor does the name of an environment vouch for it
        make_world("gym:my_envs:join:mine/Slide-v0", wrapper="my_envs:join").spec  # noqa: B018
    assert "my_envs:join" not in plugins._given


@pytest.mark.soak
def test_the_command_line_gives_names(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*words, status=0):
        done = subprocess.run([sys.executable, "-m", "lpwm", *words], capture_output=True, text=True, env=environment)
        assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
        return done.stdout if status == 0 else done.stderr

    environment.pop(plugins.VARIABLE, None)
    words = ("collect", "gym:my_envs:mine/Slide-v0", "--out", "cli.h5", "--episodes", "8", "--workers", "1")
    run(*words, "--wrapper", "my_envs:Bright", "--policy", "my_envs:right", "--size", "16", "--overwrite")
    assert "--plugin my_envs" in run("data", "info", "cli.h5", status=2)
    assert "my_envs:Bright" in run("data", "info", "cli.h5", "--plugin", "my_envs")


# What goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mine/Broken-v0", {"kwargs": {"how": "unbounded"}}, "its actions have no bounds"),
        ("mine/Broken-v0", {"kwargs": {"how": "tuple"}}, "its actions are Tuple"),
        ("mine/Broken-v0", {"kwargs": {"how": "multi"}}, r"its actions are MultiDiscrete\(\[2 3\]\)"),
        ("mine/Broken-v0", {"kwargs": {"how": "empty"}}, "renders NoneType"),
        ("mine/Broken-v0", {"kwargs": {"how": "raises"}}, r"does not draw \(RuntimeError: no display\)"),
        ("mine/Broken-v0", {"kwargs": {"how": "ragged"}}, "observations of different sizes"),
        ("mine/Broken-v0", {"kwargs": {"how": "nan"}}, "not finite"),
        ("mine/Broken-v0", {"kwargs": {"color": 1}}, "cannot make mine/Broken-v0"),
        ("mine/Blind-v0", {}, "draws nothing"),
        ("mine/Slid-v0", {}, "did you mean 'mine/Slide-v0'"),
        ("mine/Slide-v0", {"columns": "state_7"}, "has no state column 'state_7'"),
        ("mine/Slide-v0", {"reached": "env"}, "does not tell is_success"),
        ("mine/Slide-v0", {"reached": "my_envs:nearer"}, "has no function 'nearer'"),
        ("mine/Slide-v0", {"color": 1}, "has no option 'color'"),
        ("mine/Slide-v0", {"wrapper": "my_envs:Brighter"}, "has no function 'Brighter'"),
        ("mine/Slide-v0", {"wrapper": "my_envs"}, "write module:function"),
        ("mine/Slide-v0", {"frame": 2}, "at least 8"),
    ],
)
def test_odd_inputs_are_one_sentence(name, options, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence) as caught:
        lpwm.collect(f"gym:{name}", tmp_path / "x.h5", 2, options=options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x.h5").exists()


@pytest.mark.parametrize(
    ("name", "policy", "sentence"),
    [
        ("Slide", "wrong", r"\[0.5, 0.5\] is not an action of this environment: give 1 finite numbers"),
        ("Slide", "undefined", r"\[nan\] is not an action"),
        ("Hidden", "third", "0 is not an action of this environment: give a whole number from 1 to 2"),
        ("Hidden", "undefined", r"\[nan\] is not an action"),
    ],
)
def test_what_a_policy_gives_is_checked(name, policy, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        lpwm.collect(f"gym:mine/{name}-v0", tmp_path / "x.h5", 2, policy=f"my_envs:{policy}")


def test_a_collection_that_failed_at_once_does_not_stand_in_the_way(tmp_path):
    blank = {"kwargs": {"how": "empty"}}
    with pytest.raises(UserError, match="renders NoneType"):
        lpwm.collect("gym:mine/Broken-v0", tmp_path / "x.h5", 2, options=blank)
    data = lpwm.collect("gym:mine/Broken-v0", tmp_path / "x.h5", 2, options={**blank, "wrapper": "my_envs:Visible"})
    assert data.episodes == 2 and not (tmp_path / "x.h5.partial").exists()


def test_a_policy_of_ones_own_waits_for_no_goals(tmp_path, monkeypatch):
    from lpwm.worlds.gym_world import GymWorld

    drawn, sample = [], GymWorld.sample_goal
    monkeypatch.setattr(GymWorld, "sample_goal", lambda w, n, *key: drawn.append(n) or sample(w, n, *key))
    lpwm.collect("gym:mine/Slide-v0", tmp_path / "x.h5", 2, policy="my_envs:right", options={"goal_steps": 5})
    assert drawn == [1_000]  # for the coverage alone, and not more than that where goals are played


def test_the_names_of_worlds_tell_of_gymnasiums():
    with pytest.raises(UserError, match=r"unknown world 'Pendulum-v1'.*gym:NAME"):
        make_world("Pendulum-v1")


def test_a_missing_package_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UserError, match=r"pip install 'lpwm\[gym\]'"):
        lpwm.collect("gym:Pendulum-v1", tmp_path / "x.h5", 2)


def test_random_actions_of_a_choice_are_uniform():
    world = make_world("gym:mine/Hidden-v0")
    state = world.sample_state(1, (0,)).expand(400, -1)
    action, _ = make_policy(world, "random").act(state, state, state[:, :0], row_keys((1,), 400), 0)
    assert 150 < int(action.argmax(1).sum()) < 250
