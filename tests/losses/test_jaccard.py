"""Temporal Jaccard: its ends, its formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses.jaccard import temporal_jaccard


def codes(B, T, D, seed=0):
    return torch.randn(B, T, D, generator=generator(seed)).relu()


def test_no_change_costs_nothing_and_disjoint_or_empty_supports_cost_one():
    disjoint = torch.zeros(3, 4, 8)
    disjoint[:, 0::2, :4] = 0.7
    disjoint[:, 1::2, 4:] = 1.3
    still = (codes(4, 1, 16) + 0.01).expand(4, 5, 16)
    assert [float(temporal_jaccard(z)) for z in (still, disjoint, torch.zeros(2, 3, 4))] == [0.0, 1.0, 1.0]


@settings(max_examples=25)
@given(
    B=st.integers(1, 4),
    T=st.integers(2, 5),
    D=st.integers(1, 7),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_equals_numpy(B, T, D, dtype):
    z = codes(B, T, D, seed=B + 10 * T + 100 * D).to(dtype)
    x = z.double().numpy()
    want = np.mean(
        [
            1 - np.minimum(x[b, t], x[b, t + 1]).sum() / (np.maximum(x[b, t], x[b, t + 1]).sum() + 1e-8)
            for b in range(B)
            for t in range(T - 1)
        ]
    )
    found = temporal_jaccard(z)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float(found) == pytest.approx(want, rel=1e-5, abs=1e-6)
    assert 0 <= float(found) <= 1


def test_gradcheck():
    z = codes(3, 3, 5).double()
    z = (z + torch.rand(3, 3, 5, generator=generator(1)).double()).requires_grad_()  # no ties
    assert torch.autograd.gradcheck(temporal_jaccard, (z,))


def test_float32_inside_autocast():
    z = codes(4, 3, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = temporal_jaccard(z)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, temporal_jaccard(z))


def test_one_frame_is_refused():
    with pytest.raises(UserError, match="at least 2 frames"):
        temporal_jaccard(codes(2, 1, 3))
