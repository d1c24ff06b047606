"""The step compiled: in which types it computes."""

import pytest
import torch

from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim import OptimConfig, build, initialize
from lpwm.train.step import Stepper

CONFIG = ModelConfig(
    latent=16,
    encoder=EncoderConfig(image_size=16, patch=8, width=24, depth=2, heads=1, head_dim=8, mlp=32),
    projector=ProjectorConfig(32),
    predictor=PredictorConfig(rung="mlp-lti"),
)


def gradients(compiled):
    model = WorldModel(CONFIG, 3)
    initialize(model, 0)
    objective = Objective(ObjectiveConfig(rdmreg=RDMRegConfig(slices=32)), CONFIG.sparse)
    stepper = Stepper(model, objective, build(model, OptimConfig()), 6, precision=torch.bfloat16, compiled=compiled)
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 4, 3, 16, 16), generator=g, dtype=torch.uint8)
    actions = torch.randn(6, 3, 3, generator=g)
    terms = stepper(pixels, actions, objective.draw((0, 0), (6, 4, 16)), 1.0, 0)
    return terms["loss"], {name: p.grad for name, p in model.named_parameters()}


def test_compiled_gradients_have_the_types_of_eager_ones(monkeypatch):
    """Traced whole, with torch's own operations in the place of generated ones: nothing may differ by a bit."""
    want_loss, want = gradients(False)
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: real(f, backend="aot_eager", fullgraph=True, **kw))
    loss, found = gradients(True)
    assert torch.equal(loss, want_loss)
    for name, grad in want.items():
        assert torch.equal(found[name], grad), name


def test_older_torch_compiles_too(monkeypatch):
    from lpwm.train import step

    monkeypatch.setattr(step, "functorch", object())
    monkeypatch.setattr(torch, "compile", lambda f, **kw: f)
    assert step.compiled(len)("abc") == 3


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
