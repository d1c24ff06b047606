"""The contract, kept by every regularizer in the dictionary."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.core.rng import generator
from lpwm.losses import REGULARIZERS, ObjectiveConfig, RDMRegConfig, SIGRegConfig
from lpwm.losses.base import Group

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
each = pytest.mark.parametrize("name", sorted(REGULARIZERS))


def build(name, slices=12, axis_fraction=0.25, nonnegative=True):
    config = ObjectiveConfig(
        regularizer=name,
        rdmreg=RDMRegConfig(slices=slices, axis_fraction=axis_fraction),
        sigreg=SIGRegConfig(slices=slices, axis_fraction=axis_fraction),
    )
    return config.build_regularizer(nonnegative)


def codes(B, T, D, *key):
    return torch.randn(B, T, D, generator=generator("codes", *key)).relu()


@each
@settings(max_examples=20)
@given(
    B=st.integers(2, 9),
    T=st.integers(1, 4),
    D=st.integers(1, 8),
    slices=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    nonnegative=st.booleans(),
)
def test_scalar_wide_finite_and_blind_to_the_order_of_the_batch(name, B, T, D, slices, dtype, nonnegative):
    r = build(name, slices, nonnegative=nonnegative)
    draw = r.draw((0, B), (B, T, D))
    assert all(x.dtype == torch.float32 and not x.requires_grad and x.is_contiguous() for x in draw)
    z = codes(B, T, D, T).to(dtype).requires_grad_()
    value = r(z, draw)
    assert value.shape == () and bool(value.isfinite()) and float(value.detach()) >= 0
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(r(z.flip(0), draw), value, rtol=1e-4, atol=1e-6)
    if name != "none":
        (gradient,) = torch.autograd.grad(value, z)
        assert gradient.dtype == dtype and bool(gradient.isfinite().all())


@each
def test_same_key_same_draw_and_nothing_global(name):
    r, before = build(name), torch.get_rng_state()
    one, again, other = (r.draw(key, (6, 3, 5)) for key in ((7, 3), (7, 3), (7, 4)))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert bool(one) == (name in ("rdmreg", "sigreg"))


@each
def test_float32_inside_bf16_autocast(name):
    r = build(name, slices=64)
    draw = r.draw((0,), (16, 3, 32))
    narrow = codes(16, 3, 32).bfloat16()
    outside, inside = narrow.float().requires_grad_(), narrow.clone().requires_grad_()
    want = r(outside, draw)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = r(inside, draw)
        again = r.draw((0,), (16, 3, 32))
    assert found.dtype == torch.float32
    assert torch.equal(found, want)
    assert all(torch.equal(a, b) for a, b in zip(draw, again, strict=True))
    if name != "none":
        want.backward()
        found.backward()
        assert torch.equal(inside.grad, outside.grad.bfloat16())


@each
@pytest.mark.parametrize(("slices", "ranks"), ((12, 2), (10, 3), (2, 4)))
@pytest.mark.parametrize("shared_draw", (False, True))
def test_the_mean_over_ranks_is_the_whole_statistic(name, slices, ranks, shared_draw):
    B, T, D = 12, 3, 6
    r = build(name, slices)
    z = codes(B, T, D).requires_grad_()
    whole_draw = r.draw((5,), (B, T, D))
    want = r(z, whole_draw)
    parts = []
    for rank in range(ranks):
        draw = r.draw((5,), (B, T, D), "cpu", Group(rank, ranks)) if shared_draw else whole_draw
        local = z[rank * (B // ranks) : (rank + 1) * (B // ranks)]
        # What a differentiable all-gather gives: everyone's codes, gradients to everyone.
        parts.append(r(local, draw, Group(rank, ranks, lambda x: z)))
    found = torch.stack(parts).mean()
    assert torch.allclose(found, want, rtol=1e-5, atol=1e-7)
    if name in ("rdmreg", "sigreg"):
        assert not torch.allclose(parts[0], parts[-1])  # each did its own share
    if name != "none":
        gradients = (torch.autograd.grad(x, z)[0] for x in (found, want))
        assert torch.allclose(*gradients, rtol=1e-4, atol=1e-7)


@each
def test_compiles_into_one_graph(name):
    r = build(name)
    draw = r.draw((0,), (8, 3, 5))
    z = codes(8, 3, 5).requires_grad_()
    compiled = torch.compile(lambda z, draw: r(z, draw), fullgraph=True, backend="aot_eager")
    want, found = r(z, draw), compiled(z, draw)
    assert torch.allclose(found, want)
    if name != "none":
        gradients = (torch.autograd.grad(x, z)[0] for x in (found, want))
        assert torch.allclose(*gradients, rtol=1e-5, atol=1e-8)
