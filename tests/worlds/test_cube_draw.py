"""Drawing Cube: frames beside ogbench's, the choice of a context, and what is said where there is none.

Where CI is set a machine that cannot draw is a failure; elsewhere the tests that draw are skipped.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from lpwm.cli import doctor
from lpwm.core.errors import UserError
from lpwm.worlds.cube import draw as cube_draw
from lpwm.worlds.cube import gl as cube_gl
from lpwm.worlds.cube.draw import backend, draw
from lpwm.worlds.cube.sim import SIZE
from lpwm.worlds.cube.world import Cube

GOLDEN = Path(__file__).parents[1] / "golden" / "cube.npz"


@pytest.fixture(scope="module")
def drawing() -> str:
    try:
        cube_gl.import_mujoco()
        return backend()
    except UserError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must draw Cube: {error}")
        pytest.skip(str(error))


def test_frames_are_close_to_ogbench_s(drawing: str) -> None:
    with np.load(GOLDEN) as golden:
        poses, theirs = golden["poses"], golden["frames"].astype(int)
    ours = draw(np.pad(poses, ((0, 0), (0, SIZE - 21))), 224).astype(int)
    assert ours.shape == theirs.shape == (4, 224, 224, 3)
    apart = np.abs(ours - theirs)
    assert apart.mean() < 0.5  # of 255
    assert (apart.max(-1) > 16).mean() < 0.01  # edges, and shadows of a coarser map
    assert np.abs(theirs[0] - theirs[1]).mean() > 5 * apart.mean()


def test_what_is_seen_is_a_function_of_the_joint_positions(drawing: str) -> None:
    world = Cube()
    state = world.sample_state(3, (0,))
    frames = world.render(state, 96)
    assert frames.shape == (3, 3, 96, 96) and frames.dtype == torch.uint8
    other = state.clone()
    other[:, 21:] = 0.5  # velocities, and what was read off
    assert torch.equal(world.renderer(96)(other), frames)
    assert torch.equal(world.render(state[[2, 0]], 96), frames[[2, 0]])
    moved = state.clone()
    moved[:, 15] += 0.05
    assert not torch.equal(world.render(moved, 96), frames)
    assert world.render(state[:1]).shape == (1, 3, 224, 224)


def test_the_cube_is_where_the_camera_should_see_it(drawing: str) -> None:
    """The pinhole camera by hand: at (1.287, 0, 0.509), 45° high, its axes from ogbench's description."""
    state = Cube().sample_state(1, (0,)).repeat(2, 1)
    state[:, :6] = torch.tensor([0.0, -1.5, 1.0, 0.0, 0.0, 0.0])  # the arm out of the way
    state[0, 14:17], state[1, 14:17] = torch.tensor([0.5, 0.2, 0.02]), torch.tensor([0.35, -0.2, 0.02])
    frames = Cube().render(state).float()
    x_axis, y_axis = np.array([0.0, 1.0, 0.0]), np.array([-0.342, 0.0, 0.940])
    y_axis /= np.linalg.norm(y_axis)
    for frame, at in zip(frames, state[:, 14:17].numpy(), strict=True):
        red = frame[0] - frame[1:].amax(0) > 60
        rows, columns = red.nonzero(as_tuple=True)
        assert len(rows) > 20
        way = at - np.array([1.287, 0.0, 0.509])
        depth = -way @ np.cross(x_axis, y_axis)
        focal = 112 / np.tan(np.pi / 8)
        column, row = 112 + focal * (way @ x_axis) / depth, 112 - focal * (way @ y_axis) / depth
        assert abs(float(columns.float().mean()) - column) < 3 and abs(float(rows.float().mean()) - row) < 3


def test_threads_take_turns(drawing: str) -> None:
    state = Cube().sample_state(1, (0,))
    expected, got = Cube().render(state, 64), []
    thread = threading.Thread(target=lambda: got.append(Cube().render(state, 64)))
    thread.start()
    thread.join()
    assert torch.equal(got[0], expected) and torch.equal(Cube().render(state, 64), expected)


@pytest.mark.soak
def test_many_processes_draw_what_one_draws(drawing: str) -> None:
    state = Cube().sample_state(40, (6,))
    together = Cube().render(state, 64)
    alone = torch.cat([Cube().render(part, 64) for part in state.split(8)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize(("pace", "pooled"), [(0.001, False), (0.2, True)])
def test_workers_are_woken_for_slow_drawing_alone(monkeypatch: pytest.MonkeyPatch, pace: float, pooled: bool) -> None:
    calls: list[str] = []

    class Painted:
        def __init__(self) -> None:
            self.pace = float("inf")

        def paint(self, qpos: np.ndarray, size: int) -> np.ndarray:
            calls.append("here")
            self.pace = pace
            return np.zeros((len(qpos), size, size, 3), np.uint8)

    class Pool:
        def map(self, work: object, parts: list[np.ndarray]) -> list[np.ndarray]:
            calls.append("pool")
            return [np.zeros((len(part), 8, 8, 3), np.uint8) for part in parts]

    one = Painted()
    monkeypatch.setattr(cube_draw, "painter", lambda: one)
    monkeypatch.setattr(cube_draw, "_workers", Pool)
    monkeypatch.setattr(cube_draw, "cores", lambda: 4)
    assert draw(np.zeros((50, SIZE)), 8).shape == (50, 8, 8, 3)
    assert ("pool" in calls) is pooled and calls[:2] == ["here", "here"]
    before = len(calls)
    draw(np.zeros((50, SIZE)), 8)
    assert len(calls) == before + 1  # the pace is known by now


def test_a_size_or_a_wish_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not 4"):
        draw(np.zeros((1, SIZE)), 4)
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(UserError, match="egl or osmesa"):
        cube_gl.open_context()


def test_nothing_to_draw_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)

    def absent(*names: str) -> None:
        raise cube_gl.Missing(f"no {names[0]}")

    monkeypatch.setattr(cube_gl, "_library", absent)
    with pytest.raises(UserError, match=r"no libEGL.*no libOSMesa.*apt-get install libegl1") as found:
        cube_gl.open_context()
    assert str(found.value).count("\n") == 0


def test_osmesa_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """EGL that does not work is passed over; a wish for it is not."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)

    class Broken:
        def __init__(self) -> None:
            raise cube_gl.Missing("EGL finds 0 devices and none of them works")

    class Works(Broken):
        name = "osmesa"

        def __init__(self) -> None:
            pass

        def make_current(self) -> None:
            pass

    monkeypatch.setattr(cube_gl, "CONTEXTS", {"egl": Broken, "osmesa": Works})
    assert cube_gl.open_context().name == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(UserError, match="0 devices"):
        cube_gl.open_context()


def test_without_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(UserError, match=r"pip install 'lpwm\[cube\]'"):
        cube_gl.import_mujoco()
    assert os.environ["MUJOCO_GL"] == "egl"


def test_the_doctor_says_how_cube_is_drawn(drawing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {f.what: f for f in doctor.drawing()}
    assert found["cube drawing"].ok and drawing in found["cube drawing"].detail

    def absent() -> str:
        raise UserError("drawing Cube needs EGL or OSMesa (no libEGL.so.1): install one of them.")

    monkeypatch.setattr("lpwm.worlds.cube.draw.backend", absent)
    (finding,) = doctor.drawing()
    assert not finding.ok and "libegl1" in finding.remedy and not finding.needed
