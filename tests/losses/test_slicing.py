"""Slices: unit, uniform, coordinate, dealt to ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.errors import UserError
from lpwm.losses.slicing import check_slices, draw_slices, share, share_size
from lpwm.rng import generator


@settings(max_examples=30)
@given(slices=st.integers(1, 40), dim=st.integers(1, 12), fraction=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_slices_are_unit_and_coordinates_are_dealt_evenly(slices, dim, fraction):
    w_PD = draw_slices(slices, dim, fraction, generator(3))
    assert w_PD.shape == (slices, dim) and w_PD.dtype == torch.float32
    assert torch.allclose(w_PD.norm(dim=1), torch.ones(slices), atol=1e-6)
    n_axis = round(fraction * slices)
    axis_PD = w_PD[:n_axis]
    assert bool(((axis_PD == 0) | (axis_PD == 1)).all())
    if n_axis:
        used = axis_PD.sum(0)
        assert used.max() - used.min() <= 1
    if dim > 1:
        assert bool((w_PD[n_axis:].abs().max(dim=1).values < 1).all())


def test_uniform_slices_have_the_sphere_s_moments():
    D = 6
    w_PD = draw_slices(40_000, D, 0.0, generator(4)).double()
    assert torch.allclose(w_PD.mean(0), torch.zeros(D, dtype=torch.float64), atol=0.01)
    assert torch.allclose(w_PD.T @ w_PD / len(w_PD), torch.eye(D, dtype=torch.float64) / D, atol=0.005)
    assert torch.allclose(
        w_PD.pow(4).mean(0), torch.full((D,), 3 / (D * (D + 2)), dtype=torch.float64), rtol=0.05
    )


def test_coordinates_are_in_random_order():
    first = [int(draw_slices(1, 100, 1.0, generator(i)).argmax()) for i in range(20)]
    assert len(set(first)) > 10


@settings(max_examples=30)
@given(slices=st.integers(1, 30), ranks=st.integers(1, 7))
def test_shares_partition_the_slices(slices, ranks):
    w = torch.arange(slices)[:, None]
    parts = [share(w, slices, r, ranks) for r in range(ranks)]
    assert sorted(torch.cat(parts).flatten().tolist()) == list(range(slices))
    assert [len(part) for part in parts] == [share_size(slices, r, ranks) for r in range(ranks)]


def test_a_draw_of_another_size_is_refused():
    with pytest.raises(UserError, match="the draw has 5 slices"):
        share(torch.zeros(5, 2), 8, 0, 1)


def test_bad_settings_are_one_sentence():
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match="axis_fraction must lie in"):
            check_slices(8, fraction)
    with pytest.raises(UserError, match="slices must be at least 1"):
        check_slices(0, 0.0)
