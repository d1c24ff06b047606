"""The decoder on made-up codes, and `--what imagination` on runs with fresh weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lpwm.interpret.config import DecoderConfig
from lpwm.interpret.decode import Imagination, decoder_of, fit_decoder, imagination_study, imagine, training_codes
from lpwm.interpret.results import results_of
from lpwm.train import Run, load

QUICK = DecoderConfig(side=12, frames=512, components=32, hidden=64, steps=150, batch=64, depths=3, clips=64)


def dots(n, seed, side=12):
    """Places (n, 2) in 0…1, frames (n, 3, s, s) of a soft dot there, and codes that say the place in 8 units."""
    draw = np.random.default_rng(seed)
    place = draw.uniform(0.15, 0.85, (n, 2))
    at = (np.arange(side) + 0.5) / side
    near = np.exp(
        -((at[None, None] - place[:, 0, None, None]) ** 2 + (at[None, :, None] - place[:, 1, None, None]) ** 2) / 0.01
    )
    frames = torch.from_numpy((255 * near).astype(np.uint8))[:, None].expand(-1, 3, -1, -1).contiguous()
    mix = np.random.default_rng(7).normal(size=(2, 8))
    return torch.from_numpy(np.maximum(place @ mix, 0)).float(), frames


def error(guess, frames):
    return float((guess - frames.float() / 255).square().mean())


def test_codes_that_say_the_place_are_drawn_and_others_are_not():
    (z, frames), (z_held, held) = dots(600, 0), dots(200, 1)
    decoder = fit_decoder(z, frames, QUICK)
    with torch.no_grad():
        drawn, blind = decoder(z_held), decoder(z_held[torch.randperm(200, generator=torch.manual_seed(0))])
    mean = (frames.float() / 255).mean(0)
    assert drawn.shape == (200, 3, 12, 12) and drawn.min() >= 0 and drawn.max() <= 1
    assert error(drawn, held) < 0.3 * error(mean, held)
    assert error(blind, held) > 0.9 * error(mean, held)


def test_a_unit_that_is_hardly_ever_on_is_not_blown_up():
    z, frames = dots(600, 0)
    rare = torch.zeros(600, 1)
    rare[3] = 0.01
    decoder = fit_decoder(torch.cat((z, rare), 1), frames, QUICK)
    assert decoder.scale[-1] < 4 / z.std(0).square().mean().sqrt()  # 1/std would be 2,400
    on = torch.cat((z[:20], torch.full((20, 1), 0.01)), 1)
    off = torch.cat((z[:20], torch.zeros(20, 1)), 1)
    with torch.no_grad():
        assert (decoder(on) - decoder(off)).abs().mean() < 0.02


@pytest.fixture(scope="module")
def folder(root, fresh_run):
    return fresh_run(root, "decoded", episodes=30, steps=30)


def test_copying_and_the_mean_frame_are_those_of_numpy(folder):
    """On the held-out clips themselves, drawn by the world."""
    loaded, run = load(folder), Run.open(folder)
    codes, frames = training_codes(loaded, run, QUICK)
    result, strips = imagine(loaded, fit_decoder(codes, frames, QUICK), codes, frames, run, QUICK)
    seen = strips.seen.numpy().astype(np.float64) / 255  # (b, 1 + H, 3, s, s)
    mean = (frames.numpy() / 255).mean(0)
    for name, guess in (("copy", seen[:, :1]), ("mean", mean)):
        wanted = np.square(guess - seen[:, 1:]).mean((0, 2, 3, 4))
        np.testing.assert_allclose(getattr(result, name), wanted, atol=1e-4)
    imagined = np.square(strips.imagined.numpy()[:, 1:] / 255 - seen[:, 1:]).mean((0, 2, 3, 4))
    np.testing.assert_allclose(result.imagined, imagined, rtol=0.02, atol=1e-4)
    assert (strips.imagined[:, 0] == strips.seen[:, 0]).all()
    train = {f.tobytes() for f in frames.numpy()}
    assert all(f.tobytes() in train for f in strips.nearest[:, 1:].flatten(0, 1).numpy())
    assert result.clips == len(seen) == len(strips.error_b)


def test_the_verb_writes_errors_and_a_picture_of_a_success_and_of_a_failure(folder, call, tmp_path, monkeypatch):
    def quickly(one, where, config):
        return imagination_study(one, where, replace(config, steps=20, frames=512))

    monkeypatch.setattr("lpwm.interpret.decode.imagination_study", quickly)
    out = tmp_path / "deep" / "one.json"
    status, text, _ = call(folder, "--what", "imagination", "--out", out, "--device", "cpu")
    assert status == 0 and max(map(len, text.splitlines())) <= 80 and "imagined" in text
    content = json.loads(out.read_text())
    (result,) = results_of(content)
    assert isinstance(result, Imagination) and Imagination.from_json(result.to_json()) == result
    assert len(result.imagined) == len(result.copy) == 6  # 30 steps hold six blocks ahead
    assert [s.outcome for s in result.strips] == ["success", "failure"]
    for strip in result.strips:
        with Image.open(out.parent / strip.file) as image:
            assert image.format == "WEBP" and image.height < image.width
    worst, best = (next(s.error for s in result.strips if s.outcome == o) for o in ("failure", "success"))
    assert worst >= best
    status, _, err = call(folder, "--what", "imagination", "--pictures", tmp_path, "--device", "cpu")
    assert status == 2 and "no pictures" in err
    assert not list(Path(folder).glob("interpret/*"))


def test_a_decoder_is_kept_where_studies_are_and_fitted_anew_when_damaged(root, fresh_run, monkeypatch):
    folder = fresh_run(root, "kept", episodes=30, steps=30)
    loaded, run = load(folder), Run.open(folder)
    z = torch.rand(5, loaded.model.config.latent)
    first = decoder_of(loaded, run, QUICK)
    assert not (folder / "interpret").exists()
    (folder / "interpret").mkdir()
    assert torch.equal(decoder_of(loaded, run, QUICK)(z), first(z))
    (kept,) = (folder / "interpret").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("lpwm.interpret.decode.fit_decoder", None)
        assert torch.equal(decoder_of(loaded, run, QUICK)(z), first(z))
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-7], whole.replace(b"network.0", b"network.9")):
        kept.write_bytes(damaged)
        assert torch.equal(decoder_of(loaded, run, QUICK)(z), first(z)) and kept.read_bytes() == whole
    other = replace(QUICK, hidden=32)
    assert decoder_of(loaded, run, other).network[0].out_features == 32
    assert len(list((folder / "interpret").iterdir())) == 2
