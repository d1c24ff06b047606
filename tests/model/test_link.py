"""RepReLU is relu forwards, bit for bit, and gelu' backwards."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.model import LINKS, NONNEGATIVE
from lpwm.model.link import reprelu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_reprelu_forward_is_relu_bit_for_bit(dtype, scale):
    x = (torch.randn(200_000, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    y = reprelu(x)
    assert torch.equal(y, torch.relu(x))
    assert torch.equal(y == 0, x <= 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_are_exact_when_compiled_on_a_gpu(dtype):
    x = torch.randn(1 << 20, device="cuda", dtype=dtype, requires_grad=True)
    y = torch.compile(lambda u: reprelu(2 * u + 0.1))(x)
    y.sum().backward()
    assert (y == 0).float().mean() > 0.4 and x.grad.isfinite().all()
    with torch.no_grad():
        assert torch.equal(y > 0, torch.compile(lambda u: 2 * u + 0.1)(x) > 0)


def test_reprelu_gradient_is_that_of_gelu():
    x = torch.linspace(-4, 4, 1001, dtype=torch.float64, requires_grad=True)
    reprelu(x).sum().backward()
    # gelu(x) = x Φ(x), so gelu'(x) = Φ(x) + x φ(x)
    t = x.detach()
    phi = torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    expected = 0.5 * (1 + torch.erf(t / math.sqrt(2))) + t * phi
    torch.testing.assert_close(x.grad, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    name=st.sampled_from(sorted(LINKS)),
    seed=st.integers(0, 10**6),
)
def test_links_keep_shape_and_dtype_and_sign(shape, dtype, name, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()
    y = LINKS.get(name)(x)
    assert y.shape == x.shape and y.dtype == dtype
    if name in NONNEGATIVE:
        assert (y >= 0).all()
    y.float().sum().backward()
    assert x.grad.shape == x.shape and torch.isfinite(x.grad).all()
