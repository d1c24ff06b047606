"""Writes tests/golden/pusht_frames.npz: 500 states of stable-worldmodel's PushT-v1 (0.1.1) and what it draws of them.

    python tests/golden/make_pusht_frames.py        with an interpreter that has stable_worldmodel

States: anywhere, near and through the borders, all angles, the pusher on, in and next to the block, and after some
steps of physics. Frames are 224², kept as the pixels that differ from the empty table (whose frame is kept whole);
every tenth state is drawn at 64² too.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore")

COUNT, SIZE, SMALL = 500, 224, 64


def states_of(env, rng: np.random.Generator):
    for i in range(COUNT):
        pusher, block = rng.uniform(20, 492, 2), rng.uniform(100, 400, 2)
        angle = rng.integers(0, 16) * np.pi / 8 if i % 25 == 7 else rng.uniform(0, 2 * np.pi)
        if i % 5 == 1:
            block = rng.uniform(30, 482, 2)
        if i % 5 in (2, 3):
            pusher = block + rng.uniform(-75, 75, 2)
        env._set_state(np.array([*pusher, *block, angle, 0.0, 0.0]))
        if i % 5 in (3, 4):
            for _ in range(4):
                env.step(0.5 * rng.uniform(-1, 1, 2))
        yield env._get_obs()


def draw(env, size: int) -> np.ndarray:
    env.render_size = size
    return env.render()


def main() -> None:
    from stable_worldmodel.envs.pusht.env import PushT

    env = PushT(resolution=SIZE)
    env.reset(seed=0)
    states, frames, small = [], [], []
    for i, state in enumerate(states_of(env, np.random.default_rng(0))):
        states.append(state)
        frames.append(draw(env, SIZE))
        if i % 10 == 0:
            small.append(draw(env, SMALL))
    for body in (env.agent, env.block):
        body.position = (-900.0, -900.0)
        env.space.reindex_shapes_for_body(body)
    env.space.step(1e-9)
    empty = [draw(env, size) for size in (SIZE, SMALL)]
    kept = {"states": np.array(states, dtype=np.float32)}
    for name, pictures, ground in (("", np.array(frames), empty[0]), ("_small", np.array(small), empty[1])):
        mask = (pictures != ground).any(-1)
        colors, which = np.unique(pictures[mask], axis=0, return_inverse=True)
        kept[f"empty{name}"] = ground
        kept[f"mask{name}"] = np.packbits(mask)
        kept[f"colours{name}"] = colors
        kept[f"pixels{name}"] = which.astype(np.uint16).reshape(-1)
    path = Path(__file__).with_name("pusht_frames.npz")
    np.savez_compressed(path, **kept)
    print(f"{path.name}: {path.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
