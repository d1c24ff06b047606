"""Cube: a robot arm, a gripper and one cube on a table; the single-cube scene of ogbench.

State (48): MuJoCo's joint positions (21: arm 6, gripper 8, cube 3 + 4) and velocities (20); where the point between
the fingertips is (meters) and its yaw; the gripper (0 open … 1 closed); grip, the force on the right fingertip (50 and
more is 1); touch, whether the gripper and the cube are in contact. What is seen is a function of the joint positions.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpwm.worlds.base import Key, Live, Renderer, WorldSpec, row_keys, uniform_at
from lpwm.worlds.cube.draw import draw
from lpwm.worlds.cube.sim import EFFECTOR, GRIPPER, SIZE, TOUCH, YAW, CubeSim, resting
from lpwm.worlds.pool import open_live

FRAME, EPISODE, SUCCESS = 224, 200, 0.04
# Where starts and goals fall, meters: the effector in the air, the cube on the table.
ARM_LOW, ARM_HIGH = (0.25, -0.35, 0.20), (0.6, 0.35, 0.35)
CUBE_LOW, CUBE_HIGH = (0.3, -0.3), (0.55, 0.3)
CUBE_AT = slice(14, 17)
CUBE_QUAT = slice(17, 21)

_JOINTS = (
    *(f"arm_{i}" for i in range(6)),
    *(f"{side}_{part}" for side in ("right", "left") for part in ("driver", "coupler", "spring", "follower")),
)
_NAMES = (
    *_JOINTS,
    *("cube_x", "cube_y", "cube_z", "cube_qw", "cube_qx", "cube_qy", "cube_qz"),
    *(f"{name}_vel" for name in _JOINTS),
    *("cube_vx", "cube_vy", "cube_vz", "cube_wx", "cube_wy", "cube_wz"),
    *("effector_x", "effector_y", "effector_z", "effector_yaw", "gripper", "grip", "touch"),
)
_FAST = 1000.0  # no joint and no cube is faster (radians or meters a second)


@dataclass(frozen=True)
class Cube:
    """The single cube; no options."""

    @functools.cached_property
    def spec(self) -> WorldSpec:
        joints, fast, quaternion = (2 * math.pi,) * 14, (_FAST,) * 20, (1.001,) * 4
        low, high = (-0.5, -1.0, -0.5), (1.5, 1.0, 2.0)  # of the cube and of the effector
        return WorldSpec(
            name="cube",
            options={},
            state_names=_NAMES,
            action_names=("dx", "dy", "dz", "dyaw", "dgripper"),
            action_low=(-1.0,) * 5,
            action_high=(1.0,) * 5,
            frame=FRAME,
            episode=EPISODE,
            proprio=(*range(EFFECTOR.start, EFFECTOR.stop), YAW, GRIPPER),
            factors=("effector_x", "effector_y", "effector_z", "cube_x", "cube_y", "cube_z", "gripper", "contact"),
            policy="expert",
            state_low=(*_minus(joints), *low, *_minus((*quaternion, *fast)), *low, -math.pi, 0.0, 0.0, 0.0),
            state_high=(*joints, *high, *quaternion, *fast, *high, math.pi, 1.0, 1.0, 1.0),
            success_within=SUCCESS,
        )

    def sample_state(self, n: int, key: Key, start: int = 0) -> Tensor:
        """Scenes at rest: the effector anywhere in the air, any yaw, open; the cube anywhere on the table, any yaw."""
        return _resting(row_keys((*key, "state"), n, start))

    def sample_goal(self, n: int, key: Key, start: int = 0) -> Tensor:
        return _resting(row_keys((*key, "goal"), n, start))

    def open(self, states: Any, workers: int | None = 1) -> Live:
        return open_live(CubeSim, states, workers)

    def renderer(self, size: int | None = None, device: torch.device | str = "cpu") -> Renderer:
        side, where = FRAME if size is None else size, torch.device(device)

        def frames(state: Tensor) -> Tensor:
            drawn = torch.from_numpy(draw(state.detach().cpu().numpy(), side))
            return drawn.permute(0, 3, 1, 2).to(where).contiguous()

        return frames

    def render(self, state: Tensor, size: int | None = None) -> Tensor:
        return self.renderer(size, state.device)(state)

    def distance(self, state: Tensor, goal: Tensor) -> Tensor:
        """Between the cubes' centers, meters."""
        return torch.linalg.vector_norm(state[..., CUBE_AT] - goal[..., CUBE_AT], dim=-1)

    def success(self, state: Tensor, goal: Tensor) -> Tensor:
        return self.distance(state, goal) <= SUCCESS

    def goal_groups(self, start: Tensor, goal: Tensor) -> dict[str, Tensor]:
        """Goals to be reported apart: where the cube is there already, doing nothing succeeds."""
        there = self.success(start, goal)
        return {"cube must move": ~there, "cube is there": there}

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        """contact: the gripper touches the cube. Positions in meters."""
        named = {f"effector_{a}": state[..., EFFECTOR.start + i] for i, a in enumerate("xyz")}
        named |= {f"cube_{a}": state[..., CUBE_AT.start + i] for i, a in enumerate("xyz")}
        return named | {"gripper": state[..., GRIPPER], "contact": state[..., TOUCH]}


def _minus(bounds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-x for x in bounds)


def _resting(keys: Tensor) -> Tensor:
    """A scene at rest per key: (n,) -> (n, S) float32."""
    sim = CubeSim(np.zeros(SIZE))
    out = np.empty((len(keys), SIZE), np.float32)
    low = np.array([*ARM_LOW, -math.pi, *CUBE_LOW, 0.0])
    high = np.array([*ARM_HIGH, math.pi, *CUBE_HIGH, 2 * math.pi])
    for row, u in enumerate(uniform_at(keys, 7).numpy().astype(np.float64)):
        x = low + (high - low) * u
        sim.place(resting(x[:3], float(x[3]), x[4:6], float(x[6])))
        out[row] = sim.state
    return torch.from_numpy(out)


def cube_yaw(state: Tensor) -> Tensor:
    """(…, S) -> (…): the cube's turn about the vertical."""
    w, x, y, z = state[..., CUBE_QUAT].unbind(-1)
    return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
