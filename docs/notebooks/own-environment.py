# %% [markdown]
# # Your own environment
#
# Any gymnasium environment that renders frames can be collected from, trained on and planned in. Here is one written
# from nothing: a puck on a table that keeps some of its speed.

# %%
import gymnasium
import matplotlib.pyplot as plt
import numpy as np

import lpwm


class Puck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode="rgb_array"):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.concatenate((self.np_random.uniform(-0.8, 0.8, 2), np.zeros(2)))
        return self.state.copy(), {}

    def step(self, action):
        place, speed = self.state[:2], 0.7 * self.state[2:] + 0.05 * np.clip(action, -1, 1)
        self.state = np.concatenate((np.clip(place + speed, -0.9, 0.9), speed))
        return self.state.copy(), 0.0, False, False, {}

    def render(self):
        y, x = np.mgrid[-1:1:64j, -1:1:64j]
        disc = np.hypot(x - self.state[0], y - self.state[1]) < 0.15
        return np.where(disc[..., None], (200, 60, 40), (250, 250, 250)).astype(np.uint8)


gymnasium.register("Puck-v0", Puck, max_episode_steps=40)

# %% [markdown]
# ## Collect
#
# `gym:` and the ID make it a world. `lpwm collect gym:Puck-v0 --plugin my_module` is the same from the shell, with the
# class in a module of yours.

# %%
data = lpwm.collect("gym:Puck-v0", "puck.h5", episodes=200, steps=40, pixels=32)
print(data.episodes, "episodes,", data.steps, "steps")

# %% [markdown]
# ## Train
#
# A tiny recipe with more steps: under a minute on one core, and too small to plan well. For a model that does take
# `piecewise-2x2-small/lpwm`; `lpwm data suggest puck.h5` suggests frameskip, image size and λ for your data.

# %%
longer = {"train.steps": 600, "train.batch": 32, "train.eval_every": 600, "train.checkpoint_every": 600}
run = lpwm.train("tiny/lpwm", out="runs", data="puck.h5", overrides={**longer, "data.frameskip": 2})
held_out = run.result().held_out
error, copying = (held_out.by_depth(name)[7] for name in ("error_depth", "copy_error_depth"))
print(f"error of a rollout of 8 blocks: {error:.2f}; of copying the last frame: {copying:.2f}")

# %% [markdown]
# ## Act
#
# The agent sees frames and returns actions of the environment, within its bounds.

# %%
env = gymnasium.make("Puck-v0", render_mode="rgb_array")
agent = lpwm.load(run.folder)
env.reset(seed=1)
goal = env.render()
agent.reset(goal=goal)
env.reset(seed=2)
frames = [env.render()]
for _ in range(20):
    env.step(agent.act(frames[-1]))
    frames.append(env.render())
print("last action", agent.act(frames[-1]).round(2), " distance left", agent.distance.round(2))
figure, axes = plt.subplots(1, 4, figsize=(8, 2.2))
for axis, title, frame in zip(axes, ("start", "step 10", "step 20", "goal"), (*frames[::10], goal), strict=True):
    axis.imshow(frame)
    axis.set(title=title, xticks=[], yticks=[])
