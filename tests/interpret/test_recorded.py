"""Runs without a world: a model that knows the truth, one that knows nothing, and the verbs on small recordings."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lpwm
from lpwm import cli
from lpwm.core.errors import UserError
from lpwm.data import ActionStats
from lpwm.data.episodes import from_arrays
from lpwm.evaluate.config import EvalConfig
from lpwm.interpret import load_factors
from lpwm.interpret.recorded import Recorded, RecordedEvaluation, recorded, table
from lpwm.interpret.results import RunInfo
from lpwm.worlds.base import WorldSpec

SPEC = WorldSpec("recordings", {}, (), ("a", "b"), (-2.0, -2.0), (2.0, 2.0), frame=1, episode=0)
QUICK = EvalConfig(episodes=24, horizons=(2,), receding=(0,), options={"samples": 64, "elites": 8, "iterations": 12})


class Integrator(torch.nn.Module):
    """The code is the place, and an action moves it: z' = z + Σ a/10 over a block of two raw actions."""

    history, proprio_dim = 2, 0

    def __init__(self, blind=False):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.1))
        self.blind = blind
        self.eval()

    def encode(self, frames):
        return frames[:, :, 0, 0].float() if not self.blind else torch.randn(len(frames), 2)

    def rollout(self, z_BCD, actions_BSHA, past_BPA=None, last_only=False):
        assert (0 if past_BPA is None else past_BPA.shape[1]) == z_BCD.shape[1] - 1
        moves = self.scale * actions_BSHA.unflatten(-1, (2, 2)).sum(-2)
        z = z_BCD[:, -1, None, None] + (0 if self.blind else 1) * moves.cumsum(2)
        return z[:, :, -1] if last_only else z


class Stored:
    def __init__(self, states):
        self.states = states.numpy()[:, None, None, :]

    def __getitem__(self, rows):
        return self.states[rows]


def run_of(path, blind=False, episodes=40, steps=25, states=True):
    draw, places, actions = np.random.default_rng(0), [], []
    for _ in range(episodes):
        a = np.repeat(draw.normal(size=((steps - 1) // 4, 2)), 4, 0).clip(-2, 2)  # blocks come in pairs
        places.append(draw.uniform(-2, 2, 2) + 0.1 * np.concatenate((np.zeros((1, 2)), np.cumsum(a, 0))))
        actions.append(a.astype("float32"))
    data = from_arrays([p.astype("float32") for p in places], actions)
    changes = {"pixels": Stored(data.states)} | ({} if states else {"states": data.states[:, :0]})
    data = type(data)(**{**vars(data), **changes})
    return SimpleNamespace(
        model=Integrator(blind),
        spec=SPEC,
        world=None,
        stats=ActionStats((0.0, 0.0), (1.0, 1.0)),
        frameskip=2,
        image=1,
        holdout=0.4,
        path=path,
        step=3,
        episodes=lambda: data,
    )


@pytest.fixture(autouse=True)
def described(monkeypatch):
    """A toy run has no config to digest."""
    info = RunInfo(name="toy", hash="ab", method="toy", seed=0, step=3, sparse=False, link="identity", latent=2)
    for module in ("factors", "recorded"):
        plain = getattr(lpwm.interpret, module).made if hasattr(lpwm.interpret, module) else None
        monkeypatch.setattr(
            f"lpwm.interpret.{module}.made",
            lambda one, plain=plain: {"run": info} if isinstance(one, SimpleNamespace) else plain(one),
        )


def rows(study, ahead=0):
    return {r.actions: r for r in study.planning[ahead].rows}


def test_a_model_that_knows_the_truth(tmp_path):
    study = recorded(run_of(tmp_path), QUICK)
    assert max(study.depth) < 1e-6 < 0.005 < study.copy[0] < study.copy[-1] and len(study.depth) == 8
    assert [s.name for s in study.factors] == ["state_0", "state_1"] and min(s.r2 for s in study.factors) > 0.999
    assert max(s.shuffled for s in study.factors) < 0.2 and load_factors(tmp_path, step=3).scores == study.factors
    assert study.retrieval.state.estimate < 0.01 and study.retrieval.time.high < 3 < study.retrieval.time_chance
    got = rows(study)
    # Two blocks reach the goal in many ways; the sum of the actions is what the plan must find, and does.
    assert got["planned"].left.high < 0.1 and got["recorded"].left.high < 1e-3
    assert got["recorded"].error.high == 0 and got["repeated"].left.low > 0.1 and got["random"].left.low > 0.5
    assert got["planned"].error.high < got["random"].error.low and got["random"].error.estimate == pytest.approx(
        2**0.5, abs=0.35
    )
    one = recorded(run_of(tmp_path), EvalConfig(**{**vars(QUICK), "horizons": (1,)}))
    assert rows(one)["planned"].error.estimate < 0.8 * rows(one)["random"].error.estimate


def test_a_model_that_knows_nothing(tmp_path):
    torch.manual_seed(0)
    study = recorded(run_of(tmp_path, blind=True), QUICK)
    assert min(study.depth) > 1 and max(s.r2 for s in study.factors) < 0.1
    assert 0.4 < study.retrieval.state.estimate < 0.6
    assert study.retrieval.time.estimate > 0.9 * study.retrieval.time_chance
    assert rows(study)["planned"].error.low > 0.8


def test_what_was_measured_survives_json_and_fits_80_columns(tmp_path):
    one = recorded(run_of(tmp_path), EvalConfig(**{**vars(QUICK), "horizons": (1, 3), "episodes": 6}))
    record = json.loads(json.dumps(one.to_json(), allow_nan=False))
    assert Recorded.from_json(record) == one and record["kind"] == "lpwm recorded evaluation"
    several = RecordedEvaluation((one, one))
    several.to_json(tmp_path / "new" / "out.json")
    assert RecordedEvaluation.from_json(json.loads((tmp_path / "new" / "out.json").read_text())) == several
    text = table(one)
    assert max(map(len, text.splitlines())) <= 80 and several.table().count("toy: 16 held-out trajectories") == 2
    for part in ("copying", "state_1", "labels shuffled", "by chance 50 %", "6 plans 3 blocks ahead", "repeated"):
        assert part in " ".join(text.split())
    with pytest.raises(UserError, match="no evaluation of recordings"):
        RecordedEvaluation.from_json({"kind": "other"})


def test_recordings_without_states_and_plans_that_are_too_long(tmp_path):
    study = recorded(run_of(tmp_path, states=False), QUICK)
    assert study.factors == () and study.retrieval.state is None and "factor" not in table(study)
    with pytest.raises(UserError, match=r"no held-out trajectory has 14 frames 2 steps apart .the longest has 13."):
        recorded(run_of(tmp_path), EvalConfig(**{**vars(QUICK), "horizons": (12,)}))


# A run on a file of recordings, through the verbs --------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A bright dot that goes where its two actions send it; states: its place and an angle."""
    folder, draw, episodes = tmp_path_factory.mktemp("mine"), np.random.default_rng(0), []
    for _ in range(24):
        action = draw.uniform(-1, 1, (40, 2)).astype("float32")
        place = np.clip(8 + np.cumsum(np.vstack((draw.uniform(-4, 4, (1, 2)), action)), 0), 1, 14)
        pixels = np.zeros((41, 16, 16, 3), np.uint8)
        for t, (x, y) in enumerate(place.round().astype(int)):
            pixels[t, y - 1 : y + 1, x - 1 : x + 1] = 255
        angle = np.arctan2(place[:, 1] - 8, place[:, 0] - 8)
        state = np.column_stack((place, angle)).astype("float32")
        episodes.append({"pixels": pixels, "action": action, "state": state})
    lpwm.write_data(str(folder / "mine.h5"), episodes)
    changes = {"train.steps": 8, "train.stop_dead": False, "data.holdout": 0.3}
    return lpwm.train("tiny/lpwm", out=folder, data=folder / "mine.h5", overrides=changes, device="cpu", name="mine")


def test_the_verbs_take_runs_without_a_world(run, tmp_path, capsys):
    result = lpwm.evaluate(run, preset="quick", episodes=4, horizons=(2,), receding=(0,), device="cpu")
    assert max(map(len, result.table().splitlines())) <= 80 and len(result.runs[0].planning) == 1
    assert [s.angle for s in result.runs[0].factors] == [False, False, True]  # it jumps by a turn
    (kept,) = run.folder.glob("eval/recorded-*.json")
    assert RecordedEvaluation.from_json(json.loads(kept.read_text())).to_json() == result.to_json()
    words = ["eval", str(run.folder), "--preset", "quick", "--episodes", "4", "--horizon", "2", "--device", "cpu"]
    assert cli.main([*words, "--json", "--out", str(tmp_path / "x" / "out.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "x" / "out.json").read_text()) and len(printed["readings"]) == 1
    assert cli.main([*words, "--gif", "1"]) == 2 and "--gif needs a world" in capsys.readouterr().err
    assert cli.main(["interpret", str(run.folder), "--frames", "200", "--device", "cpu"]) == 0
    assert "state_2 (angle)" in capsys.readouterr().out
    study = lpwm.interpret(run, frames=100, device="cpu")
    assert study.to_json()["kind"] == "lpwm factors" and load_factors(run.folder).scores == study.scores
    page = lpwm.report([run], tmp_path / "page.html").read_text()
    for part in ('id="factors"', 'id="recorded"', "state_2 (angle)", "copying the frame", "plans 2 blocks ahead"):
        assert part in page
