"""Supports, the Jaccard index and packed bits, against sets written out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lpwm.core.errors import UserError
from lpwm.interpret import Packed, instability, jaccard, support
from lpwm.interpret.supports import cells, jaccard_map
from lpwm.worlds import Piecewise


def by_sets(a, b):
    a, b = set(np.flatnonzero(a)), set(np.flatnonzero(b))
    return len(a & b) / len(a | b) if a | b else 1.0


@given(st.integers(1, 20).flatmap(lambda d: st.tuples(arrays(bool, (5, d)), arrays(bool, (3, d)))))
@settings(max_examples=40)
def test_jaccard_is_that_of_sets(pair):
    a, b = pair
    expected = [[by_sets(x, y) for y in b] for x in a]
    assert np.array_equal(jaccard(a, b), expected)
    assert np.array_equal(instability(a), [1 - by_sets(x, y) for x, y in zip(a, a[1:], strict=False)])


def test_two_empty_supports_are_equal_and_an_empty_one_shares_nothing():
    empty, one = np.zeros((1, 4), bool), np.array([[True, False, False, False]])
    assert jaccard(empty, empty) == 1 and jaccard(empty, one) == 0


@given(arrays(bool, st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 21))))
@settings(max_examples=30)
def test_packed_bits_come_back_and_can_be_read_bit_by_bit(active):
    packed = Packed.of(active)
    assert np.array_equal(packed.unpack(), active)
    import base64

    raw, width = base64.b64decode(packed.data), packed.bytes_per_row  # as the page reads it
    rows = active.reshape(-1, active.shape[-1])
    for i, row in enumerate(rows):
        for d, on in enumerate(row):
            assert bool(raw[i * width + d // 8] >> (7 - d % 8) & 1) == on


def test_a_dense_code_has_a_sign_pattern_and_no_support():
    z = np.array([[-1.0, 0.0, 2.0]])
    assert support(z, sparse=False).tolist() == [[False, False, True]]
    with pytest.raises(UserError, match="it is dense; use its sign pattern"):
        support(z)
    with pytest.raises(UserError, match="diverged"):
        support(np.array([np.nan]))
    with pytest.raises(UserError, match="threshold"):
        jaccard(z, z)
    with pytest.raises(UserError, match="one model"):
        jaccard(np.ones((1, 2), bool), np.ones((1, 3), bool))


def test_cells_lie_in_the_arena_and_know_their_zone():
    at, states, zones = cells(Piecewise(g=2), 4)
    assert at.tolist() == [38.5, 87.5, 136.5, 185.5] and states[1].tolist() == [87.5, 38.5]
    assert zones.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    *_, zones = cells(Piecewise(g=3), 20)  # borders that do not fall between cells
    assert zones[0].tolist() == [0] * 7 + [1] * 6 + [2] * 7 and zones[7, 0] == 3


def test_maps_of_zone_coded_supports_are_the_zones(synthetic):
    made = synthetic("zone")
    for row, col in ((0, 0), (3, 17), (19, 4), (10, 10)):
        assert np.array_equal(jaccard_map(made.grid_z > 0, row, col), made.zones == made.zones[row, col])
    with pytest.raises(UserError, match="from 0 to 19"):
        jaccard_map(made.grid_z > 0, 20, 0)
