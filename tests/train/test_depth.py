"""Held-out rollout errors: known predictors, the copy baseline, and episodes that are too short."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from tools import refused
from torch import Tensor, nn

from lpwm import train as runs
from lpwm import worlds
from lpwm.core import rng
from lpwm.data import ResidentClips, from_arrays, write
from lpwm.data.clips import Clip
from lpwm.data.normalize import LEAST_STD, pixel_stats
from lpwm.model import ModelConfig, WorldModel
from lpwm.model.config import PredictorConfig
from lpwm.model.encoder import EncoderConfig, ProjectorConfig
from lpwm.recipes import tiny
from lpwm.train import Run
from lpwm.train.monitors import depth_errors, held_out_clips
from lpwm.train.prepare import prepare_data
from lpwm.train.run_config import DataConfig


def small_model(rung="mlp-lti", history=2):
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


def episodes(count=20, length=60):
    world = worlds.make("piecewise")
    state, states, actions = world.sample_state(count, ("depth",)), [], []
    for t in range(length):
        states.append(state)
        actions.append(2 * torch.rand((count, 2), generator=rng.generator("depth", t)) - 1)
        state = world.step(state, actions[-1])
    S, A = torch.stack(states, 1).numpy(), torch.stack(actions, 1).numpy()
    return from_arrays(list(S), [a[:-1] for a in A], spec=world.spec)


def held_out(**options):
    defaults = dict(world=worlds.make("piecewise"), batch=4, image_size=16, holdout=0.2)
    return held_out_clips(options.pop("data", None) or episodes(), **{**defaults, **options})


@dataclass
class Scripted:
    """A clip source whose 'pixels' are the codes themselves."""

    codes: Tensor  # (batches, b, T, D)
    actions: Tensor
    steps: list[int] = field(default_factory=list)

    @property
    def steps_per_epoch(self):
        return len(self.codes)

    def batch(self, step):
        self.steps.append(step)
        return Clip(self.codes[step], self.actions[step], self.codes[step])


class Shift(nn.Module):
    """A model whose code moves by exactly gain × action; `rollout` follows the contract of WorldModel."""

    def __init__(self, gain):
        super().__init__()
        self.gain = gain
        self.seen = []

    def encode(self, frames):
        assert not self.training
        return frames

    def rollout(self, z, actions, past=None):
        assert not torch.is_grad_enabled()
        self.seen.append((z.shape[1], 0 if past is None else past.shape[1]))
        return z[:, -1:, None] + self.gain * actions.cumsum(2)


def scripted(batches=3, frames=9):
    actions = torch.randn((batches, 4, frames - 1, 6), generator=rng.generator("shift"))
    start = torch.randn((batches, 4, 1, 6), generator=rng.generator("start"))
    return Scripted(torch.cat((start, start + actions.cumsum(2)), dim=2), actions)


@pytest.mark.parametrize("context", [1, 3])
def test_errors_by_depth_by_hand(context):
    source, model = scripted(), Shift(0.5).train()
    got = depth_errors(model, source, depths=5, batches=2, context=context)
    z, a = source.codes[:2].double().numpy(), source.actions[:2].double().numpy()
    for h in range(1, 6):
        target, last = z[:, :, context - 1 + h], z[:, :, context - 1]
        guess = last + 0.5 * a[:, :, context - 1 : context - 1 + h].sum(2)
        power = (target**2).mean()
        assert got["error_depth"][h - 1] == pytest.approx(((guess - target) ** 2).mean() / power, rel=1e-4)
        assert got["copy_error_depth"][h - 1] == pytest.approx(((last - target) ** 2).mean() / power, rel=1e-4)
    assert got["clips"] == 8 and "note" not in got and len(got["error_depth"]) == 5
    assert source.steps == [0, 1] and model.seen == [(context, context - 1)] * 2
    assert model.training


@pytest.mark.parametrize("rung", ["mlp-lti", "shallow-adaln"])
def test_a_real_model_on_real_clips(rung):
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


def test_short_episodes_use_what_fits_and_say_so():
    source = held_out(data=episodes(length=22))  # 22 frames hold 5 that are 5 apart
    assert source.clip_length == 5
    got = depth_errors(small_model(), source)
    assert len(got["error_depth"]) == 4 and "depths 1 to 4, not 8" in got["note"]
    assert len(depth_errors(small_model(), source, context=4)["error_depth"]) == 1
    refused("hold no prediction", held_out, data=episodes(length=5))
    refused("nothing beyond 5 context frames", depth_errors, small_model(), source, context=5)
    refused("at least 1", depth_errors, small_model(), source, depths=0)


def test_held_out_clips_are_held_out():
    data = episodes()
    train = ResidentClips(data, world=worlds.make("piecewise"), clip_length=9, batch=4, holdout=0.2, image_size=16)
    seen = {tuple(row) for step in range(8) for row in train.batch(step).states.flatten(0, 1).tolist()}
    source = held_out(data=data, stats=train.stats)
    fresh = {tuple(row) for step in range(2) for row in source.batch(step).states.flatten(0, 1).tolist()}
    assert source.clip_length == 9 and not seen & fresh


CPU = torch.device("cpu")


def config(pixels="data", **train):
    base = tiny()
    encoder = replace(base.model.encoder, pixels=pixels)
    return replace(base, model=replace(base.model, encoder=encoder), train=replace(base.train, steps=6, **train))


def test_statistics_are_those_of_the_training_frames(tmp_path):
    job = Run.create(config(), tmp_path)
    mean, std = pixel_stats(job.data, job.world(), 16, 0.1)
    train = torch.cat([c.pixels.flatten(0, 1) for c in map(job.source(CPU).batch, range(60))]).double() / 255
    torch.testing.assert_close(mean.double(), train.mean((0, 2, 3)), rtol=0, atol=0.01)
    want = train.transpose(0, 1).flatten(1).std(1)
    torch.testing.assert_close(std.double(), want.clamp(min=LEAST_STD), rtol=0.05, atol=0.01)


def test_stored_frames_and_a_channel_that_never_changes():
    pixels = np.full((20, 8, 8, 3), 255, dtype=np.uint8)
    pixels[..., 1] = 51
    pixels[:, :, :4, 2] = 0
    states, actions = np.zeros((2, 10, 2), np.float32), np.zeros((2, 9, 2), np.float32)
    data = from_arrays(states, actions, np.split(pixels, 2))
    mean, std = pixel_stats(data, None, 8, 0.5)
    torch.testing.assert_close(mean, torch.tensor([1.0, 0.2, 0.5]))
    torch.testing.assert_close(std, torch.tensor([LEAST_STD, LEAST_STD, 0.5]))


def test_a_loaded_checkpoint_encodes_as_the_trained_model_did(tmp_path):
    job = Run.create(config(), tmp_path)
    model = job.train(CPU, console=False)
    assert torch.equal(model.encoder.vit.scale, job.build_model(CPU).encoder.vit.scale)
    assert not torch.equal(model.encoder.vit.scale, WorldModel(job.config.model, 10).encoder.vit.scale)  # its own
    frames = job.source(CPU).batch(0).pixels
    loaded = runs.load(job.folder).model
    assert torch.equal(loaded.encoder.vit.shift, model.encoder.vit.shift)
    with torch.no_grad():
        assert torch.equal(loaded.encode(frames), model.encode(frames))


def test_a_relative_file_is_found_again(tmp_path, monkeypatch):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    digest = write(project / "a.h5", [{"state": np.zeros((5, 2)), "action": np.zeros((4, 1))}] * 2)
    config = DataConfig(file="a.h5")
    monkeypatch.chdir(project)
    assert prepare_data(config, project / "runs" / "data").digest == digest
    monkeypatch.chdir(elsewhere)
    assert prepare_data(config, project / "runs" / "data").digest == digest
    moved = project.rename(tmp_path / "moved")
    assert prepare_data(config, moved / "runs" / "data").digest == digest
    (moved / "runs" / "data" / "files.json").write_text("[")  # a damaged note is as none
    refused("does not exist", prepare_data, config, moved / "runs" / "data")
