"""One live simulator of the Cube scene: what an action does, and what is recorded.

An action is (dx, dy, dz, dyaw, dgrip) in ±1, times (0.05 m, 0.05 m, 0.05 m, 0.3 rad, 1): how far the point between the
fingertips and the gripper should move from where they are. The target pose is kept in the workspace, pointing down;
inverse kinematics turns it into six joint angles, which servos follow for 25 physics steps of 2 ms: the control scheme
of ogbench's `cube-single-v0`, number for number. The effector's pose and the contacts lag the joint angles by 2 ms, as
ogbench reads them; they are therefore in the state and in the snapshots.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lpwm.worlds.cube.model import ARM, CUBE, DRIVER, Scene, import_mujoco, scene

SUBSTEPS = 25  # of 2 ms: 20 actions a second
SCALE = np.array([0.05, 0.05, 0.05, 0.3, 1.0])
WORKSPACE = np.array([[0.25, -0.35, 0.02], [0.6, 0.35, 0.35]])
HOME = np.array([-0.5, -0.5, 0.5, -0.5, -0.5, 0.0]) * math.pi
CLOSED = 0.8  # the driver joint's angle, radians
FIRM = 50.0  # newtons (and newton meters) on the right fingertip that count as a full grip

NQ, NV = 21, 20
EFFECTOR = slice(41, 44)
YAW, GRIPPER, GRIP, TOUCH = 44, 45, 46, 47
SIZE = 48  # qpos, qvel, effector, yaw, gripper, grip, touch

Vector = NDArray[np.float64]


def pointing_down(yaw: float) -> Vector:
    """The rotation of a gripper that points down and is turned by yaw: Rz(yaw) · diag(1, −1, −1)."""
    c, s = math.cos(yaw), math.sin(yaw)
    return np.array([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, -1.0]])


def wrap(angle: float) -> float:
    """The same angle in [−π, π]."""
    return math.atan2(math.sin(angle), math.cos(angle))


class Kinematics:
    """Joint angles that put the flange at a pose: damped Gauss–Newton, q += Jᵀ(JJᵀ + 1e-12 I)⁻¹ e. e is the pose error
    (meters, radians as a rotation vector). At most 20 rounds, none turning a joint by more than 45°, ending when both
    parts of e are below 1e-4. Where it starts decides which solution it finds."""

    ROUNDS, CLOSE, LARGEST, DAMPING = 20, 1e-4, math.pi / 4, 1e-12

    def __init__(self, parts: Scene) -> None:
        self._mujoco = mujoco = import_mujoco()
        self._model, self._tip = parts.arm, parts.tip
        self._data = mujoco.MjData(parts.arm)
        rest = mujoco.MjData(parts.model)
        mujoco.mj_forward(parts.model, rest)
        pinch, flange = (rest.site_xmat[i].reshape(3, 3) for i in (parts.pinch, parts.flange))
        self._turn = pinch.T @ flange  # the flange as the pinch point sees it
        self._shift = pinch.T @ (rest.site_xpos[parts.flange] - rest.site_xpos[parts.pinch])

    def solve(self, position: Vector, yaw: float, start: Vector) -> Vector:
        """Joint angles (6,) for the pinch point at `position`, pointing down, turned by `yaw`."""
        mujoco, model, data = self._mujoco, self._model, self._data
        rotation = pointing_down(yaw)
        goal = position + rotation @ self._shift
        goal_quat, quat, back, turn = np.empty((4, 4))
        mujoco.mju_mat2Quat(goal_quat, (rotation @ self._turn).ravel())
        jacobian, error = np.empty((6, model.nv)), np.empty(6)
        data.qpos[:] = start
        for _ in range(self.ROUNDS):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            error[:3] = goal - data.site_xpos[self._tip]
            mujoco.mju_mat2Quat(quat, data.site_xmat[self._tip])
            mujoco.mju_negQuat(back, quat)
            mujoco.mju_mulQuat(turn, goal_quat, back)
            mujoco.mju_quat2Vel(error[3:], turn, 1.0)
            if max(np.linalg.norm(error[:3]), np.linalg.norm(error[3:])) <= self.CLOSE:
                break
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._tip)
            change = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + self.DAMPING * np.eye(6), error)
            largest = np.abs(change).max()
            if largest > self.LARGEST:
                change *= self.LARGEST / largest
            mujoco.mj_integratePos(model, data.qpos, change, 1.0)
        return data.qpos.copy()


@functools.cache
def kinematics() -> Kinematics:
    """This process's: it remembers nothing from one call to the next."""
    return Kinematics(scene())


class CubeSim:
    """One simulator, from a state (S,) of any precision, which is approximate, or from a snapshot, which is exact. A
    state lacks MuJoCo's warm start for the contact forces."""

    def __init__(self, start: Sequence[float] | NDArray[np.float64]) -> None:
        self._mujoco = mujoco = import_mujoco()
        self._scene = scene()
        self._model = self._scene.model
        self._kinematics = kinematics()
        self._data = mujoco.MjData(self._model)
        self._spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        self._stored = mujoco.mj_stateSize(self._model, self._spec)
        start = np.asarray(start, dtype=np.float64)
        if len(start) == self._stored + 7:
            self.restore(start)
        else:
            assert len(start) == SIZE, f"a Cube state has {SIZE} numbers, not {len(start)}"
            self.place(start[:NQ], start[NQ : NQ + NV])

    def place(self, qpos: Vector, qvel: Vector | None = None) -> None:
        """Everything as after a reset, then these joint angles and velocities (at rest by default)."""
        self._mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[:] = qpos
        if qvel is not None:
            self._data.qvel[:] = qvel
        self._mujoco.mj_forward(self._model, self._data)
        self._look()

    def _look(self) -> None:
        """Read what is recorded: the effector, and who touches whom."""
        data, parts = self._data, self._scene
        self._mujoco.mj_rnePostConstraint(self._model, data)
        self._effector = data.site_xpos[parts.pinch].copy()
        turn = data.site_xmat[parts.pinch]
        self._yaw = math.atan2(turn[3], turn[0])
        self._grip = min(float(np.linalg.norm(data.cfrc_ext[parts.pad])) / FIRM, 1.0)
        pairs = data.contact.geom
        with_cube = (pairs == parts.cube).any(axis=1)
        self._touch = float(parts.hand[pairs[with_cube]].any())

    @property
    def state(self) -> Vector:
        """(S,): qpos, qvel, effector xyz and yaw, gripper (0 open … 1 closed), grip (0 … 1), touch (0 or 1)."""
        data = self._data
        gripper = min(max(float(data.qpos[DRIVER]) / CLOSED, 0.0), 1.0)
        seen = [*self._effector, self._yaw, gripper, self._grip, self._touch]
        return np.concatenate((data.qpos, data.qvel, seen))

    @property
    def cube(self) -> Vector:
        """The cube's position and quaternion (7,)."""
        return self._data.qpos[CUBE].copy()

    def step(self, action: Sequence[float] | Vector) -> None:
        """One action (5,), clipped to ±1."""
        data = self._data
        move = np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0) * SCALE
        position = np.clip(self._effector + move[:3], *WORKSPACE)
        yaw = wrap(self._yaw + move[3])
        gripper = min(max(float(data.qpos[DRIVER]) / CLOSED, 0.0), 1.0) + move[4]
        data.ctrl[ARM] = self._kinematics.solve(position, yaw, data.qpos[ARM])
        data.ctrl[6] = 255.0 * min(max(gripper, 0.0), 1.0)
        self._mujoco.mj_step(self._model, data, nstep=SUBSTEPS)
        self._look()

    def snapshot(self) -> Vector:
        """MuJoCo's integration state and the seven numbers read after the last step (gripper excepted)."""
        out = np.empty(self._stored + 7)
        self._mujoco.mj_getState(self._model, self._data, out[: self._stored], self._spec)
        out[self._stored :] = [*self._effector, self._yaw, self._grip, self._touch, 0.0]
        return out

    def restore(self, snapshot: Vector) -> None:
        self._mujoco.mj_setState(self._model, self._data, snapshot[: self._stored], self._spec)
        *effector, self._yaw, self._grip, self._touch, _ = snapshot[self._stored :].tolist()
        self._effector = np.array(effector)

    def branch(self, actions: NDArray[np.float64]) -> NDArray[np.float32]:
        """(M, T, A) -> (M, T, S): where each sequence would lead from here; this simulator does not move."""
        here = self.snapshot()
        out = np.empty((*actions.shape[:2], SIZE), dtype=np.float32)
        for m, sequence in enumerate(actions):
            self.restore(here)
            for t, action in enumerate(sequence):
                self.step(action)
                out[m, t] = self.state
        self.restore(here)
        return out


def resting(effector: Vector, yaw: float, cube: Vector, cube_yaw: float) -> Vector:
    """qpos (21,) of a scene at rest: the open gripper at a pose, the cube flat on the table at (x, y)."""
    qpos: Vector = scene().model.qpos0.copy()
    qpos[ARM] = kinematics().solve(effector, yaw, HOME)
    qpos[CUBE] = [cube[0], cube[1], 0.02, math.cos(cube_yaw / 2), 0.0, 0.0, math.sin(cube_yaw / 2)]
    return qpos
