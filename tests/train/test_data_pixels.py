"""Pixels measured by the training frames themselves: what the statistics are, and that they travel with the weights."""

from dataclasses import replace

import numpy as np
import torch

from lpwm import train as runs
from lpwm.data import from_arrays
from lpwm.data.normalize import LEAST_STD, pixel_stats
from lpwm.model import WorldModel
from lpwm.recipes import tiny
from lpwm.train import Run

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


def test_the_other_choices_keep_their_files_and_names(tmp_path):
    for pixels in ("half", "imagenet", "white"):
        model = Run.create(config(pixels), tmp_path).build_model(CPU)
        assert not {n for n in model.state_dict() if n.endswith((".scale", ".shift"))}
    assert config("half").model.encoder == tiny().model.encoder
