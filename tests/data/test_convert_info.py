"""Adding and removing frames, statistics, controls, coverage, the contact sheet."""

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from tools import refused

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.data import collect, convert, describe, read, world_of, write
from lpwm.data.info import Coverage, contact_sheet

WORLD = worlds.make("piecewise")


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    path = tmp_path_factory.mktemp("convert") / "states.h5"
    collect(WORLD, path, episodes=60, steps=50)
    return path


def test_there_and_back(states, tmp_path):
    original = read(states)
    seen = []
    convert(states, tmp_path / "p.h5", add_pixels=True, size=32, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 60 and len(seen) > 1  # streamed
    with_pixels = read(tmp_path / "p.h5")
    assert with_pixels.digest != original.digest and with_pixels.pixels.shape == (60 * 51, 32, 32, 3)
    for row in (0, 50, 51, 60 * 51 - 1):
        expected = WORLD.render(original.states[row : row + 1], 32)[0].permute(1, 2, 0)
        np.testing.assert_array_equal(with_pixels.pixels[row : row + 1][0], expected)
    assert with_pixels.attributes["seed"] == 0 and with_pixels.attributes["policy"] == "random"
    assert world_of(with_pixels) == WORLD
    assert convert(tmp_path / "p.h5", tmp_path / "s.h5", remove_pixels=True) == original.digest
    direct = collect(WORLD, tmp_path / "d.h5", episodes=60, steps=50, pixels=True, size=32)
    assert direct == with_pixels.digest
    assert (tmp_path / "s.h5").stat().st_size < (tmp_path / "p.h5").stat().st_size / 2


def test_columns_of_others_are_kept(tmp_path):
    g = np.random.default_rng(0)
    episode = {"state": g.normal(size=(5, 2)), "action": g.normal(size=(4, 2)), "force": g.normal(size=(5, 3, 2))}
    episode["pixels"] = np.zeros((5, 8, 8, 3), np.uint8)
    write(tmp_path / "a.h5", [episode] * 3, attributes={"robot": "ours"})
    convert(tmp_path / "a.h5", tmp_path / "b.h5", remove_pixels=True)
    with h5py.File(tmp_path / "b.h5") as f:
        assert "pixels" not in f and f["force"].shape == (15, 3, 2) and f.attrs["robot"].decode() == "ours"
        np.testing.assert_array_equal(f["force"][5:10], episode["force"].astype(np.float32))


def test_what_cannot_be_converted(states, tmp_path):
    convert(states, tmp_path / "p.h5", add_pixels=True, size=8)
    write(tmp_path / "mine.h5", [{"state": np.zeros((5, 2)), "action": np.zeros((4, 2))}])
    write(tmp_path / "film.h5", [{"pixels": np.zeros((5, 8, 8, 3), np.uint8), "action": np.zeros((4, 2))}])
    add, remove = {"add_pixels": True}, {"remove_pixels": True}
    for source, out, options, match in (
        (states, "x.h5", remove, "no pixels: nothing to remove"),
        (states, states, {**add, "overwrite": True}, "write to another name"),
        (states, "x.h5", {**add, "size": 4}, "size is 4"),
        (tmp_path / "p.h5", "x.h5", add, "has pixels already"),
        (states, "p.h5", {**add, "size": 8}, "exists"),
        (tmp_path / "mine.h5", "x.h5", add, "which world made them"),
        (tmp_path / "film.h5", "x.h5", remove, "nothing would be left"),
    ):
        with pytest.raises(UserError, match=match):
            convert(source, tmp_path / out, **options)
    assert not (tmp_path / "x.h5").exists() and not list(tmp_path.glob(".*"))


def test_statistics(states):
    info, data = describe(states), read(states)
    assert info["episodes"] == 60 and info["steps"] == 3000 and info["frames"] == 3060
    assert info["length"] == {"least": 51, "most": 51} and info["pixels"] is None
    finite = data.actions.numpy()[~np.isnan(data.actions.numpy()).any(1)].astype(np.float64)
    assert len(finite) == 3000
    assert info["action"]["dy"]["mean"] == pytest.approx(finite[:, 1].mean())
    assert info["state"]["x"]["std"] == pytest.approx(data.states[:, 0].double().numpy().std())
    assert info["state"]["x"]["max"] == data.states[:, 0].max()
    assert info["coverage"] == data.attributes["coverage"]
    assert info["digest"] == data.digest and info["bytes"] == states.stat().st_size


def test_controls_are_those_known_for_piecewise(tmp_path):
    """Measured elsewhere, latched: dataset goals 73–75 and 80–88 %; random goals 3–10, 2 at the end."""
    collect(WORLD, tmp_path / "a.h5", episodes=500)
    rates = describe(tmp_path / "a.h5")["controls"]
    assert 70 <= rates["dataset goals, nothing"]["latched"] <= 80
    assert 78 <= rates["dataset goals, random"]["latched"] <= 90
    for name in ("nothing", "random"):
        assert 2 <= rates[f"random goals, {name}"]["latched"] <= 11
        assert 0.5 <= rates[f"random goals, {name}"]["terminal"] <= 4


def test_coverage_counts_cells():
    everywhere = WORLD.sample_goal(100_000, ("elsewhere",))
    assert Coverage(WORLD).add(everywhere).fraction() == 1.0
    assert Coverage(WORLD).add(everywhere[everywhere[:, 0] < 111.5]).fraction() == pytest.approx(0.5, abs=0.001)
    assert Coverage(WORLD).add(torch.tensor([[100.0, 100.0], [101.0, 100.0], [30.0, 30.0]])).fraction() == 2 / 400
    assert Coverage(WORLD).add(torch.tensor([[-50.0, 1000.0]])).fraction() == 1 / 400  # outside counts at the border


def test_data_of_an_unknown_world_have_statistics_only(tmp_path):
    write(tmp_path / "mine.h5", [{"state": np.ones((5, 2)), "action": np.zeros((4, 2))}])
    info = describe(tmp_path / "mine.h5")
    assert info["world"] is None and info["coverage"] is None and info["controls"] is None
    assert info["state"]["1"] == {"mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0}
    refused("nothing to draw", contact_sheet, read(tmp_path / "mine.h5"), tmp_path / "a.png")


def test_the_contact_sheet_shows_frames(states, tmp_path):
    (tmp_path / "a.png").write_bytes(b"mine")
    refused("was not made by lpwm", contact_sheet, read(states), tmp_path / "a.png")
    contact_sheet(read(states), tmp_path / "a.png", overwrite=True)
    contact_sheet(read(states), tmp_path / "a.png")  # its own it replaces
    sheet = np.asarray(Image.open(tmp_path / "a.png"))
    assert sheet.shape == (6 * 116 + 4, 8 * 116 + 4, 3)
    data = read(states)
    tile = Image.fromarray(WORLD.render(data.states[:1])[0].permute(1, 2, 0).numpy())
    tile = np.asarray(tile.resize((112, 112), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(sheet[4:116, 4:116], tile)
    refused(r"end the name of the picture in \.png", contact_sheet, data, tmp_path / "a.nonsense")
    refused("cannot write", contact_sheet, data, tmp_path / "nowhere" / "a.png")
