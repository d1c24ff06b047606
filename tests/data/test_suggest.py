"""What `lpwm data suggest` proposes, and a warning for each kind of recording that misleads."""

import json
import shlex

import numpy as np
import pytest

from lpwm import cli, worlds
from lpwm.core.errors import UserError
from lpwm.data import collect, from_arrays, read, write
from lpwm.data.suggest import suggest


def film(place, episodes=20, length=30, *, size=32, ground=255, actions=None, arrow=None, seed=0):
    """Episodes of a dark square that moves by its actions; `arrow(action)` is how long a bar is drawn in a corner."""
    g = np.random.default_rng(seed)
    frames, moves = [], []
    for _ in range(episodes):
        move = g.uniform(-1, 1, (length - 1, 2)) if actions is None else actions(g, length - 1)
        at = np.clip(
            place + np.concatenate((np.zeros((1, 2)), np.cumsum(3 * move, 0))) + g.uniform(-8, 8, 2), 4, size - 5
        )
        picture = np.full((length, size, size, 3), ground, np.uint8)
        for t, (x, y) in enumerate(at.round().astype(int)):
            picture[t, y - 2 : y + 3, x - 2 : x + 3] = (200, 30, 30)
            if arrow is not None and t:
                picture[t, 0:2, : arrow(move[t - 1])] = 0
        frames.append(picture)
        moves.append(move.astype(np.float32))
    states = [np.zeros((length, 1), np.float32)] * episodes
    return from_arrays(states, moves, frames)


def chosen(made):
    return {c.field.rsplit(".")[-1]: c.value for c in made.choices}


def test_for_piecewise_what_its_recipe_has(tmp_path, capsys):
    path = tmp_path / "p w.h5"
    collect(worlds.make("piecewise"), path, episodes=150, steps=40)
    made = suggest(read(path), str(path))
    assert made.warnings == ()
    assert chosen(made) == {
        "frameskip": 5, "image_size": 32, "patch": 16, "pixels": "white", "lam": 1.0, "steps": 2000,
    }  # fmt: skip
    assert cli.main(["data", "suggest", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "frames 5 steps apart differ by 0." in shown and max(map(len, shown.splitlines()[:6])) < 150
    assert cli.main(["data", "suggest", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["command"] == made.command and record["choices"]["data.frameskip"]["value"] == 5
    words = [*shlex.split(made.command)[1:], "--train.steps", "1", "--train.batch", "2", "--device", "cpu"]
    assert cli.main([*words, "--objective.rdmreg.slices", "8", "--out", str(tmp_path / "runs")]) == 0


def test_pixels_follow_the_background():
    middle = np.array([16.0, 16.0])
    assert chosen(suggest(film(middle), "a"))["pixels"] == "white"
    assert chosen(suggest(film(middle, ground=20), "a"))["pixels"] == "data"
    data = film(middle)
    noise = np.random.default_rng(0).integers(0, 256, data.pixels.shape, dtype=np.uint8)
    moving = from_arrays(
        [np.zeros((30, 1))] * 20, [np.zeros((29, 2)) + 0.1] * 20, list(noise.reshape(20, 30, 32, 32, 3))
    )
    assert chosen(suggest(moving, "a"))["pixels"] == "imagenet"


def bar(action):
    return round(8 * (action[0] + 1))


def stutter(g, n):
    """Mostly the same action."""
    moves = np.tile([[0.3, -0.2]], (n, 1))
    some = g.random(n) < 0.2
    moves[some] = g.uniform(-1, 1, (int(some.sum()), 2))
    return moves


MISLEADING = {
    "nothing moves": lambda: film(np.array([16.0, 16.0]), actions=lambda g, n: 1e-3 * g.normal(size=(n, 2))),
    "drawn into the picture": lambda: film(np.array([16.0, 16.0]), arrow=bar),
    "one action dominates": lambda: film(np.array([16.0, 16.0]), actions=stutter),
    "never vary": lambda: film(
        np.array([16.0, 16.0]), actions=lambda g, n: np.stack((g.uniform(-1, 1, n), np.ones(n)), 1)
    ),
    "too short": lambda: from_arrays(
        *zip(
            *[(np.zeros((n, 1)), np.random.default_rng(n).normal(size=(n - 1, 2))) for n in (3, 4, 3, 5, 3, 30)],
            strict=True,
        ),
        [np.random.default_rng(n).integers(0, 256, (n, 16, 16, 3), dtype=np.uint8) for n in (3, 4, 3, 5, 3, 30)],
    ),
    "only 520 clips": lambda: film(np.array([16.0, 16.0]), episodes=20, length=29),
}


@pytest.mark.parametrize("what", MISLEADING)
def test_what_misleads_is_told(what):
    made = suggest(MISLEADING[what](), "a.h5")
    assert any(what in warning for warning in made.warnings), made.warnings
    assert all("\n" not in warning for warning in made.warnings)


def test_a_sound_recording_is_not_warned_of():
    data = film(np.array([16.0, 16.0]), episodes=60)
    assert suggest(data, "a.h5").warnings == ()
    words = shlex.split(suggest(data, "my file.h5").command)
    assert words[:5] == ["lpwm", "train", "piecewise-2x2-small/lpwm", "--data.file", "my file.h5"]


def test_nothing_to_look_at(tmp_path):
    write(tmp_path / "a.h5", [{"state": np.zeros((5, 2)), "action": np.zeros((4, 2))}])
    with pytest.raises(UserError, match="nothing to look at"):
        suggest(read(tmp_path / "a.h5"), "a.h5")
