"""Worlds as vectors: what a page or a figure draws around a trajectory, in pixels of the world's own frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.interpret.results import WorldInfo
from lpwm.worlds import wall as wall_world
from lpwm.worlds.piecewise import BORDER, FRAME, LINE, RADIUS, Piecewise
from lpwm.worlds.two_room import CENTER, TwoRoom
from lpwm.worlds.wall import Wall

Numbers = list[list[float]]


@dataclass(frozen=True)
class Scene:
    name: str
    frame: float
    within: float  # success radius
    dot: float
    walls: Numbers  # x, y, width, height
    lines: Numbers  # x, y, x, y
    pushes: Numbers  # x, y, dx, dy


def _border() -> Numbers:
    side, low, high = FRAME - 2 * (BORDER - LINE), BORDER - LINE, FRAME - BORDER
    return [[low, low, side, LINE], [low, high, side, LINE], [low, low, LINE, side], [high, low, LINE, side]]


def _piecewise(world: Piecewise) -> dict[str, Any]:
    inside = FRAME - 2 * BORDER
    edges = [BORDER + k * inside / world.g for k in range(1, world.g)]
    lines = [[e, BORDER, e, FRAME - BORDER] for e in edges] + [[BORDER, e, FRAME - BORDER, e] for e in edges]
    centers = [BORDER + (k + 0.5) * inside / world.g for k in range(world.g)]
    at = torch.tensor([[x, y] for y in centers for x in centers])
    pushes = torch.cat((at, world.bias(at)), 1).tolist()
    return {"walls": _border(), "lines": lines, "pushes": [[round(v, 3) for v in p] for p in pushes], "dot": RADIUS}


def _two_room(world: TwoRoom) -> dict[str, Any]:
    left, edges = CENTER - world.thickness / 2, [float(BORDER)]
    for center in sorted(world.doors):
        edges += [center - world.door_half, center + world.door_half]
    edges.append(float(FRAME - BORDER))
    pieces = [[left, a, float(world.thickness), b - a] for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    return {"walls": _border() + pieces, "dot": RADIUS}


def _wall(world: Wall) -> dict[str, Any]:
    (left, right), (top, bottom) = world.faces, world.jambs
    low, high = wall_world.LOW, wall_world.HIGH
    side = high - low
    border = [
        [low - 1, low - 1, side + 2, 1],
        [low - 1, high, side + 2, 1],
        [low - 1, low, 1, side],
        [high, low, 1, side],
    ]
    pieces = [[left, low, right - left, top - low], [left, bottom, right - left, high - bottom]]
    return {"walls": border + pieces, "dot": wall_world.DOT}


DRAWN: dict[type, Callable[[Any], dict[str, Any]]] = {Piecewise: _piecewise, TwoRoom: _two_room, Wall: _wall}
NAMES = {"two_room": "TwoRoom", "wall": "Wall", "pusht": "PushT", "cube": "Cube"}


def scene(world: WorldInfo) -> Scene | None:
    """None where it is not known."""
    try:
        made = worlds.make(world.name, **world.options)
    except UserError:
        return None
    spec = made.spec
    if spec.name == "cube":  # meters, seen at a slant: no path lies on its frames
        return None
    drawn: dict[str, Any] = {"walls": [], "lines": [], "pushes": [], "dot": spec.frame / 40}
    drawn |= DRAWN.get(type(made), lambda _: {})(made)
    return Scene(spec.name, spec.frame, spec.success_within, **drawn)


def title(world: WorldInfo) -> str:
    """`Piecewise 2×2, zones invisible`; other worlds by their names."""
    if world.name == "piecewise":
        g, visible = world.options.get("g", 2), world.options.get("visible")
        return f"Piecewise {g}×{g}, zones {'visible' if visible else 'invisible'}"
    return NAMES.get(world.name, world.name)
