"""A small linear world model with known matrices, and the problems the planners are tried on."""

from types import SimpleNamespace

import pytest
import torch

from lpwm.core.rng import generator
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.plan import LatentProblem

TINY = EncoderConfig(image_size=16, patch=8, width=8, depth=1, heads=1, head_dim=8, mlp=8)


def make_model(rung, latent=8, action_dim=4, dtype=torch.float32, scale=1.0, model=(), **predictor):
    """A world model whose predictor has weights of size `scale`: as they are initialized, some do not see actions."""
    sizes = {"heads": 2, "head_dim": 8, "mlp": 16, "head_hidden": 16, **predictor}
    config = ModelConfig(latent=latent, encoder=TINY, predictor=PredictorConfig(rung, **sizes), **dict(model))
    made, g = WorldModel(config, action_dim).to(dtype).eval(), generator("weights", rung)
    with torch.no_grad():
        for p in (*made.predictor.parameters(), *made.embed_action.parameters()):
            p.copy_(scale * torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5)
    return made


@pytest.fixture
def real_model():
    return make_model


class LinearModel:
    """z' = Σ A_i z_{t−i} + B a + b, rolled out with explicit sums of rows (batched alike for any batch)."""

    action_dim = 2

    def __init__(self, latent=4, lags=2, seed=0, dtype=torch.float64):
        g = generator("linear model", seed)
        self.A = [0.5 * torch.randn(latent, latent, generator=g, dtype=dtype) / (1 + i) for i in range(lags)]
        self.B = torch.randn(latent, self.action_dim, generator=g, dtype=dtype)
        self.bias = 0.1 * torch.randn(latent, generator=g, dtype=dtype)
        self.history = lags
        self.config = SimpleNamespace(latent=latent)

    def parameters(self):
        return iter([*self.A, self.B, self.bias])

    def rollout(self, z_BCD, actions_BSHA, past_BPA=None, last_only=False):
        assert (0 if past_BPA is None else past_BPA.shape[1]) == z_BCD.shape[1] - 1
        samples = actions_BSHA.shape[1]
        past = [z[:, None].expand(-1, samples, -1) for z in reversed(z_BCD.unbind(1))]
        out = []
        for a in actions_BSHA.unbind(2):
            z = (self.B * a[..., None, :]).sum(-1) + self.bias
            for A, old in zip(self.A, past, strict=False):
                z = z + (A * old[..., None, :]).sum(-1)
            past = [z, *past]
            out.append(z)
        return out[-1] if last_only else torch.stack(out, 2)


def make_problem(batch=3, horizon=3, model=None, context=1, first=0, dtype=torch.float64):
    """Environment e always has the same context and goal, whichever batch it is in."""
    model = model or LinearModel(dtype=dtype)
    D, A = model.config.latent, model.action_dim
    rows = [generator("env", e) for e in range(first, first + batch)]
    z = torch.stack([torch.randn(context, D, generator=g, dtype=dtype) for g in rows])
    goal = torch.stack([2 * torch.randn(D, generator=g, dtype=dtype) for g in rows])
    past = torch.zeros(batch, context - 1, A, dtype=dtype) if context > 1 else None
    return LatentProblem(model, z, goal, past, horizon, env_ids=torch.arange(first, first + batch))


@pytest.fixture
def problem():
    return make_problem()


@pytest.fixture
def linear_problem():
    return make_problem


@pytest.fixture
def linear_model():
    return LinearModel
