"""μP: rates by rule, initialization by key, and the coordinate check that says the rule works."""

import math

import pytest
import torch
from tools import refused

from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.optim import OptimConfig, build, factor, groups, initialize, schema, table


def ladder(latent, rung="mlp-ltv"):
    with torch.device("meta"):
        return WorldModel(ModelConfig(latent=latent, predictor=PredictorConfig(rung=rung)), 10)


RATES = {  # fan-in -> multiple of η, straight from the method
    "encoder.vit.embed.weight": 1.0,  # 588 pixels: the problem's
    "encoder.vit.blocks.3.qkv.weight": 1.0,  # 384
    "encoder.vit.blocks.3.out.weight": 2.0,  # 192
    "encoder.vit.blocks.3.down.weight": 0.5,  # 768
    "encoder.project.3.weight": 0.1875,  # 2048
    "embed_action.0.weight": 1.0,
    "embed_action.1.weight": 1.0,
    "embed_action.3.weight": 96 / 1536,  # 4D
    "predictor.base.A.0.weight": 384 / 1536,  # D
    "predictor.U.0.weight": 1.0,  # rank
    "predictor.V.0.weight": 0.25,
    "predictor.G.bias": 1.0,
    "encoder.vit.position": 1.0,
    "encoder.vit.norm.weight": 1.0,
}


def test_rates_of_the_method():
    rows = {r.name: r for r in schema(ladder(1536))}
    for name, rate in RATES.items():
        assert rows[name].rate == pytest.approx(rate), name
    deep = {r.name: r for r in schema(ladder(384, "deep-adaln"))}
    assert deep["predictor.blocks.0.out.weight"].rate == 0.375  # 1024
    assert deep["predictor.position"].kind == "embedding"


def test_the_authors_input_rule():
    rows = {r.name: r.rate for r in schema(ladder(1536), OptimConfig(input_lr="fan_in"))}
    assert rows["predictor.U.0.weight"] == 24.0
    assert rows["embed_action.0.weight"] == pytest.approx(38.4)
    assert rows["encoder.vit.embed.weight"] == pytest.approx(0.653, abs=1e-3)


def test_groups_cover_every_parameter_once_and_decay_matrices_only():
    model = ladder(768)
    made = groups(model, OptimConfig(lr=0.1, weight_decay=0.3))
    ids = [id(p) for g in made for p in g["params"]]
    assert len(ids) == len(set(ids)) == len(list(model.parameters()))
    matrices = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    for g in made:
        assert g["lr"] == pytest.approx(0.1 * g["scale"])
        decayed = [id(p) in matrices for p in g["params"]]
        assert all(decayed) or not any(decayed)
        assert g["weight_decay"] == (0.3 if decayed[0] else 0.0)
    plain = groups(model, OptimConfig(mup=False))
    assert {g["scale"] for g in plain} == {1.0}


def small(width, rung, seed=0):
    config = ModelConfig(
        latent=width,
        link="identity",
        encoder=EncoderConfig(image_size=8, patch=4, width=width, depth=1, heads=width // 64, head_dim=64, mlp=width),
        predictor=PredictorConfig(rung=rung, history=2, dropout=0.0, heads=4, mlp=width, head_hidden=width, rank=4),
    )
    model = WorldModel(config, 4)
    initialize(model, seed)
    return model


def test_initialization_is_keyed_and_scaled():
    a, b, c = small(128, "mlp-lti"), small(128, "mlp-lti"), small(128, "mlp-lti", seed=1)
    for (name, p), q, r in zip(a.named_parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(p, q)
        if p.ndim == 2 and "norm" not in name:
            assert not torch.equal(p, r)
    rows = {r.name: r for r in schema(a)}
    w = rows["predictor.A.1.weight"].parameter
    assert w.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert rows["encoder.vit.position"].parameter.std().item() == pytest.approx(0.02, rel=0.15)
    lti = small(128, "lti")
    assert torch.equal(lti.predictor.A[0].weight, torch.eye(128))


def activation_updates(width, rung, mup, steps=2, lr=2e-3):
    """RMS of the change of every Linear's output on one fixed batch after a few Adam steps."""
    model = small(width, rung)
    optim = build(model, OptimConfig(name="adam", lr=lr, mup=mup))
    g = torch.Generator().manual_seed(7)
    frames = torch.randint(0, 256, (8, 3, 3, 8, 8), generator=g, dtype=torch.uint8)
    actions, target = torch.randn(8, 2, 4, generator=g), torch.randn(8, 3, 1, generator=g)
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda m, i, o, name=name: seen.__setitem__(name, o.detach().clone()))

    def loss():
        z = model.encode(frames)
        zhat = model.predict(z[:, :2], actions)
        return (zhat - z[:, 1:]).square().mean() + (z - target).square().mean()

    loss()
    before = dict(seen)
    for _ in range(steps):
        optim.zero_grad()
        loss().backward()
        optim.step()
    loss()
    return {name: (seen[name] - before[name]).square().mean().sqrt().item() for name in seen}


@pytest.mark.parametrize(("rung", "width"), [("shallow-adaln", 1024), ("mlp-ltv", 2048)])
def test_coordinate_check(rung, width):
    """From width 128: no layer's update changes by more than a factor of 2."""
    low, high = activation_updates(128, rung, mup=True), activation_updates(width, rung, mup=True)
    ratios = {name: high[name] / low[name] for name in low if low[name] > 0}
    bad = {n: round(r, 2) for n, r in ratios.items() if not 0.5 <= r <= 2.0}
    assert len(ratios) > 8 and not bad, bad


def test_coordinate_check_fails_with_the_plain_parametrization():
    low, high = activation_updates(128, "lti", mup=False), activation_updates(1024, "lti", mup=False)
    assert max(high[n] / low[n] for n in low if low[n] > 0) > 4


def test_schedules():
    assert factor("constant", 0.0, 5, 10) == 1.0
    values = [factor("cosine", 0.01, s, 1000) for s in range(1000)]
    assert values[0] == pytest.approx(0.1) and values[9] == 1.0 and values[10] == 1.0
    assert values[505] == pytest.approx(0.5, abs=1e-3) and 0 < values[-1] < 1e-5
    assert all(a >= b for a, b in zip(values[10:], values[11:], strict=False))
    assert math.isclose(factor("cosine", 0.0, 0, 1), 1.0)


def test_table_prints_name_fan_in_rate_and_init():
    line = next(x for x in table(ladder(384, "lti")).splitlines() if x.startswith("encoder.project.3.weight"))
    assert "2048" in line and "0.1875η" in line and "N(0, 0.0221²)" in line


class Recurrent(torch.nn.Module):
    """A predictor of one's own; with `mup` it says what its parameters are."""

    def __init__(self, latent, mup=None):
        super().__init__()
        self.lags, self.gru = 3, torch.nn.GRU(2 * latent, latent, batch_first=True)
        if mup is not None:
            self.mup = mup

    def forward(self, z_BKD, e_BKD):
        return self.gru(torch.cat((z_BKD, e_BKD), -1))[0]


GRU = {"gru.weight_*": "hidden", "gru.bias_*": "bias"}


def with_predictor(predictor):
    model = ladder(64, "lti1").to_empty(device="cpu")
    model.predictor = predictor
    return model


@pytest.mark.parametrize(
    "part",
    [
        Recurrent(64),
        torch.nn.MultiheadAttention(64, 4),
        torch.nn.Conv1d(64, 64, 3),
        torch.nn.Bilinear(4, 4, 4),
        torch.nn.PReLU(4),
    ],
    ids=lambda part: type(part).__name__,
)
def test_parameters_that_nobody_declared_are_refused(part):
    refused(r"μP does not know what predictor\..*declare it", schema, with_predictor(part))
    refused("μP does not know", initialize, with_predictor(part), 0)


def test_declared_parameters_follow_their_rule():
    model = with_predictor(Recurrent(64, GRU))
    rows = {r.name: r for r in schema(model)}
    assert rows["predictor.gru.weight_ih_l0"].rate == 384 / 128 and rows["predictor.gru.weight_hh_l0"].rate == 6
    assert rows["predictor.gru.bias_ih_l0"].kind == "bias"
    initialize(model, 0)
    assert model.predictor.gru.weight_hh_l0.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert not model.predictor.gru.bias_hh_l0.any()


def test_a_convolution_has_the_fan_in_of_its_whole_kernel():
    conv = torch.nn.Conv2d(8, 16, 3)
    conv.mup = {"weight": "input", "bias": "bias"}
    rows = {r.name: r for r in schema(with_predictor(conv), OptimConfig(input_lr="fan_in"))}
    assert rows["predictor.weight"].fan_in == 72 and rows["predictor.weight"].rate == pytest.approx(384 / 72)


@pytest.mark.parametrize(
    ("mup", "words"), [({**GRU, "gru.bias_*": "biass"}, "did you mean 'bias'"), ({"gru.*": "hidden"}, "for matrices")]
)
def test_a_wrong_declaration_is_one_sentence(mup, words):
    refused(words, schema, with_predictor(Recurrent(64, mup)))


def test_the_innermost_declaration_stands():
    outer = torch.nn.Sequential(Recurrent(64, GRU))
    outer.mup = {"*": "embedding"}
    rows = {r.name: r.kind for r in schema(with_predictor(outer))}
    assert rows["predictor.0.gru.weight_ih_l0"] == "hidden"
