# %% [markdown]
# # A first look
#
# Two small world models come with the package: a sparse one (LpWM) and its dense twin (LeWM). Here they look at frames,
# imagine and plan. Nothing is trained; the notebook runs in seconds on a CPU.

# %%
import matplotlib.pyplot as plt
import torch

import lpwm
from lpwm.data.normalize import to_blocks
from lpwm.interpret.decode import imagination
from lpwm.report import palette
from lpwm.train import load
from lpwm.train.pretrained import unpack

folders = {name: unpack(name, "runs") for name in ("lpwm", "lewm")}
agents = {name: lpwm.load(folder, preset="path", seed=3) for name, folder in folders.items()}
world = lpwm.make_world("piecewise")
print({name: f"{agent.model.config.latent} units, link {agent.model.config.link}" for name, agent in agents.items()})

# %% [markdown]
# ## The world
#
# A dot in a room of four zones. Each zone pushes the dot in its own direction, and no frame shows where the zones are:
# they have to be learned from how the dot moves. Here they are drawn for us.

# %%
states = world.sample_state(5, key=(0, "look"))
shown = lpwm.make_world("piecewise", visible=True).render(states, 96)
figure, axes = plt.subplots(1, 5, figsize=(9, 2))
for axis, frame, zone in zip(axes, shown, world.factors(states)["zone"].flatten().tolist(), strict=True):
    axis.imshow(frame.permute(1, 2, 0))
    axis.set(title=f"zone {int(zone)}", xticks=[], yticks=[])

# %% [markdown]
# ## Codes
#
# The encoder turns a frame into a code. Sparse codes are non-negative with exact zeros, and which units are on depends
# on where the dot is. Below: 200 frames sorted by zone, black where a unit is on (z > 0).

# %%
states = world.sample_state(200, key=(1, "codes"))
zones = world.factors(states)["zone"].flatten()
order = zones.argsort()
figure, axes = plt.subplots(1, 2, figsize=(9, 2.6), sharey=True)
for axis, (name, agent) in zip(axes, agents.items(), strict=True):
    with torch.no_grad():
        z = agent.model.encode(world.render(states, agent.image_size))
    axis.imshow((z > 0)[order].T, aspect="auto", cmap="Grays", interpolation="nearest")
    axis.set(title=f"{name}: {(z > 0).float().mean():.0%} above 0", xlabel="frame, by zone")
    print(f"{name}: {(z == 0).float().mean():.0%} of the entries are exactly 0")
axes[0].set_ylabel("unit")

# %% [markdown]
# ## Planning
#
# `agent.reset(goal=…)` takes a picture of the goal; `agent.act(frame)` returns the next action. Every five steps the
# agent imagines hundreds of action sequences and takes the best one.

# %%
start, goal = torch.tensor([[45.0, 180.0]]), torch.tensor([[165.0, 55.0]])


def picture(state):
    return world.render(state)[0].permute(1, 2, 0).numpy()  # uint8 (height, width, 3), as gymnasium renders


paths = {}
for name, agent in agents.items():
    agent.reset(goal=picture(goal))
    state, path = start, [start]
    for _ in range(50):
        state = world.step(state, torch.as_tensor(agent.act(picture(state)))[None])
        path.append(state)
    paths[name] = torch.cat(path)
    reached = world.success(paths[name], goal.expand(51, 2)).nonzero()
    print(f"{name}: " + (f"at the goal after {int(reached[0])} steps" if len(reached) else "not at the goal"))

figure, axis = plt.subplots(figsize=(3.2, 3.2))
axis.imshow(picture(start))
for color, (name, path) in zip(palette.LIGHT, paths.items(), strict=False):
    axis.plot(*path.T, ".-", markersize=3, label=name, color=color)
axis.plot(*goal[0], "k*", label="goal")
axis.set(xticks=[], yticks=[])
axis.legend(fontsize=8)

# %% [markdown]
# ## Imagination
#
# A small decoder, fitted to codes after training, draws what a code says. It is an aid for the eye: the model neither
# trains nor plans with it. Above, what happens in the world under 25 actions; below, what the sparse model imagines
# from the first frame and the actions alone.

# %%
agent = agents["lpwm"]
decoder = imagination(load(folders["lpwm"]))[2]
agent.reset(goal=picture(goal))
agent.act(picture(start))
raw = agent.plan.raw_BTA.float()
with torch.no_grad():
    z = agent.model.encode(world.render(start, agent.image_size))
    blocks = agent.stats.normalize(to_blocks(raw, agent.frameskip))
    imagined = decoder(agent.model.rollout(z[:, None], blocks[:, None])[0, 0])
state, happened = start, []
for t, action in enumerate(raw.unbind(1)):
    state = world.step(state, action)
    if (t + 1) % agent.frameskip == 0:
        happened.append(picture(state))
figure, axes = plt.subplots(2, len(happened), figsize=(9, 3.8))
for k, column in enumerate(axes.T):
    column[0].imshow(happened[k])
    column[0].set_title(f"step {(k + 1) * agent.frameskip}")
    column[1].imshow(imagined[k].permute(1, 2, 0))
for axis, label in zip(axes[:, 0], ("happened", "imagined"), strict=True):
    axis.set_ylabel(label)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])

# %% [markdown]
# One episode shows how it works, not how well. `lpwm.evaluate` plans to many goals next to three controls:

# %%
result = lpwm.evaluate(list(folders.values()), preset="quick", episodes=20, goals=("random",), budgets=(50,))
print(result.table())
