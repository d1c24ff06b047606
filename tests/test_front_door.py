"""What `import lpwm` offers: names that are imported late, functions that take strings, an agent that acts."""

import inspect
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from tools import refused

import lpwm
from lpwm import api
from lpwm.evaluate.agent import Agent as Seer
from lpwm.evaluate.agent import LatentActor
from lpwm.evaluate.config import preset
from lpwm.evaluate.goals import EpisodeSet
from lpwm.plan import MPCConfig
from lpwm.train.checkpoint import CONFIG

SHORT = {"train.steps": 6, "train.stop_dead": False, "data.episodes": 20, "data.steps": 60}


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_next_to_nothing():
    """Its seconds are a benchmark's matter; what could take them is not imported."""
    code = "import sys; before = set(sys.modules); import lpwm; print(*set(sys.modules) - before)"
    loaded = {name.partition(".")[0] for name in python(code).split()}
    assert "lpwm" in loaded and loaded - {"lpwm"} <= sys.stdlib_module_names


def test_every_public_name_is_there():
    for name in lpwm.__all__:
        assert getattr(lpwm, name) is not None, name
        if name != "__version__":
            own = vars(api).get(name, getattr(lpwm, name))  # a room speaks for the function of its name
            assert getattr(lpwm, name).__doc__ == own.__doc__ != torch.nn.Module.__doc__, name
            assert str(inspect.signature(getattr(lpwm, name))) == str(inspect.signature(own)), name
    assert set(lpwm.__all__) <= set(dir(lpwm))
    with pytest.raises(AttributeError, match="nothing"):
        _ = lpwm.nothing


@pytest.mark.parametrize("first", ["from lpwm.train import Run", "import lpwm"])
def test_rooms_are_callable_in_any_order_of_imports(first):
    code = f"{first}\nimport lpwm\nfor n in ('train', 'evaluate', 'interpret', 'report', 'recipes'):\n"
    code += "    room = getattr(lpwm, n); assert callable(room) and room.__name__ == f'lpwm.{n}'\n"
    code += "from lpwm import train as room; assert room.Run is lpwm.Run; assert 'tiny/lpwm' in lpwm.recipes()\n"
    code += "import sys; assert 'huggingface_hub' not in sys.modules"
    python(code)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return lpwm.train("tiny/lpwm", out=str(tmp_path_factory.mktemp("runs")), seed=1, overrides=SHORT, device="cpu")


def test_an_agent_acts_without_what_takes_seconds_to_import(run):
    code = f"import lpwm, numpy as np, sys; agent = lpwm.load({str(run.folder)!r}, device='cpu')\n"
    code += "frame = np.zeros((16, 16, 3), np.uint8); agent.reset(goal=frame); agent.act(frame)\n"
    code += "assert not {'torch._dynamo', 'scipy.stats', 'plotly', 'tyro'} & set(sys.modules)"
    python(code)


def test_planning_and_inspecting_do_without_them_too():
    code = "import sys, numpy as np; from lpwm.evaluate import evaluate, measure; from lpwm.interpret import study\n"
    code += "import lpwm.train.run; from lpwm.stats.intervals import t_interval; from lpwm.stats.paired import welch\n"
    code += "x = np.arange(5.0); t_interval(x); welch(x, x + 1); measure._weighted_spearman(x, x, x)\n"
    code += "assert not {'torch._dynamo', 'scipy.stats', 'sympy', 'plotly'} & set(sys.modules)"
    python(code)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run on recordings of no world: frames of 24 × 20 and one action in [−3, 1]."""
    folder, draw = tmp_path_factory.mktemp("recorded"), np.random.default_rng(0)
    episodes = [
        {
            "pixels": draw.integers(0, 256, (40, 24, 20, 3), dtype=np.uint8),
            "action": np.linspace(-3, 1, 39, dtype=np.float32)[:, None],
            "state": draw.normal(size=(40, 2)).astype(np.float32),
        }
        for _ in range(12)
    ]
    lpwm.write_data(str(folder / "mine.h5"), episodes)
    changes = {"train.steps": 6, "train.stop_dead": False}
    return lpwm.train("tiny/lpwm", out=folder, data=folder / "mine.h5", overrides=changes, device="cpu", name="mine")


def frame(k, size=None):
    world = lpwm.make_world("piecewise")
    return world.render(world.sample_state(1, (k,)), size)[0].permute(1, 2, 0).numpy()


def test_a_run_is_named_continued_and_configured(run):
    assert run.folder.name.startswith("tiny-lpwm-") and run.config.train.seed == 1 and run.config.data.episodes == 20
    again = lpwm.train("tiny/lpwm", out=run.folder.parent, seed=1, overrides=SHORT, device="cpu")
    assert again.folder == run.folder
    as_config = lpwm.train(run.config, out=str(run.folder.parent), name="tiny/lpwm", device="cpu")
    assert as_config.folder == run.folder
    for wrong, words in (({"objective.lamb": 1}, "objective.lam"), ({"train.steps": 0}, "at least 1")):
        refused(words, lpwm.train, "tiny/lpwm", out=run.folder.parent, overrides=wrong)
    refused("recipe or a RunConfig, not int", lpwm.train, 3)


def test_collect_takes_names(tmp_path):
    data = lpwm.collect("piecewise", str(tmp_path / "a.h5"), episodes=3, options={"g": 3}, steps=10)
    assert data.episodes == 3 and data.spec.options["g"] == 3
    assert lpwm.read_data(str(tmp_path / "a.h5")).digest == data.digest
    refused("did you mean 'piecewise'", lpwm.collect, "piecewis", tmp_path / "b.h5", episodes=3)


def test_the_agent_is_the_evaluated_planner(run):
    """Action by action what the evaluation's actor sends for the same frames; blocks, replans and warm starts alike."""
    frames = [frame(k, 16) for k in range(4)]
    agent = lpwm.load(run.folder, receding=1, seed=5)
    agent.reset(goal=frames[3])
    actions = [agent.act(frames[t // 5]) for t in range(15)]

    class Camera:
        def render(self, states, size):
            return states

    seer = Seer("twin", agent.model, 16, agent.stats, agent.frameskip)
    twin = LatentActor(seer, Camera(), preset("quick").build_solver(), MPCConfig(5, 1, context=3), 5)
    now, *later, goal = (torch.from_numpy(f).permute(2, 0, 1)[None] for f in frames)
    twin.begin(EpisodeSet("frames", now, goal, torch.arange(1), ("0",), "frames", 0), now)
    sent = list(twin.act()[0])
    for f in later:
        twin.observe(f)
        assert twin.mpc.start() is not None  # warm
        sent += list(twin.act()[0])
    np.testing.assert_array_equal(np.stack(actions), torch.stack(sent).clamp(-1, 1).numpy())
    traces = twin.traces()
    np.testing.assert_allclose(agent.distance, traces["latent"][:, -1], rtol=1e-6)
    torch.testing.assert_close(agent.plan.distances_BH[:, 0], twin.predicted[-1])
    assert agent.plan.actions_BHA.shape == (1, 5, 10) and agent.plan.codes_BHD.shape == (1, 5, 16)
    np.testing.assert_array_equal(agent.plan.raw_BTA[0, :5], actions[10:])


def test_a_batch_is_its_rows_and_sizes_are_fitted(run):
    agent, alone = lpwm.load(run.folder), lpwm.load(run.folder)
    goals, frames = np.stack([frame(1), frame(2)]), np.stack([frame(3), frame(4)])
    agent.reset(goal=goals)
    alone.reset(goal=torch.from_numpy(goals[0]))
    both, one = agent.act(frames), alone.act(frames[0])
    assert both.shape == (2, 2) and both.dtype == np.float32
    np.testing.assert_allclose(both[0], one, atol=1e-5)
    agent.reset(goal=frame(1, 64))  # one goal for all, of another size
    assert agent.act(frames).shape == (2, 2)


@pytest.mark.parametrize("solver", ["icem", "mppi", "gradient", lpwm.CEMConfig(samples=16, elites=4, iterations=2)])
def test_any_solver(run, solver):
    agent = lpwm.load(run.folder, solver=solver, horizon=2)
    agent.reset(goal=frame(1))
    assert agent.act(frame(0)).shape == (2,) and agent.plan.actions_BHA.shape == (1, 2, 10)


def test_from_every_kind_of_folder(run, tmp_path):
    run.build_model(torch.device("cpu")).save_pretrained(tmp_path / "bare")
    lpwm.WorldModel.from_pretrained(str(run.folder)).save_pretrained(tmp_path / "saved")
    checkpoint = next((run.folder / "checkpoints").glob("step-*"))
    actions = []
    for path in (run.folder, str(checkpoint), tmp_path / "saved"):
        agent = lpwm.load(path)
        agent.reset(goal=frame(1))
        actions.append(agent.act(frame(0)))
    assert all(np.array_equal(a, actions[0]) for a in actions)
    refused("does not say how its actions are normalized", lpwm.load, tmp_path / "bare")


def test_recordings_without_a_world(recorded, tmp_path):
    agent = lpwm.load(recorded.folder)
    pixels = lpwm.read_data(recorded.config.data.file).pixels
    agent.reset(goal=pixels[5])
    sent = np.stack([agent.act(pixels[t]) for t in range(12)])
    assert sent.shape == (12, 1) and sent.min() >= -3 and sent.max() <= 1
    loaded = lpwm.train.load(recorded.folder)
    assert loaded.world is None and loaded.spec.action_high == (1.0,)
    result = lpwm.evaluate(recorded, preset="quick", episodes=3, device="cpu")  # without a world: on recordings alone
    assert len(result.runs[0].depth) > 1 and "plans 5 blocks ahead" in result.table()
    old = tmp_path / "old"  # as 0.1.0 wrote it: most of what was recorded is within 3 standard deviations
    shutil.copytree(next((recorded.folder / "checkpoints").glob("step-*")), old)
    model = lpwm.WorldModel.from_pretrained(old)
    del model.meta["action_bounds"]
    model.save_pretrained(tmp_path / "without")
    assert "action_bounds" not in (tmp_path / "without" / CONFIG).read_text()
    low, high = (float(getattr(lpwm.load(tmp_path / "without"), side)[0]) for side in ("low", "high"))
    assert low < -3 < 1 < high


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (np.zeros((3, 16, 16), np.uint8), r"the goal is uint8 of shape \(3, 16, 16\): give uint8 \(height, width, 3\)"),
        (np.zeros((16, 16, 3)), "the goal is float64"),
        (np.zeros((16, 16), np.uint8), "the goal is uint8 of shape"),
        ([[1, 2], [3, 4]], "the goal is int64 of shape"),
        (np.zeros((0, 16, 3), np.uint8), "the goal is uint8 of shape"),
    ],
)
def test_wrong_goals_are_one_sentence(run, goal, words):
    agent = lpwm.load(run.folder)
    refused(words, agent.reset, goal=goal)
    refused(r"call reset\(goal=frame\) first", agent.act, frame(0))
    agent.reset(goal=np.stack([frame(0)] * 3))
    refused("3 goals and 2 frames", agent.act, np.stack([frame(0)] * 2))


def test_mistakes_in_loading_are_one_sentence(run, tmp_path):
    refused("there is no folder", lpwm.load, tmp_path / "nowhere")
    refused("did you mean 'paper'", lpwm.load, run.folder, preset="papr")
    refused("did you mean 'cem'", lpwm.load, run.folder, solver="cme")
    refused("unknown device", lpwm.load, run.folder, device="tpu9")
    refused("episodes", lpwm.evaluate, run, preset="quick", episodez=3)
