"""Records tests/golden/pusht.npz from stable-worldmodel's PushT-v1.

    pip install stable-worldmodel==0.1.1 pymunk==7.3.1 pygame-ce opencv-python-headless gymnasium
    python tests/golden/make_pusht.py

100 episodes × 100 raw steps: half with random actions around a wandering heading, half with a pusher that keeps
running at the block and through it. Starts touch nothing, so that they are fully told by their seven numbers.
Actions are float32 numbers handed over as float64: given float32, the peer does its control in float32 too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from stable_worldmodel.envs.pusht.env import PushT

EPISODES, STEPS = 100, 100


def start(rng: np.random.Generator) -> np.ndarray:
    """At rest and apart: the T within 125 px of its origin, the pusher beyond that, the walls beyond both."""
    while True:
        agent, block = rng.uniform(50, 450, 2), rng.uniform(150, 362, 2)
        if np.linalg.norm(agent - block) > 150:
            return np.array([*agent, *block, rng.uniform(0, 2 * np.pi), 0, 0]).astype(np.float32).astype(float)


def main() -> None:
    rng = np.random.default_rng(20240607)
    env = PushT(resolution=16)
    starts = np.zeros((EPISODES, 7))
    actions = np.zeros((EPISODES, STEPS, 2), np.float32)
    states = np.zeros((EPISODES, STEPS, 7))
    for e in range(EPISODES):
        starts[e] = start(rng)
        far = np.array([40.0, 40, 300, 300, 0, 0, 0])  # the goal is simulated first: let it touch nothing
        seen = env.reset(seed=e, options={"state": starts[e], "goal_state": far})[0]["state"]
        assert np.allclose(seen, starts[e], rtol=0, atol=1e-9), (seen, starts[e])
        heading, aim = rng.uniform(0, 2 * np.pi), np.zeros(2)
        for t in range(STEPS):
            if e % 2 == 0:
                heading += rng.normal(0, 0.6)
                inward = (256 - seen[:2]) / 2500
                a = rng.uniform(0, 0.8) * np.array([np.cos(heading), np.sin(heading)]) + inward
            else:
                if t % 15 == 0:
                    aim = rng.normal(0, 50, 2)
                way = seen[2:4] + aim - seen[:2]
                a = rng.uniform(0.1, 0.6) * way / (np.linalg.norm(way) + 1e-9) + rng.normal(0, 0.1, 2)
            actions[e, t] = np.clip(a, -1, 1)
            seen = env.step(actions[e, t].astype(np.float64))[0]["state"]
            states[e, t] = seen
    moved = np.abs(np.diff(states[..., 2:4], axis=1)).max(-1) > 1e-6
    print("the block moves in", moved.mean(axis=1).reshape(-1, 2).mean(0), "of the steps, random and contact-rich")
    np.savez_compressed(
        Path(__file__).parent / "pusht.npz",
        start=starts.astype(np.float32),
        action=actions,
        state=states.astype(np.float32),
    )


if __name__ == "__main__":
    main()
