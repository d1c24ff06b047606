"""RDMReg against NumPy in float64, and against the numbers of the method."""

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses.distribution import RectifiedGeneralizedGaussian
from lpwm.losses.rdmreg import RDMReg, RDMRegConfig, RDMRegDraw, floor
from lpwm.losses.slicing import draw_slices


def reference(z_BTD, slices_PD, y_BTD):
    """Value and gradient, one frame and one slice at a time, in float64."""
    B, T, _ = z_BTD.shape
    value, gradient = 0.0, np.zeros_like(z_BTD)
    for t in range(T):
        for w in slices_PD:
            codes, target = z_BTD[:, t] @ w, np.sort(y_BTD[:, t] @ w)
            order = np.argsort(codes)
            value += ((codes[order] - target) ** 2).mean()
            for rank, b in enumerate(order):
                gradient[b, t] += 2 * (codes[b] - target[rank]) * w / B
    n = T * len(slices_PD)
    return value / n, gradient / n


def arrays(B=7, T=3, D=5, P=11, seed=0):
    rng = np.random.default_rng(seed)
    slices = rng.normal(size=(P, D))
    slices /= np.linalg.norm(slices, axis=1, keepdims=True)
    z, y = np.maximum(rng.normal(size=(2, B, T, D)), 0)
    return z, slices, y


def make_draw(slices_PD, y_BTD):
    target_TPB = np.sort(np.einsum("pd,btd->tpb", slices_PD, y_BTD), axis=-1)
    return RDMRegDraw(torch.from_numpy(slices_PD), torch.from_numpy(target_TPB))


def test_value_and_gradient_equal_numpy():
    z, slices, y = arrays()
    want, want_gradient = reference(z, slices, y)
    codes = torch.from_numpy(z).requires_grad_()
    value = RDMReg(RDMRegConfig(slices=11))(codes, make_draw(slices, y))
    value.backward()
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(want, rel=1e-12)
    assert np.allclose(codes.grad.numpy(), want_gradient, atol=1e-12)


def test_the_draw_is_the_sorted_projection_of_fresh_target_samples():
    B, T, D, P = 6, 3, 8, 20
    r = RDMReg(RDMRegConfig(slices=P, p=1.5, mu=-0.3, axis_fraction=0.25))
    draw = r.draw((1, 2), (B, T, D))
    g = generator("rdmreg", 1, 2)
    slices_PD = draw_slices(P, D, 0.25, g)
    y_BTD = r.target.sample((B, T, D), g)
    want = np.sort(np.einsum("pd,btd->tpb", slices_PD.double().numpy(), y_BTD.double().numpy()), axis=-1)
    assert torch.equal(draw.slices_PD, slices_PD)
    assert np.allclose(draw.target_TPB.numpy(), want, atol=1e-5)
    assert len({float(row) for row in draw.target_TPB[:, -1, -1]}) == T  # fresh samples for every frame

    codes = r.target.sample((B, T, D), generator(9))
    value, _ = reference(codes.double().numpy(), slices_PD.double().numpy(), y_BTD.double().numpy())
    assert float(r(codes, draw)) == pytest.approx(value, rel=1e-4)


def test_gradcheck():
    z, slices, y = arrays(B=4, T=2, D=3, P=5, seed=1)
    codes = torch.from_numpy(z + 0.1 * np.random.default_rng(2).normal(size=z.shape)).requires_grad_()
    r, draw = RDMReg(RDMRegConfig(slices=5)), make_draw(slices, y)
    assert torch.autograd.gradcheck(lambda c: r(c, draw), (codes,))


def test_codes_that_are_the_target_samples_cost_nothing():
    r = RDMReg(RDMRegConfig(slices=16))
    y_BTD = r.target.sample((8, 2, 4), generator(5))
    draw = RDMRegDraw(
        slices := draw_slices(16, 4, 0.0, generator(6)), torch.matmul(slices, y_BTD.permute(1, 2, 0)).sort(-1).values
    )
    assert float(r(y_BTD.flip(0), draw)) < 1e-12


# method.md, §2: (config, non-negative link, B, D, floor, cost of a dead code).
TABLE = [
    (RDMRegConfig(), True, 64, 384, 0.0315, 0.50),
    (RDMRegConfig(), True, 128, 384, 0.0168, 0.50),
    (RDMRegConfig(), True, 256, 384, 0.0088, 0.50),
    (RDMRegConfig(), True, 512, 384, 0.0046, 0.50),
    (RDMRegConfig(p=2.0), False, 64, 384, 0.082, 1.0),
    (RDMRegConfig(p=2.0), False, 128, 384, 0.044, 1.0),
    (RDMRegConfig(p=2.0), False, 256, 384, 0.0227, 1.0),
    (RDMRegConfig(p=2.0), False, 512, 384, 0.0119, 1.0),
    (RDMRegConfig(mu=-1.0), True, 128, 384, 0.0056, 0.122),
    (RDMRegConfig(mu=-2.0), True, 128, 384, 0.0019, 0.030),
    (RDMRegConfig(rms_norm=True), True, 128, 192, 0.034, 1.0),
]


@pytest.mark.parametrize(("config", "nonnegative", "batch", "dim", "match", "dead"), TABLE)
def test_floors_and_dead_codes(config, nonnegative, batch, dim, match, dead):
    found = floor(config, batch, dim, (0,), nonnegative, repeats=8)
    assert found.match == pytest.approx(match, rel=0.1)
    assert found.dead == pytest.approx(dead, rel=0.1)
    few = RDMReg(RDMRegConfig(256, config.p, config.mu, config.rms_norm), nonnegative)
    measured = float(few(torch.zeros(batch, 4, dim), few.draw((1,), (batch, 4, dim))))
    assert measured == pytest.approx(dead, rel=0.1)


def test_a_dead_code_costs_the_second_moment_on_every_kind_of_slice():
    for fraction in (0.0, 0.5, 1.0):
        r = RDMReg(RDMRegConfig(slices=512, p=1.5, mu=0.5, axis_fraction=fraction))
        measured = float(r(torch.zeros(64, 32, 16), r.draw((0,), (64, 32, 16))))
        assert measured == pytest.approx(r.target.second_moment, rel=0.03)
        assert floor(r.config, 64, 16, (0,)).dead == r.target.second_moment


def match_and_gaussian(dim, axis_fraction, repeats):
    """The statistic of target samples, and of a Gaussian with the target's mean and covariance; B = 128."""
    r = RDMReg(RDMRegConfig(slices=256, axis_fraction=axis_fraction))
    gaussian = RectifiedGeneralizedGaussian(2.0, 0.0, rectify=False)
    values = []
    for i in range(repeats):
        draw = r.draw((i,), (128, 4, dim))
        y = r.target.sample((128, 4, dim), generator("y", i))
        n = gaussian.sample((128, 4, dim), generator("n", i)) * r.target.variance**0.5 + r.target.mean
        values.append((float(r(y, draw)), float(r(n, draw))))
    return np.mean(values, axis=0)


@pytest.mark.parametrize(
    ("dim", "match", "gaussian", "repeats"),
    [
        (8, 0.028, 0.041, 64),
        (64, 0.0188, 0.0183, 32),
        (192, 0.0172, 0.0169, 16),
        (384, 0.0168, 0.0166, 8),
        (2048, 0.0165, 0.0164, 2),
    ],
)
def test_uniform_slices_are_nearly_blind_to_shape(dim, match, gaussian, repeats):
    found = match_and_gaussian(dim, 0.0, repeats)
    assert found[0] == pytest.approx(match, rel=0.1)
    assert found[1] == pytest.approx(gaussian, rel=0.1)
    if dim == 192:
        assert found[1] / found[0] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("dim", (64, 192))
def test_coordinate_slices_see_shape(dim):
    match, gaussian = match_and_gaussian(dim, 1.0, 4)
    assert gaussian / match > 3
    assert match == pytest.approx(0.041, rel=0.1)
    assert gaussian == pytest.approx(0.166, rel=0.1)


def test_descending_the_gradient_reaches_the_floor():
    config = RDMRegConfig(slices=256)
    r = RDMReg(config)
    z = torch.zeros(64, 1, 16).normal_(generator=generator(0)).mul_(0.1).requires_grad_()
    for step in range(150):
        value = r(z, r.draw((step,), (64, 1, 16)))
        (gradient,) = torch.autograd.grad(value, z)
        z = (z - 64 * 16 * 0.2 * gradient).detach().requires_grad_()
    bottom = floor(config, 64, 16, (0,)).match
    last = np.mean([float(r(z, r.draw((1000 + i,), (64, 1, 16))).detach()) for i in range(20)])
    assert last < 1.3 * bottom
    assert float(z.detach().mean()) == pytest.approx(r.target.mean, rel=0.15)


def test_config_errors_are_one_sentence():
    for kwargs, words in (
        ({"p": 0.0}, "shape p"),
        ({"p": -1.0}, "shape p"),
        ({"slices": 0}, "slices must be"),
        ({"axis_fraction": 1.5}, "axis_fraction must"),
        ({"mu": -40.0, "rms_norm": True}, "raise mu"),
    ):
        with pytest.raises(UserError, match=words):
            RDMRegConfig(**kwargs)


def test_a_draw_for_another_batch_is_refused():
    r = RDMReg(RDMRegConfig(slices=4))
    with pytest.raises(UserError, match="draw for the global batch"):
        r(torch.zeros(8, 2, 3), r.draw((0,), (16, 2, 3)))
