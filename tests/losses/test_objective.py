"""The objective: the sum, its weights, its alignment of predictions with frames."""

import pytest
import torch
from tools import refused

from lpwm.core.rng import generator
from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig
from lpwm.losses.rdmreg import RDMReg

B, T, D = 6, 4, 8
FEW = RDMRegConfig(slices=32)


def clip(*key):
    z = torch.randn(B, T, D, generator=generator("z", *key)).relu().requires_grad_()
    zhat = torch.randn(B, T - 1, D, generator=generator("zhat", *key)).relu().requires_grad_()
    return z, zhat


def test_the_paper_s_loss():
    z, zhat = clip()
    objective = Objective(ObjectiveConfig(lam=2.5, tj_weight=0.3, rdmreg=FEW), nonnegative=True)
    draw = objective.draw((0, 1), (B, T, D))
    terms = {name: value.detach() for name, value in objective(z, zhat, draw).items()}
    assert set(terms) == {"loss", "prediction", "regularizer", "temporal_jaccard"}
    x, y = z.detach().double(), zhat.detach().double()
    prediction = sum(float((y[:, j] - x[:, j + 1]).pow(2).mean()) for j in range(T - 1)) / (T - 1)
    shared, either = torch.minimum(x[:, :-1], x[:, 1:]).sum(-1), torch.maximum(x[:, :-1], x[:, 1:]).sum(-1)
    jaccard = float((1 - shared / either).mean())
    regularizer = float(RDMReg(FEW)(z.detach(), draw))
    assert float(terms["prediction"]) == pytest.approx(prediction, rel=1e-5)
    assert float(terms["regularizer"]) == regularizer
    assert float(terms["temporal_jaccard"]) == pytest.approx(jaccard, rel=1e-5)
    want = prediction + 2.5 * regularizer + 0.3 * jaccard
    assert float(terms["loss"]) == pytest.approx(want, rel=1e-5)


def test_no_stop_gradient_on_the_target():
    z, zhat = clip()
    objective = Objective(ObjectiveConfig("none"), nonnegative=True)
    terms = objective(z, zhat, objective.draw((0,), (B, T, D)))
    assert set(terms) == {"loss", "prediction", "regularizer"}
    assert float(terms["regularizer"]) == 0.0
    into_z, into_zhat = torch.autograd.grad(terms["loss"], (z, zhat))
    assert torch.allclose(into_z[:, 1:], -into_zhat)
    assert not into_z[:, 0].any()


def test_fewer_predictions_than_frames_match_the_first_frames():
    z, zhat = clip()
    objective = Objective(ObjectiveConfig("none"), nonnegative=True)
    result = objective(z, zhat[:, :1], ())["prediction"]
    assert torch.allclose(result, (zhat[:, 0] - z[:, 1]).square().mean())
    for bad in (zhat[:, :0], torch.zeros(B, T, D)):
        refused("do not fit a clip of 4 frames", objective, z, bad, ())


def test_the_rollout_term_holds_depths_two_to_n():
    z, zhat = clip()
    rollout = torch.randn(B, 3, D, generator=generator("r"))
    objective = Objective(ObjectiveConfig("none", rollout_steps=3, rollout_weight=0.7), nonnegative=False)
    terms = objective(z, zhat, (), rollout)
    depths = [(rollout[:, n - 1] - z[:, n]).square().mean() for n in (2, 3)]
    assert torch.allclose(terms["rollout"], sum(depths) / 2)
    assert torch.allclose(terms["loss"], terms["prediction"] + 0.7 * terms["rollout"])
    first_changed = torch.cat((rollout[:, :1] + 5, rollout[:, 1:]), dim=1)
    assert torch.equal(objective(z, zhat, (), first_changed)["rollout"], terms["rollout"])
    for bad in (None, rollout[:, :2]):
        refused("needs 3 fed-back predictions", objective, z, zhat, (), bad)


def test_the_target_follows_the_link():
    config = ObjectiveConfig(rdmreg=RDMRegConfig(slices=8, p=2.0))
    for nonnegative in (True, False):
        regularizer = Objective(config, nonnegative).regularizer
        assert isinstance(regularizer, RDMReg)
        assert regularizer.target.rectify is nonnegative


def test_float32_inside_bf16_autocast():
    z, zhat = clip()
    objective = Objective(ObjectiveConfig(tj_weight=0.1, rdmreg=FEW), nonnegative=True)
    draw = objective.draw((0,), (B, T, D))
    want = objective(z.bfloat16().float(), zhat.bfloat16().float(), draw)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = objective(z.bfloat16(), zhat.bfloat16(), draw)
    for name in want:
        assert result[name].dtype == torch.float32
        assert torch.equal(result[name], want[name]), name
