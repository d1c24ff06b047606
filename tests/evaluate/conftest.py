"""A model that knows the truth: it reads the dot's position off the frame and rolls out the world itself."""

import pytest
import torch
from einops import rearrange

from lpwm import worlds
from lpwm.data import ActionStats, from_arrays
from lpwm.evaluate.agent import Agent

IMAGE = 32
STATS = ActionStats((0.0, 0.0), (0.577, 0.577))


class TrueModel(torch.nn.Module):
    """z = position/100. A weight, so that it has a digest; `noise` blurs what it sees, to make a worse model."""

    action_dim = 10
    proprio_dim = 0

    def __init__(self, world, frameskip=5, stats=STATS, history=1, noise=0.0):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(100.0 + noise))
        self.world, self.frameskip, self.stats, self.history, self.noise = (world, frameskip, stats, history, noise)
        self.eval()

    def encode(self, frames):
        red = frames[..., 0, :, :].double() - frames[..., 1, :, :].double()
        side = frames.shape[-1]
        at = (torch.arange(side, dtype=torch.float64) + 0.5) * (224 / side) - 0.5
        mass = red.sum((-1, -2))
        x, y = (red.sum(-2) * at).sum(-1) / mass, (red.sum(-1) * at).sum(-1) / mass
        z = torch.stack((x, y), -1)
        if self.noise:
            z = z + self.noise * torch.stack((torch.sin(y), torch.cos(x)), -1)
        return (z / self.scale.detach()).float()

    def rollout(self, z_BCD, actions_BSHA, past_BPA=None, last_only=False):
        assert (0 if past_BPA is None else past_BPA.shape[1]) == z_BCD.shape[1] - 1
        self.contexts = [*getattr(self, "contexts", []), z_BCD.shape[1]]
        scale = self.scale.detach()
        state = (z_BCD[:, -1] * scale)[:, None].expand(-1, actions_BSHA.shape[1], -1)
        raw = rearrange(self.stats.denormalize(actions_BSHA), "b s h (f a) -> h f b s a", f=self.frameskip)
        out = []
        for block in raw:
            for action in block:
                state = self.world.step(state, action)
            out.append(state / scale)
        return out[-1] if last_only else torch.stack(out, 2)


def make_agent(world, name="true", seed=0, method="", noise=0.0, history=1, **more):
    model = TrueModel(world, history=history, noise=noise)
    return Agent(name, model, IMAGE, STATS, 5, seed=seed, method=method, **more)


@pytest.fixture(scope="session")
def world():
    return worlds.make("piecewise")


@pytest.fixture(scope="session")
def data(world):
    """300 trajectories of 100 random actions from uniform starts."""
    start = world.sample_state(300, (0, "data"))
    policy = worlds.make_policy(world, "random")
    states, actions = worlds.rollout(world, policy, start, start, worlds.row_keys((0, "acts"), 300), 100)
    return from_arrays(list(states.numpy()), list(actions.numpy()), spec=world.spec)


@pytest.fixture
def agent(world):
    return make_agent(world)


@pytest.fixture(scope="session")
def agents_of():
    return make_agent
