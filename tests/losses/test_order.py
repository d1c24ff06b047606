"""Rows by rank: against Python's own sort, on the CPU, on CUDA, and the kernel in Triton's interpreter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpwm.core.rng import generator
from lpwm.losses.order import match_rows, sort_rows


def matched(x, target):
    """One row, spelled out."""
    out = [0.0] * len(x)
    for rank, i in enumerate(sorted(range(len(x)), key=lambda i: x[i])):
        out[i] = target[rank]
    return out


distinct = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=70, unique=True)


@given(distinct, st.integers(0, 2**31))
def test_the_ith_smallest_gets_the_ith_of_the_target(row, seed):
    x = torch.tensor([row, row[::-1]])
    target = torch.randn(x.shape, generator=generator(seed)).sort(-1).values
    for given_, to, found in zip(x.tolist(), target.tolist(), match_rows(x, target).tolist(), strict=True):
        assert found == matched(given_, to)


@given(distinct)
def test_sorted_rows_are_sorted(row):
    assert sort_rows(torch.tensor([row])).tolist() == [sorted(row)]


def test_a_strided_target_is_read_as_it_stands():
    x, wide = torch.randn(2, 3, 8, generator=generator(0)), torch.arange(2 * 6 * 8.0).view(2, 6, 8)
    found = match_rows(x, wide[:, ::2])
    assert found.is_contiguous()
    assert torch.equal(found, match_rows(x, wide[:, ::2].contiguous()))


def test_equals_share_their_partners():
    """Any pairing of equals will do, but each partner is given once."""
    found = match_rows(torch.tensor([[2.0, 0.0, 0.0, 1.0]]), torch.tensor([[5.0, 6.0, 7.0, 8.0]]))[0]
    assert found[0] == 8 and found[3] == 7 and sorted(found[1:3].tolist()) == [5, 6]


INTERPRETED = """
import torch
from lpwm.kernels import order as K
from lpwm.core.rng import generator

for n in (1, 2, 7, 16, 33, 64, 100, 128, 250):
    x = torch.randn(3, 2, n, generator=generator(n))
    x[0, 0, : n // 2] = x[0, 0, 0]  # equals: the first is less
    target = torch.randn(3, 2, n, generator=generator("target", n)).sort(-1).values
    order = x.argsort(dim=-1, stable=True)
    assert torch.equal(K.match_rows(x, target), torch.empty_like(x).scatter_(-1, order, target)), n
    assert torch.equal(K.sort_rows(x), x.sort(-1).values), n
assert K.sort_rows(torch.empty(0, 5)).shape == (0, 5)
print("right")
"""


def test_the_kernel_in_the_interpreter(interpreted):
    interpreted(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("n", (1, 31, 64, 100, 128, 256, 257, 1000))
def test_on_cuda(n):
    x = torch.randn(4, 5, n, generator=generator(n)).cuda()
    target = torch.randn(4, 5, n, generator=generator("target", n)).sort(-1).values.cuda()
    assert torch.equal(match_rows(x, target).cpu(), match_rows(x.cpu(), target.cpu()))
    assert torch.equal(sort_rows(x).cpu(), sort_rows(x.cpu()))
    x[0, 0, n // 2] = float("nan")  # a dead run is not a crash
    match_rows(x, target)
    torch.cuda.synchronize()
