"""Piecewise and TwoRoom against frames and transitions recorded from stable-worldmodel (tests/golden)."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from lpwm.worlds import TensorWorld, make

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = [
    (name, label)
    for name in ("piecewise", "two_room")
    for label in {"piecewise": ("2_0", "2_1", "3_0", "3_1"), "two_room": ("49_14_10", "60-170_10_21")}[name]
]


def world_of(name: str, label: str) -> TensorWorld:
    if name == "piecewise":
        g, visible = map(int, label.split("_"))
        return make(name, g=g, visible=bool(visible))
    doors, half, thickness = label.split("_")
    return make(name, doors=[int(d) for d in doors.split("-")], door_half=int(half), thickness=int(thickness))


def golden(name: str, label: str, column: str) -> torch.Tensor:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return torch.from_numpy(file[f"{label}_{column}"])


def frames(name: str, label: str) -> torch.Tensor:
    raw = lzma.decompress(golden(name, label, "frame").numpy().tobytes())
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3, 224, 224)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_transitions_bit_equal(name: str, label: str) -> None:
    start, action, end = (golden(name, label, c) for c in ("start", "action", "end"))
    ours = world_of(name, label).step(start, action)
    assert torch.equal(ours, end)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_frames_bit_equal(name: str, label: str) -> None:
    world, seen, theirs = world_of(name, label), golden(name, label, "seen"), frames(name, label)
    ours = world.render(seen)
    assert torch.equal(ours, theirs)
    # Drawn alone or in another batch, a frame is the same.
    assert torch.equal(world.render(seen[7:8]), theirs[7:8])


def test_the_golden_files_hold_what_they_should() -> None:
    for name in ("piecewise", "two_room"):
        labels = [label for world, label in CASES if world == name]
        assert sum(len(golden(name, label, "start")) for label in labels) == 1000
        assert sum(len(golden(name, label, "seen")) for label in labels) == 200
    # The wall stops some dots, doors let others through, and borders clamp: the cases are all in the sample.
    start, end = golden("two_room", "49_14_10", "start"), golden("two_room", "49_14_10", "end")
    stopped = ((end[:, 0] == 99.5) | (end[:, 0] == 124.5)).sum()
    through = ((end[:, 0] > 100) & (end[:, 0] < 124)).sum()
    assert stopped > 20 and through > 10 and (end == 21.0).any() and (end == 203.0).any()
    assert not torch.equal(start, end)


@pytest.mark.parametrize(("name", "label"), CASES)
@pytest.mark.parametrize("size", [64, 96, 112])
def test_other_sizes_follow_the_native_frame(name: str, label: str, size: int) -> None:
    """A smaller frame is the area average of the recorded one: a level or two on open ground, and up to a
    dozen where the dot's flank falls on a pixel that is part wall."""
    theirs = frames(name, label)[:20].to(torch.float64)
    edges = np.linspace(0, 224, size + 1)
    weight = torch.zeros(size, 224, dtype=torch.float64)
    for i in range(size):
        for j in range(224):
            weight[i, j] = max(0.0, min(edges[i + 1], j + 1) - max(edges[i], j)) * size / 224
    expected = weight @ theirs @ weight.T
    ours = world_of(name, label).render(golden(name, label, "seen")[:20], size).to(torch.float64)
    error = (ours - expected).abs()
    assert error.max() < 12 and error.mean() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "label"), CASES)
def test_on_a_gpu_within_one_level(name: str, label: str) -> None:
    world = world_of(name, label)
    start, action, end = (golden(name, label, c) for c in ("start", "action", "end"))
    assert torch.allclose(world.step(start.cuda(), action.cuda()).cpu(), end, atol=1e-4)
    difference = world.render(golden(name, label, "seen").cuda()).cpu().int() - frames(name, label).int()
    assert difference.abs().max() <= 1


def test_the_edges_of_a_door() -> None:
    """Half a door is 14 and the tolerance 1.75: y = 33.25 and 64.75 pass, the float32 numbers beyond do not."""
    world = make("two_room")
    edge = torch.tensor([33.25, 64.75])
    beyond = torch.nextafter(edge, torch.tensor([-torch.inf, torch.inf]))
    for y, x in ((edge, 103.0), (beyond, 99.5)):
        start = torch.stack((torch.full_like(y, 98.0), y), dim=1)
        assert world.step(start, torch.tensor([[1.0, 0.0]])).tolist() == [[x, v] for v in y.tolist()]
