"""VICReg against NumPy."""

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.losses.vicreg import VICReg, VICRegConfig


def reference(z_BTD, w_v, w_c):
    pooled = z_BTD.reshape(-1, z_BTD.shape[-1])
    D = pooled.shape[1]
    C = np.atleast_2d(np.cov(pooled, rowvar=False))
    hinge = np.mean([max(0.0, 1 - np.sqrt(C[d, d] + 1e-4)) for d in range(D)])
    squares = [C[d, e] ** 2 for d in range(D) for e in range(D) if d != e]
    return w_v * hinge + w_c * (np.mean(squares) if squares else 0.0)


@pytest.mark.parametrize("shape", ((6, 3, 5), (2, 1, 4), (5, 2, 1)))
@pytest.mark.parametrize(("w_v", "w_c"), ((1.0, 1.0), (2.5, 0.0), (0.0, 3.0)))
def test_value_equals_numpy(shape, w_v, w_c):
    # Deviations on both sides of 1, so that the hinge is open for some units and shut for others.
    z = np.random.default_rng(0).normal(size=shape) * np.linspace(0.3, 2.0, shape[-1]) + 4.0
    z[..., -1] += 0.7 * z[..., 0]
    found = VICReg(VICRegConfig(w_v, w_c))(torch.from_numpy(z))
    assert float(found) == pytest.approx(reference(z, w_v, w_c), rel=1e-10, abs=1e-15)


def test_gradcheck():
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 2, 3)) * 0.5).requires_grad_()
    assert torch.autograd.gradcheck(VICReg(VICRegConfig(1.3, 0.7)), (z,))


def test_a_collapsed_code_costs_the_whole_hinge():
    assert float(VICReg(VICRegConfig())(torch.full((8, 4, 6), 3.0))) == pytest.approx(1 - 0.01)


def test_errors_are_one_sentence():
    for name in ("variance", "covariance"):
        with pytest.raises(UserError, match=f"{name} weight must not be negative"):
            VICRegConfig(**{name: -1.0})
    with pytest.raises(UserError, match="two codes"):
        VICReg(VICRegConfig())(torch.zeros(1, 1, 3))
