"""Slices: unit, uniform, coordinate, dealt to ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.losses import RDMRegConfig, SIGRegConfig
from lpwm.losses.base import Group
from lpwm.losses.slicing import _InPieces, draw_slices, pieces, project, share, share_size


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
    assert torch.allclose(w_PD.pow(4).mean(0), torch.full((D,), 3 / (D * (D + 2)), dtype=torch.float64), rtol=0.05)


def test_coordinates_are_in_random_order():
    first = [int(draw_slices(1, 100, 1.0, generator(i)).argmax()) for i in range(20)]
    assert len(set(first)) > 10


@settings(max_examples=30)
@given(slices=st.integers(1, 30), ranks=st.integers(1, 7))
def test_shares_partition_the_slices(slices, ranks):
    w = torch.arange(slices)[:, None]
    parts = [share(w, slices, Group(r, ranks)) for r in range(ranks)]
    assert sorted(torch.cat(parts).flatten().tolist()) == list(range(slices))
    assert [len(part) for part in parts] == [share_size(slices, r, ranks) for r in range(ranks)]


def test_a_draw_of_another_size_is_refused():
    with pytest.raises(UserError, match="the draw has 5 slices"):
        share(torch.zeros(5, 2), 8, Group())


def test_bad_settings_are_one_sentence():
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match="axis_fraction must lie in"):
            SIGRegConfig(8, axis_fraction=fraction)
    with pytest.raises(UserError, match="slices must be at least 1"):
        RDMRegConfig(0)


@pytest.mark.parametrize("ranks", [1, 2])  # a rank's slices are every second one: not contiguous
@pytest.mark.parametrize("slices", [1, 100, 512, 768, 2048])
def test_the_gradient_in_pieces_is_the_projection_s(slices, ranks):
    slices_PD = draw_slices(slices * ranks, 5, 0.3, generator(1))[::ranks]
    z_BTD = torch.randn(3, 4, 5, generator=generator(2)).requires_grad_()
    g_TPB = torch.randn(4, slices, 3, generator=generator(3))
    inner = torch.einsum("pd,btd->tpb", slices_PD.double(), z_BTD.detach().double()).float()
    by_hand = torch.einsum("pd,tpb->btd", slices_PD.double(), g_TPB.double()).float()
    for product in (_InPieces.apply, project, torch.compile(_InPieces.apply, backend="aot_eager")):
        projected_TPB = product(slices_PD, z_BTD)
        torch.testing.assert_close(projected_TPB, inner, rtol=1e-5, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16, enabled=product == _InPieces.apply):
            (found,) = torch.autograd.grad(projected_TPB, z_BTD, g_TPB)
        torch.testing.assert_close(found, by_hand, rtol=1e-5, atol=1e-4)


@given(slices=st.integers(1, 10_000))
def test_pieces_are_equal_and_long(slices):
    S = pieces(slices)
    assert slices % S == 0 and (S == 1 or slices // S >= 256)
    assert S == 1 or S & (S - 1) == 0
    assert slices % (2 * S) or slices // (2 * S) < 256


def test_the_paper_s_slices_make_32_pieces():
    assert pieces(8192) == 32 and pieces(1024) == 4
