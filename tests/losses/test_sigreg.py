"""SIGReg against NumPy, and its calibration at N(0, I)."""

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses.sigreg import SIGReg, SIGRegConfig, SIGRegDraw


def reference(z_BTD, slices_PD):
    """Epps–Pulley by complex exponentials over the symmetric grid [−3, 3] and the plain trapezoid rule."""
    B, T, _ = z_BTD.shape
    tau = np.linspace(-3, 3, 33)
    normal = np.exp(-(tau**2) / 2)
    values = []
    for t in range(T):
        for w in slices_PD:
            empirical = np.exp(1j * np.outer(tau, z_BTD[:, t] @ w)).mean(axis=1)
            values.append(B * np.trapezoid(np.abs(empirical - normal) ** 2 * normal, tau))
    return np.mean(values)


def arrays(B=9, T=3, D=5, P=6):
    rng = np.random.default_rng(0)
    slices = rng.normal(size=(P, D))
    slices /= np.linalg.norm(slices, axis=1, keepdims=True)
    return rng.normal(size=(B, T, D)) * 1.5 + 0.3, slices


def test_value_equals_numpy():
    z, slices = arrays()
    draw = SIGRegDraw(torch.from_numpy(slices))
    found = SIGReg(SIGRegConfig(slices=6))(torch.from_numpy(z), draw)
    assert float(found) == pytest.approx(reference(z, slices), rel=1e-12)
    narrow = SIGReg(SIGRegConfig(slices=6))(torch.from_numpy(z).float(), draw)
    assert narrow.dtype == torch.float32
    assert float(narrow) == pytest.approx(reference(z, slices), rel=1e-5)


def test_gradcheck():
    z, slices = arrays(B=4, T=2, D=3, P=5)
    codes = torch.from_numpy(z).requires_grad_()
    r = SIGReg(SIGRegConfig(slices=5))
    assert torch.autograd.gradcheck(lambda c: r(c, SIGRegDraw(torch.from_numpy(slices))), (codes,))


def test_expected_value_under_the_null():
    """E|φ̂−φ|² = (1−φ²)/B for B independent N(0,1), hence ∫(1−e^{−τ²})e^{−τ²/2} over [−3, 3], whatever B."""
    tau = np.linspace(-3, 3, 20_001)
    want = np.trapezoid((1 - np.exp(-(tau**2))) * np.exp(-(tau**2) / 2), tau)
    r = SIGReg(SIGRegConfig(slices=256))
    for B in (32, 128):
        z = torch.randn(B, 16, 64, generator=generator(B))
        assert float(r(z, r.draw((B,), (B, 16, 64)))) == pytest.approx(want, rel=0.05)


def test_errors_are_one_sentence():
    for kwargs, words in (
        ({"slices": 0}, "slices"),
        ({"knots": 1}, "knots"),
        ({"reach": 0.0}, "reach"),
        ({"axis_fraction": -1.0}, "axis_fraction"),
    ):
        with pytest.raises(UserError, match=words):
            SIGRegConfig(**kwargs)
    r = SIGReg(SIGRegConfig(slices=4))
    with pytest.raises(UserError, match="draw again"):
        r(torch.zeros(8, 2, 3), r.draw((0,), (8, 2, 5)))
