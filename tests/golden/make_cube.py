"""Records cube.npz from ogbench's own environment: run in an environment with ogbench, dm_control and mujoco.

20 episodes of its Markov oracle (noise as in the method, a new target when it is done), single cube, 200 steps. Actions
are rounded to single precision first, so that both simulators are given the same numbers. Recorded: the start, every
action, the oracle's own choice before noise, its target and resting place, rewards, whether gripper and cube appear
together in MuJoCo's contact list, every fifth state, and four frames with their joint positions.

    MUJOCO_GL=egl python tests/golden/make_cube.py
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ogbench.manipspace  # noqa: F401  (registers the environments)
from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle

EPISODES, STEPS, EVERY = 20, 200, 5
FRAMES = ((0, 0), (1, 60), (2, 110), (3, 199))


def touching(env: Any) -> bool:
    """Read off the contact list, by the names of the bodies."""
    for i in range(env.data.ncon):
        bodies = [env.model.body(env.model.geom_bodyid[g]).name for g in env.data.contact[i].geom]
        if "object_0" in bodies and any("robotiq" in name for name in bodies):
            return True
    return False


def state(env: Any, info: dict[str, Any]) -> np.ndarray:
    felt = ("effector_pos", "effector_yaw", "gripper_opening", "gripper_contact")
    return np.concatenate([env.data.qpos, env.data.qvel, *(info[f"proprio/{name}"] for name in felt)])


def main() -> None:
    env: Any = gymnasium.make(
        "cube-single-v0",
        terminate_at_goal=False,
        mode="data_collection",
        visualize_info=False,
        width=224,
        height=224,
        max_episode_steps=10_000,
    ).unwrapped
    oracle = CubeMarkovOracle(env=env)
    np.random.seed(0)  # the oracle's resting places
    draw = np.random.default_rng(0)
    names = ("start", "action", "choice", "target", "rest", "reward", "touch", "state")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    frames, poses = [], []
    for episode in range(EPISODES):
        ob, info = env.reset(seed=episode)
        oracle.reset(ob, info)
        rows["start"].append(env.data.qpos.copy())
        xi = draw.uniform(0, 0.1)
        for t in range(STEPS):
            if (episode, t) in FRAMES:
                poses.append(env.data.qpos.copy())
                frames.append(env.render(camera="front"))
            rows["target"].append([*info["privileged/target_block_pos"], *info["privileged/target_block_yaw"]])
            rows["rest"].append([*oracle._final_pos, oracle._final_yaw])
            choice = oracle.select_action(ob, info)
            noisy = choice + draw.normal(0, [xi, xi, xi, 3 * xi, 10 * xi])
            action = np.clip(noisy, -1, 1).astype(np.float32)
            ob, reward, _, _, info = env.step(action.astype(np.float64))
            rows["choice"].append(choice)
            rows["action"].append(action)
            rows["reward"].append(reward)
            rows["touch"].append(touching(env))
            if (t + 1) % EVERY == 0:
                rows["state"].append(state(env, info))
            if oracle.done:
                ob, info = env.set_new_target()
                oracle.reset(ob, info)
    shaped = {k: np.array(v).reshape(EPISODES, -1, *np.shape(v[0])) for k, v in rows.items()}
    out = {k: v if k == "start" else v.astype(np.float32) for k, v in shaped.items()}
    out |= {k: shaped[k].astype(bool) for k in ("reward", "touch")}
    out |= {"start": np.array(rows["start"]), "frames": np.array(frames), "poses": np.array(poses)}
    out["versions"] = np.array([f"{p} {version(p)}" for p in ("ogbench", "mujoco")])
    np.savez_compressed(Path(__file__).with_name("cube.npz"), **out)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
