"""Probes of any factor: a code with a known answer, angles, goals as wanted values, and the file that keeps them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.data.episodes import from_arrays
from lpwm.interpret.config import FactorConfig
from lpwm.interpret.factors import FILE, Factors, fit_factors, load_factors
from lpwm.worlds.base import WorldSpec

NAMES = ("block_x", "angle", "hidden", "still", "turned")
SPEC = WorldSpec("toy", {}, NAMES, ("a",), (-1.0,), (1.0,), frame=8, episode=40)


class Toy(torch.nn.Module):
    """A frame holds the state; the code is a rotation of (x, sin, cos, sin, cos) and says nothing of `hidden`."""

    def __init__(self):
        super().__init__()
        mix = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))[0]
        self.mix = torch.nn.Parameter(mix)

    def encode(self, state):
        x, a, _, _, b = state.unbind(-1)
        parts = (x / 100, a.sin(), a.cos(), b.sin(), b.cos(), x * 0 + 1, 0.1 * (x / 30).sin(), 0.1 * (2 * a).cos())
        return torch.stack(parts, -1) @ self.mix


def toy_run(path, spec=SPEC, episodes=30, steps=41):
    draw, states = np.random.default_rng(0), []
    for _ in range(episodes):
        x = 150 + np.cumsum(draw.normal(0, 10, steps)) + draw.uniform(-100, 100)
        angle, turned = (draw.uniform(0, 6.3) + np.cumsum(draw.normal(0, 0.3, steps)) for _ in range(2))
        hidden = draw.normal(size=steps)
        states.append(np.stack((x, angle % (2 * np.pi), hidden, 0 * x + 3, turned % (2 * np.pi)), 1).astype("float32"))
    data = from_arrays(states, [np.zeros((steps - 1, 1), "float32")] * episodes, spec=spec)
    world = SimpleNamespace(
        renderer=lambda size, device: lambda s: s,
        factors=lambda s: {"zone": (s[:, 0] // 40).long(), "far": (s[:, 0] > 150).long(), "double": 2 * s[:, 0]},
    )
    return SimpleNamespace(
        model=Toy(), world=world, frameskip=1, image=8, holdout=0.3, path=path, step=7, episodes=lambda: data
    )


@pytest.fixture
def fitted(tmp_path):
    loaded = toy_run(tmp_path)
    return loaded, fit_factors(loaded)


def test_what_the_code_tells_is_found_and_the_rest_is_not(fitted):
    _, factors = fitted
    scores = {s.name: s for s in factors.scores}
    # a constant says nothing, and the number of a zone is no quantity
    assert set(scores) == {"block_x", "angle", "hidden", "turned", "far", "double"}
    assert {n for n, s in scores.items() if s.angle} == {"angle", "turned"}  # by its name; because it jumps by a turn
    assert all(scores[n].r2 > 0.99 for n in ("block_x", "angle", "turned", "double")) and scores["far"].r2 > 0.5
    assert scores["hidden"].r2 < 0.05 and all(s.shuffled < 0.2 for s in scores.values())
    assert all(s.r2_low <= s.r2 <= s.r2_high for s in scores.values())


def test_values_come_back_and_angles_are_angles(fitted):
    loaded, factors = fitted
    states = loaded.episodes().states[:50]
    values = factors.predict(loaded.model.encode(states).unflatten(0, (5, 10)))
    assert values["block_x"].shape == (5, 10) and torch.allclose(values["block_x"].flatten(), states[:, 0], atol=3)
    off = values["angle"].flatten() - states[:, 1]
    assert torch.atan2(off.sin(), off.cos()).abs().max() < 0.15


def test_the_cost_is_least_at_what_is_wanted(fitted):
    loaded, factors = fitted
    x, angle = torch.meshgrid(torch.linspace(0, 300, 31), torch.linspace(0, 6.2, 32), indexing="ij")
    states = torch.stack((x, angle, 0 * x, 0 * x + 3, 0 * x + 1), -1)
    cost = factors.cost({"block_x": 200.0, "angle": -math.pi / 2})(loaded.model.encode(states))
    assert cost.shape == (31, 32)
    row, column = divmod(int(cost.argmin()), 32)
    assert x[row, 0] == 200 and abs(angle[0, column] - 1.5 * math.pi) < 0.2
    spread = next(s.spread for s in factors.scores if s.name == "block_x")
    alone = factors.cost({"block_x": 200.0})(loaded.model.encode(states[:, 0]))
    assert torch.allclose(alone, ((x[:, 0] - 200) / spread) ** 2, atol=0.05, rtol=0.05)  # in units of its spread


def test_they_are_kept_with_the_run(fitted, tmp_path):
    _, factors = fitted
    (tmp_path / "checkpoints" / "step-7").mkdir(parents=True)
    again = load_factors(tmp_path / "checkpoints" / "step-7", step=7)
    assert isinstance(again, Factors) and again.scores == factors.scores and again.names == factors.names
    assert torch.equal(again.weight_DY, factors.weight_DY) and torch.equal(again.bias_Y, factors.bias_Y)
    with pytest.raises(UserError, match="fitted to step 7 and the model is of step 8"):
        load_factors(tmp_path, step=8)
    content = (tmp_path / FILE).read_bytes()
    for broken in (b"", content[:40], content.replace(b"version", b"verslon"), content.replace(b"r2", b"q2")):
        (tmp_path / FILE).write_bytes(broken)
        with pytest.raises(UserError, match="damaged"):
            load_factors(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(UserError, match="lpwm interpret --what factors"):
        load_factors(tmp_path)


def test_recordings_without_names_and_a_choice_of_factors(tmp_path):
    loaded = toy_run(tmp_path, spec=None)
    data = loaded.episodes()
    data = type(data)(**{**vars(data), "pixels": Stored(data.states)})
    loaded.world, loaded.image, loaded.episodes = None, 1, lambda: data
    loaded.model.encode = lambda frames, plain=loaded.model.encode: plain(frames[:, :, 0, 0])
    factors = fit_factors(loaded, FactorConfig(factors=("state_0", "state_1"), angles=("state_1",)), save=False)
    assert factors.names == ("state_0", "state_1") and [s.angle for s in factors.scores] == [False, True]
    assert min(s.r2 for s in factors.scores) > 0.99 and not (tmp_path / FILE).exists()


class Stored:
    """Frames as a file gives them; a picture of one pixel holds the state."""

    def __init__(self, states):
        self.states = states.numpy()[:, None, None, :]

    def __getitem__(self, rows):
        return self.states[rows]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({}, "no factor is wanted"),
        ({"blok_x": 1.0}, "unknown factor 'blok_x': did you mean 'block_x'"),
        ({"block_x": math.nan}, "give a finite number"),
        ({"hidden": 1.0}, "do not tell hidden"),
    ],
)
def test_goals_that_cannot_be_are_one_sentence(fitted, wanted, words):
    _, factors = fitted
    scores = tuple(s if s.name != "hidden" else type(s)(**{**vars(s), "r2": -0.2}) for s in factors.scores)
    with pytest.raises(UserError, match=words):
        Factors(scores, factors.weight_DY, factors.bias_Y, 7).cost(wanted)


def test_codes_of_another_model_are_refused(fitted):
    with pytest.raises(UserError, match="9 entries"):
        fitted[1].predict(torch.zeros(2, 9))
