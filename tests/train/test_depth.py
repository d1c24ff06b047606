"""Held-out rollout errors: known predictors, the copy baseline, and episodes that are too short."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lpwm import worlds
from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.data import ResidentClips, from_arrays
from lpwm.data.clips import Clip
from lpwm.model import ModelConfig, WorldModel
from lpwm.model.config import PredictorConfig
from lpwm.model.encoder import EncoderConfig, ProjectorConfig
from lpwm.train.depth import depth_errors, held_out_clips, held_out_range


def small_model(rung: str = "mlp-lti", history: int = 2) -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(
        ModelConfig(
            latent=8,
            encoder=EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16),
            projector=ProjectorConfig(hidden=16),
            predictor=PredictorConfig(rung, history, heads=1, head_dim=16, mlp=16, head_hidden=16, dropout=0.5),
        ),
        action_dim=2 * 5,
    )


def episodes(count: int = 20, length: int = 60) -> Any:
    world = worlds.make("piecewise")
    state, states, actions = world.sample_state(count, ("depth",)), [], []
    for t in range(length):
        states.append(state)
        actions.append(2 * torch.rand((count, 2), generator=rng.generator("depth", t)) - 1)
        state = world.step(state, actions[-1])
    S, A = torch.stack(states, 1).numpy(), torch.stack(actions, 1).numpy()
    return from_arrays(list(S), [a[:-1] for a in A], spec=world.spec)


def held_out(**options: Any) -> ResidentClips:
    defaults: dict[str, Any] = dict(world=worlds.make("piecewise"), batch=4, image_size=16, holdout=0.2)
    return held_out_clips(options.pop("data", None) or episodes(), **{**defaults, **options})


@dataclass
class Scripted:
    """A clip source whose 'pixels' are the codes themselves."""

    codes: Tensor  # (batches, b, T, D)
    actions: Tensor
    asked: list[int] = field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.codes)

    def batch(self, step: int) -> Clip:
        self.asked.append(step)
        return Clip(self.codes[step], self.actions[step], self.codes[step])


class Shift(nn.Module):
    """A model whose code moves by exactly gain × action; `rollout` follows the contract of WorldModel."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain
        self.seen: list[tuple[int, int]] = []

    def encode(self, frames: Tensor) -> Tensor:
        assert not self.training
        return frames

    def rollout(self, z: Tensor, actions: Tensor, past: Tensor | None = None) -> Tensor:
        assert not torch.is_grad_enabled()
        self.seen.append((z.shape[1], 0 if past is None else past.shape[1]))
        return z[:, -1:, None] + self.gain * actions.cumsum(2)


def scripted(batches: int = 3, frames: int = 9) -> Scripted:
    actions = torch.randn((batches, 4, frames - 1, 6), generator=rng.generator("shift"))
    start = torch.randn((batches, 4, 1, 6), generator=rng.generator("start"))
    return Scripted(torch.cat((start, start + actions.cumsum(2)), dim=2), actions)


@pytest.mark.parametrize("context", [1, 3])
def test_errors_by_depth_by_hand(context: int) -> None:
    source, model = scripted(), Shift(0.5).train()
    got = depth_errors(model, source, depths=5, batches=2, context=context)  # type: ignore[arg-type]
    z, a = source.codes[:2].double().numpy(), source.actions[:2].double().numpy()
    for h in range(1, 6):
        target, last = z[:, :, context - 1 + h], z[:, :, context - 1]
        guess = last + 0.5 * a[:, :, context - 1 : context - 1 + h].sum(2)
        power = (target**2).mean()
        assert got["error_depth"][h - 1] == pytest.approx(((guess - target) ** 2).mean() / power, rel=1e-4)
        assert got["copy_error_depth"][h - 1] == pytest.approx(((last - target) ** 2).mean() / power, rel=1e-4)
    assert got["clips"] == 8 and "note" not in got and len(got["error_depth"]) == 5
    assert source.asked == [0, 1] and model.seen == [(context, context - 1)] * 2
    assert model.training


def test_the_perfect_model_and_the_copy() -> None:
    assert max(depth_errors(Shift(1.0), scripted())["error_depth"]) < 1e-10  # type: ignore[arg-type]
    copy = depth_errors(Shift(0.0), scripted())  # type: ignore[arg-type]
    assert copy["error_depth"] == copy["copy_error_depth"]


def test_no_more_batches_than_an_epoch_holds() -> None:
    source = scripted(batches=2)
    assert depth_errors(Shift(1.0), source, batches=10)["clips"] == 8  # type: ignore[arg-type]
    assert source.asked == [0, 1]


@pytest.mark.parametrize("rung", ["mlp-lti", "shallow-adaln"])
def test_a_real_model_on_real_clips(rung: str) -> None:
    model, source = small_model(rung).train(), held_out()
    got = depth_errors(model, source, batches=2)
    assert got == depth_errors(model, source, batches=2)  # no dropout, the same clips
    assert len(got["error_depth"]) == 8 and got["clips"] == 8 and model.training
    clips = [source.batch(step) for step in range(2)]
    model.eval()
    with torch.no_grad():
        z = torch.cat([model.encode(c.pixels) for c in clips])
        a = torch.cat([c.actions for c in clips])
        first = model.predict(z[:, :1], a[:, :1])[:, 0]
    want = ((first - z[:, 1]) ** 2).mean() / (z[:, 1] ** 2).mean()
    assert got["error_depth"][0] == pytest.approx(float(want), rel=1e-4)


def test_short_episodes_use_what_fits_and_say_so() -> None:
    source = held_out(data=episodes(length=22))  # 22 frames hold 5 that are 5 apart
    assert source.clip_length == 5
    got = depth_errors(small_model(), source)
    assert len(got["error_depth"]) == 4 and "depths 1 to 4, not 8" in got["note"]
    assert len(depth_errors(small_model(), source, context=4)["error_depth"]) == 1
    with pytest.raises(UserError, match="hold no prediction"):
        held_out(data=episodes(length=5))
    with pytest.raises(UserError, match="nothing beyond 5 context frames"):
        depth_errors(small_model(), source, context=5)
    with pytest.raises(UserError, match="at least 1"):
        depth_errors(small_model(), source, depths=0)


def test_held_out_clips_are_held_out() -> None:
    data = episodes()
    train = ResidentClips(data, world=worlds.make("piecewise"), clip_length=9, batch=4, holdout=0.2, image_size=16)
    seen = {tuple(row) for step in range(8) for row in train.batch(step).states.flatten(0, 1).tolist()}
    source = held_out(data=data, stats=train.stats)
    fresh = {tuple(row) for step in range(2) for row in source.batch(step).states.flatten(0, 1).tolist()}
    assert source.clip_length == 9 and not seen & fresh


def test_range_on_held_out_clips() -> None:
    class Position(nn.Module):
        def encode(self, frames: Tensor) -> Tensor:
            raise AssertionError("the given encode is used")

    source = held_out(batch=32)
    got = held_out_range(Position(), source, (0, 1), 224, encode=lambda clip: 2 * clip.states)  # type: ignore[arg-type]
    values = list(got.values())
    assert len(values) == 4 and values == sorted(values) and 0 < values[0] < 0.2 and values[-1] < 1
    assert np.isfinite(values).all()
