"""Makes lpwm/worlds/assets/cube.npz.xz from the package ogbench, with lpwm[cube-build].

The descriptions and the meshes are taken as they are: points in single precision, as MuJoCo reads them, vertices and
faces in their own order, so that what MuJoCo compiles is the same (tests/golden/make_cube.py records ogbench's own).
Meshes given as .obj are renamed .msh, MuJoCo's binary form; they are only looked at, never touched.
"""

from __future__ import annotations

import io
import lzma
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lpwm.worlds
from lpwm.core.errors import UserError


def _obj(data: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vertices as MuJoCo reads them (one per distinct point and normal of a corner) and triangles."""
    points: list[list[float]] = []
    corners: dict[tuple[int, int], int] = {}
    faces: list[tuple[int, int, int]] = []
    for line in data.decode().splitlines():
        kind, *rest = line.split() or [""]
        if kind == "v":
            points.append([float(x) for x in rest[:3]])
        elif kind == "f":
            face = []
            for corner in rest:
                at = tuple(int(x) if x else 0 for x in corner.split("/"))
                face.append(corners.setdefault((at[0], at[-1]), len(corners)))
            faces += [(face[0], face[i], face[i + 1]) for i in range(1, len(face) - 1)]
    where = np.array([at[0] - 1 for at in corners])
    return np.array(points, np.float32)[where], np.array(faces)


def _stl(data: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    (count,) = struct.unpack_from("<I", data, 80)
    record = np.dtype([("normal", "<f4", 3), ("points", "<f4", (3, 3)), ("spare", "<u2")])
    points = np.frombuffer(data, record, count, 84)["points"].reshape(-1, 3)
    return points, np.arange(len(points)).reshape(-1, 3)


def _small(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.uint16 if array.max() < 1 << 16 else np.uint32)


def build() -> dict[str, NDArray[Any]]:
    """The arrays of the asset, by name; see `lpwm.worlds.cube.model`."""
    try:
        import gymnasium
        import ogbench.manipspace  # registers its environments
        from dm_control import mjcf
        from ogbench.manipspace import mjcf_utils
    except ImportError as error:
        raise UserError(f"building the Cube scene needs ogbench ({error}): pip install 'lpwm[cube-build]'.") from error
    env: Any = gymnasium.make("cube-single-v0", mode="data_collection", width=224, height=224).unwrapped
    env.reset(seed=0)
    scene, files = mjcf_utils.to_string(env.mjcf_model), mjcf_utils.get_assets(env.mjcf_model)
    out: dict[str, NDArray[Any]] = {}
    for name, data in sorted(files.items()):
        points, faces = _obj(data) if name.endswith(".obj") else _stl(data)
        key = name.replace(".obj", ".msh")
        scene = scene.replace(f'file="{name}"', f'file="{key}"')
        distinct, which = np.unique(points, axis=0, return_inverse=True)
        if name.endswith(".obj"):
            out[f"{key}:which"] = _small(which.ravel())
            out[f"{key}:faces"] = _small(faces)
        else:
            out[f"{key}:faces"] = _small(which.ravel()[faces])
        out[f"{key}:points"] = distinct
    folder = Path(ogbench.manipspace.__file__).parent / "descriptions" / "universal_robots_ur5e"
    arm = mjcf.from_path((folder / "ur5e.xml").as_posix(), escape_separators=True)
    for kind in ("geom", "mesh", "material", "light"):  # inverse kinematics needs its joints alone
        for element in arm.find_all(kind):
            element.remove()
    out["scene"] = np.array(scene)
    out["arm"] = np.array(arm.to_xml_string(precision=17, zero_threshold=0.0))
    return out


def main() -> None:
    out = Path(lpwm.worlds.__file__).parent / "assets" / "cube.npz.xz"
    buffer = io.BytesIO()
    np.savez(buffer, **build())  # type: ignore[arg-type]
    out.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(f"{out}: {out.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main()
