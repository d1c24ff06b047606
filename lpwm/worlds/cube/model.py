"""The scene of the single cube: a UR5e arm with a Robotiq 2F-85 gripper, a table, four walls, a cube of 4 cm.

`assets/cube.npz.xz` holds what tests/golden/make_cube_asset.py took from `ogbench`: two MuJoCo descriptions (the scene,
and the arm alone for inverse kinematics) and the meshes: distinct points, which of them each vertex is, and faces.
"""

import functools
import io
import lzma
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError

PHYSICS_STEP = 0.002  # seconds
SHADOW = 1024  # side of the shadow map; MuJoCo's 4096 costs half as much again without a GPU and looks the same

# The position gains ogbench gives the arm's six servos in place of its description's own.
GAIN = (4500.0, 4500.0, 4500.0, 2000.0, 2000.0, 500.0)
CUBE_RGB = (0.96, 0.26, 0.33)

ARM = slice(0, 6)  # in qpos, qvel and ctrl
DRIVER = 6  # the gripper's right driver joint, in qpos: 0 open, 0.8 closed
CUBE = slice(14, 21)  # in qpos: position, quaternion (w, x, y, z)
HAND = "ur5e/robotiq/"
GL_VARIABLE = "MUJOCO_GL"


@dataclass(frozen=True)
class Scene:
    """The compiled scene and the indices of what is recorded."""

    model: Any  # mujoco.MjModel
    arm: Any  # mujoco.MjModel of the arm alone
    pinch: int  # site between the fingertips
    flange: int  # site the gripper hangs on
    tip: int  # the flange in the arm alone
    pad: int  # body of the right fingertip
    cube: int  # geom
    hand: NDArray[np.bool_]  # (geoms,) which of them are the gripper's


def import_mujoco() -> Any:
    """The package `mujoco`, imported without a context of its own; or one sentence."""
    before = os.environ.get(GL_VARIABLE)
    os.environ[GL_VARIABLE] = "disabled"
    try:
        import mujoco
    except ImportError as error:
        raise UserError(f"the Cube world needs mujoco ({error}): pip install 'lpwm[cube]'.") from error
    finally:
        if before is None:
            del os.environ[GL_VARIABLE]
        else:
            os.environ[GL_VARIABLE] = before
    return mujoco


def _stl(points: NDArray[Any], faces: NDArray[Any]) -> bytes:
    record = np.zeros(len(faces), np.dtype([("normal", "<f4", 3), ("points", "<f4", (3, 3)), ("spare", "<u2")]))
    record["points"] = points[faces]
    return bytes(80) + struct.pack("<I", len(faces)) + record.tobytes()


def _msh(points: NDArray[Any], faces: NDArray[Any]) -> bytes:
    head = struct.pack("<4i", len(points), 0, 0, len(faces))
    return head + points.astype("<f4").tobytes() + faces.astype("<i4").tobytes()


def read_asset() -> dict[str, NDArray[Any]]:
    packed = (Path(__file__).parents[1] / "assets" / "cube.npz.xz").read_bytes()
    with np.load(io.BytesIO(lzma.decompress(packed))) as arrays:
        return dict(arrays)


def mesh_files(asset: dict[str, NDArray[Any]]) -> dict[str, bytes]:
    """The meshes as the files that the scene's description names: .stl and .msh."""
    files = {}
    for key in asset:
        if key.endswith(":faces"):
            name = key.removesuffix(":faces")
            points = asset[f"{name}:points"]
            if f"{name}:which" in asset:
                points = points[asset[f"{name}:which"]]
            write = _stl if name.endswith(".stl") else _msh
            files[name] = write(points, asset[key].astype(np.int64))
    return files


@functools.cache
def scene() -> Scene:
    """The compiled scene of this process. Nothing may change it afterwards but the drawing of a size."""
    mujoco = import_mujoco()
    asset = read_asset()
    model = mujoco.MjModel.from_xml_string(asset["scene"].item(), assets=mesh_files(asset))
    arm = mujoco.MjModel.from_xml_string(asset["arm"].item())
    model.opt.timestep = PHYSICS_STEP
    model.actuator_gainprm[ARM, 0] = GAIN
    model.actuator_biasprm[ARM, 1] = [-g for g in GAIN]
    cube = model.geom("object_0").id
    model.geom_rgba[cube, :3] = CUBE_RGB
    # The target is no part of the state, and what is seen is a function of the state: it stays out of sight.
    model.geom_rgba[model.geom("target_object_0").id, 3] = 0.0
    model.vis.quality.shadowsize = SHADOW
    assert (model.nq, model.nv, model.nu, model.joint(f"{HAND}right_driver_joint").qposadr[0]) == (21, 20, 7, DRIVER)
    return Scene(
        model=model,
        arm=arm,
        pinch=model.site(f"{HAND}pinch").id,
        flange=model.site("ur5e/attachment_site").id,
        tip=arm.site("attachment_site").id,
        pad=model.body(f"{HAND}right_pad").id,
        cube=cube,
        hand=np.array([model.body(b).name.startswith(HAND) for b in model.geom_bodyid]),
    )
