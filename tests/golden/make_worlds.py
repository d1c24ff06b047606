"""Record what stable-worldmodel's Piecewise and TwoRoom do: transitions and frames, for tests/worlds.

Needs stable-worldmodel 0.1.1 and what it imports (the tests need none of it):

    PYTHON_WITH_IT tests/golden/make_worlds.py

Each file holds, per variant: `start`, `action`, `end` (1,000 transitions in all), `seen` (states) and `frame`
(their frames: 200 in all, as one lossless xz stream of uint8, since most of a frame is the same white).
"""

from __future__ import annotations

import lzma
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")

from stable_worldmodel.envs.piecewise.piecewise_env import PiecewiseEnv  # noqa: E402
from stable_worldmodel.envs.two_room.env import TwoRoomEnv  # noqa: E402

HERE = Path(__file__).parent


def piecewise(g: int, visible: bool) -> Any:
    env = PiecewiseEnv(grid_n=g)
    env.reset(seed=0)
    env.variation_space["rendering"]["render_zones"].set_value(int(visible))
    return env


def two_room(doors: tuple[int, ...], door_half: int, thickness: int) -> Any:
    env = TwoRoomEnv()
    env.reset(seed=0)
    space = env.variation_space
    space["wall"]["thickness"].set_value(thickness)
    space["door"]["number"].set_value(len(doors))
    space["door"]["position"].set_value(np.array([*doors, 49, 49][:3]))
    space["door"]["size"].set_value(np.array([door_half] * 3))
    env._cache_params()
    return env


def neighbors(values: list[float]) -> np.ndarray:
    """Each value with the float32 numbers just below and above it."""
    x = np.array(values, dtype=np.float32)
    return np.concatenate([np.nextafter(x, np.float32(-1)), x, np.nextafter(x, np.float32(1e9))])


def record(env: Any, rng: np.random.Generator, steps: int, frames: int, special: list[float]) -> dict[str, Any]:
    """Half the positions uniform, half with one or both coordinates next to a border, an edge or a door."""
    edges = neighbors([14.0, 21.0, 26.0, 198.0, 203.0, 209.0, *special])

    def positions(n: int) -> np.ndarray:
        p = rng.uniform(14, 209, (n, 2)).astype(np.float32)
        return np.where(rng.random((n, 2)) < 0.3, rng.choice(edges, (n, 2)), p).astype(np.float32)

    start = positions(steps)
    action = np.where(
        rng.random((steps, 2)) < 0.2, rng.choice([-1, 0, 1], (steps, 2)), rng.uniform(-1.5, 1.5, (steps, 2))
    )
    action = action.astype(np.float32)
    end = np.empty_like(start)
    for i in range(steps):
        env._set_state(start[i])
        end[i] = env.step(action[i])[4]["state"]
    seen = positions(frames)
    seen[::10] = seen[::10].round()  # on a pixel
    seen[1::10] = seen[1::10].round() + 0.5  # between two
    images = []
    for state in seen:
        env._set_state(state)
        images.append(env.render().transpose(2, 0, 1))
    packed = lzma.compress(np.stack(images).tobytes(), preset=9 | lzma.PRESET_EXTREME)
    return {"start": start, "action": action, "end": end, "seen": seen, "frame": np.frombuffer(packed, np.uint8)}


def main() -> None:
    rng = np.random.default_rng(20240601)
    out: dict[str, Any] = {}
    for g in (2, 3):
        for visible in (False, True):
            edges = [14 + 196 * k / g for k in range(1, g)]
            data = record(piecewise(g, visible), rng, 250, 50, edges)
            out |= {f"{g}_{int(visible)}_{name}": value for name, value in data.items()}
    np.savez_compressed(HERE / "piecewise.npz", **out)

    out = {}
    for doors, half, thick, steps, frames in [((49,), 14, 10, 700, 140), ((60, 170), 10, 21, 300, 60)]:
        band = thick // 2 + 7
        edges = [112.0, 112.0 - band, 112.0 + band, 111.5 - band, 112.5 + band]
        edges += [d + s * (half + 1.75) for d in doors for s in (-1, 1)]
        data = record(two_room(doors, half, thick), rng, steps, frames, edges)
        label = "-".join(map(str, doors))
        out |= {f"{label}_{half}_{thick}_{name}": value for name, value in data.items()}
    np.savez_compressed(HERE / "two_room.npz", **out)


if __name__ == "__main__":
    main()
