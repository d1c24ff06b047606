"""The dynamics frozen for planning equal the training-time pass, window by window, in every shape."""

import itertools

import pytest
import torch
from predictors import GRU, EndlessGRU
from tools import refused

from lpwm.model import PREDICTORS, EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.model.predictors import PAPER_RUNGS, in_order, register_predictor, title_of
from lpwm.model.predictors.adaln import AdaLN
from lpwm.model.predictors.linear import LTI, MLPLTI
from lpwm.plan import CEMConfig, LatentProblem

TINY_VIT = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)
FROZEN = ("deep-adaln", "shallow-adaln", "mlp-lti", "lti", "lti1")


def scrambled(rung, history=3, latent=12, link="reprelu", action_encoder="mlp", norm="layer", smooth=0):
    """Every parameter and statistic random, so that no deliberate zero hides a mistake."""
    predictor = PredictorConfig(
        rung=rung, history=history, heads=2, head_dim=8, mlp=16, head_hidden=16, head_norm=norm, rank=4
    )
    config = ModelConfig(
        latent, link, TINY_VIT, predictor=predictor, action_encoder=action_encoder, action_smooth=smooth
    )
    model = WorldModel(config, action_dim=6).double().eval()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for t in itertools.chain(model.parameters(), model.buffers()):
            if t.is_floating_point():
                t.add_(0.3 * torch.rand(t.shape, generator=g, dtype=t.dtype) - (0.1 if t.requires_grad else 0))
    return model


def inputs(context, horizon, latent=12):
    g = torch.Generator().manual_seed(context * 10 + horizon)
    z = torch.randn(2, context, latent, generator=g, dtype=torch.float64)
    a = torch.randn(2, 3, horizon, 6, generator=g, dtype=torch.float64)
    past = torch.randn(2, context - 1, 6, generator=g, dtype=torch.float64) if context > 1 else None
    return z, a, past


@pytest.mark.parametrize("history", [1, 2, 3])
@pytest.mark.parametrize("rung", FROZEN)
def test_equals_the_windows_recomputed(rung, history):
    model = scrambled(rung, history)
    frozen = model.frozen(torch.float64)
    for context, horizon in itertools.product((1, 2, 3, 4), (1, 2, 5)):
        z, a, past = inputs(context, horizon)
        with torch.no_grad():
            expected = model.rollout(z, a, past, cached=False)
            torch.testing.assert_close(frozen.rollout(z, a, past), expected, rtol=1e-5, atol=1e-6)
            last = frozen.rollout(z, a, past, last_only=True)
        torch.testing.assert_close(last, expected[:, :, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("rung", FROZEN)
def test_products_of_onednn_are_the_same(rung, monkeypatch):
    model = scrambled(rung).float()
    z, a, past = (t.float() for t in inputs(3, 5))
    used = []

    def plan(preferred):
        monkeypatch.setattr("lpwm.model.frozen.prefers_onednn", lambda: used.append(preferred) or preferred)
        with torch.no_grad():
            return model.frozen(torch.float32).rollout(z, a, past)

    expected = plan(False)
    assert not used  # products of these sizes are too small to ask
    monkeypatch.setattr("lpwm.model.frozen.LARGE", 0)
    torch.testing.assert_close(plan(True), expected, rtol=1e-4, atol=1e-5)
    assert used


@pytest.mark.parametrize(
    "options",
    [{"link": "identity"}, {"link": "relu"}, {"action_encoder": "linear"}, {"norm": "batch"}, {"smooth": 4}],
    ids=str,
)
@pytest.mark.parametrize("rung", ["shallow-adaln", "mlp-lti"])
def test_equals_it_with_other_parts(rung, options):
    model = scrambled(rung, **options)
    z, a, past = inputs(2, 4)
    with torch.no_grad():
        expected = model.rollout(z, a, past, cached=False)
        torch.testing.assert_close(model.frozen(torch.float64).rollout(z, a, past), expected, rtol=1e-5, atol=1e-6)


def test_the_gated_rung_has_nothing_to_freeze():
    assert scrambled("mlp-ltv").frozen(torch.float64) is None


@pytest.mark.parametrize("seed", range(2))
def test_lower_precision_is_near(seed):
    """One step: some dozen operations at 2⁻⁹ each. Further on the random dynamics amplify it without bound."""
    torch.manual_seed(seed)
    model = scrambled("shallow-adaln").float()
    z, a, _ = (t.float() if t is not None else None for t in inputs(1, 5))
    with torch.no_grad():
        exact = model.rollout(z, a)
        near = model.frozen(torch.bfloat16).rollout(z, a)
    assert near.dtype == torch.bfloat16 and near.shape == exact.shape
    first, error = exact[:, :, 0], (near.float() - exact)[:, :, 0]
    assert 0 < error.norm() / first.norm() < 0.02


class ResidualMLPLTI(MLPLTI):
    def forward(self, z_BKD, e_BKD):
        return z_BKD + super().forward(z_BKD, e_BKD)


class ResidualLTI(LTI):
    def forward(self, z_BKD, e_BKD):
        return z_BKD + super().forward(z_BKD, e_BKD)

    def step(self, cache, z, e, keep=None):
        u, cache = super().step(cache, z, e, keep)
        return z + u, cache


class TwiceAdaLN(AdaLN):
    """Neither `forward` nor `step` is redefined, only what `forward` calls."""

    def _blocks(self):
        return iter([*self.blocks, *self.blocks])


class MovingAverage(torch.nn.Module):
    """No `start`, no `step`: only the definition."""

    def __init__(self, latent, lags):
        super().__init__()
        self.lags, self.W = lags, torch.nn.Linear(latent, latent)

    def forward(self, z_BKD, e_BKD):
        count = torch.arange(1, z_BKD.shape[1] + 1, dtype=z_BKD.dtype)
        return self.W(z_BKD.cumsum(1) / count[:, None]) + e_BKD


MADE = {
    "residual MLP∘LTI": lambda c, latent: ResidualMLPLTI(latent, c.history),
    "residual LTI": lambda c, latent: ResidualLTI(latent, c.history),
    "moving average": lambda c, latent: MovingAverage(latent, c.history),
}


MADE |= {"gru": GRU, "endless gru": EndlessGRU}


@pytest.mark.parametrize("name", MADE)
def test_a_predictor_of_ones_own_is_planned_with_its_own_dynamics(name, monkeypatch):
    monkeypatch.setitem(PREDICTORS._entries, "own", MADE[name])
    model = scrambled("own")
    assert model.frozen(torch.float64) is None
    z, a, past = inputs(2, 5)
    with torch.no_grad():
        expected = model.rollout(z, a, past, cached=False)
        torch.testing.assert_close(model.rollout(z, a, past), expected, rtol=1e-8, atol=1e-9)
        goal = expected[:, 0, -1]  # the first candidate ends there
        problem = LatentProblem(model, z, goal, past, horizon=5)
        assert problem.prepared().cost(a)[:, 0].abs().max() < 1e-12
        assert CEMConfig(samples=16, elites=4, iterations=2).build().solve(problem).actions_BHA.isfinite().all()


def test_a_subclass_does_not_inherit_the_frozen_dynamics_of_its_parent(monkeypatch):
    build = lambda c, latent: TwiceAdaLN(c, latent, depth=1)  # noqa: E731
    monkeypatch.setitem(PREDICTORS._entries, "own", build)
    assert scrambled("own").frozen(torch.float64) is None


@pytest.mark.parametrize("wrong", [lambda z, e: z[:, :1], lambda z, e: None, lambda z, e: z[..., :3]])
def test_a_predictor_of_the_wrong_shape_is_refused(wrong, monkeypatch):
    build = lambda c, latent: type("Wrong", (torch.nn.Module,), {"forward": lambda self, z, e: wrong(z, e)})()  # noqa: E731
    monkeypatch.setitem(PREDICTORS._entries, "own", build)
    refused(r"predictor 'own' returned .* must return one prediction per position", scrambled, "own")


def test_registration(monkeypatch):
    monkeypatch.setattr(PREDICTORS, "_entries", dict(PREDICTORS._entries))
    monkeypatch.setattr("lpwm.model.predictors.TITLES", {})
    register_predictor("gru", GRU, title="GRU(k)")
    assert title_of("gru") == "GRU(k)" and title_of("lti") == "lti" and "gru" in PREDICTORS
    assert isinstance(scrambled("gru").predictor, GRU) and "gru" not in PAPER_RUNGS
    assert in_order(["gru", "lti1", "deep-adaln", "gru"]) == ["deep-adaln", "lti1", "gru"]
    refused("'gru' is already registered", register_predictor, "gru", EndlessGRU)
    refused("give a class or a function", register_predictor, "other", 3)
    monkeypatch.setitem(PREDICTORS._entries, "number", lambda c, latent: 3)
    refused(r"must build a torch\.nn\.Module", scrambled, "number")
    refused("unknown predictor 'gur': did you mean 'gru'", PredictorConfig, rung="gur")
