"""How often the planner is compiled: counted on the CPU, by a backend that runs what it is given."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from lpwm.core.rng import generator
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.plan import CEM, CEMConfig, LatentProblem
from lpwm.plan.solver import _compiled

TINY = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)
SOLVER = CEM(CEMConfig(samples=6, elites=2, iterations=2))


def model(rung, link="reprelu"):
    config = ModelConfig(
        latent=8,
        link=link,
        encoder=TINY,
        predictor=PredictorConfig(rung=rung, history=3, heads=1, head_dim=8, mlp=8, head_hidden=8),
    )
    return WorldModel(config, 4).eval()


def problem(model, context, horizon):
    draw = generator("compiled once", context, horizon)
    z, goal, past = (torch.randn(*shape, generator=draw) for shape in ((2, context, 8), (2, 8), (2, context - 1, 4)))
    return LatentProblem(model, z, goal, past if context > 1 else None, horizon)


@pytest.mark.parametrize("rung", ["mlp-lti", "shallow-adaln"])
def test_models_of_equal_shapes_share_what_is_compiled_and_many_shapes_stay_compiled(rung):
    """Nine models with contexts of 1 to 3 frames are three compilations; then more horizons than torch's limit of 8."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    step = _compiled(CEM.iterate, counter)

    @torch.no_grad()
    def plan(model, context, horizon):
        start = torch.zeros(2, horizon, 4)
        with torch.no_grad():
            here = SOLVER._search(step, problem(model, context, horizon), start, torch.tensor(3))
            plain = SOLVER._search(CEM.iterate, problem(model, context, horizon), start, torch.tensor(3))
        torch.testing.assert_close(here["actions"], plain["actions"])

    for _ in range(9):
        one = model(rung)
        for context in (1, 2, 3):
            plan(one, context, 2)
    assert counter.frame_count == 3
    plan(model(rung, "identity"), 1, 2)
    assert counter.frame_count == 4
    for horizon in (1, 3, 4, 5, 6):
        plan(one, 1, horizon)
    assert counter.frame_count == 9 > 8
    torch._dynamo.reset()
