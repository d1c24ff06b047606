"""The atlas of units on codes with a known answer."""

import base64

import numpy as np
import pytest

from lpwm.interpret.units import SHOWN, atlas


def bytes_of(text, *shape):
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape)


def test_tiles_and_frames_are_means_by_place_sorted_by_zone():
    draw = np.random.default_rng(0)
    place = draw.uniform(0, 1, (4000, 2))
    zone = (place[:, 1] >= 0.5) * 2 + (place[:, 0] >= 0.5)
    order = draw.permutation(8)
    z = np.stack([(zone == u % 4) * (1.0 + u // 4) for u in range(8)], 1)[:, order]
    values = {"x": place[:, 0], "y": place[:, 1]}
    made = atlas(z, values, "x", "y", zone)
    n = made.side
    assert n == 16 and made.zoned and made.empty == ()
    assert made.prefers == (0, 0, 1, 1, 2, 2, 3, 3)  # units that prefer a zone stand together, the strongest first
    assert [order[u] for u in made.numbers] == [4, 0, 5, 1, 6, 2, 7, 3]
    maps = bytes_of(made.maps, 8, n, n).astype(float)
    for tile, k, size in zip(maps, made.prefers, (2, 1) * 4, strict=True):
        inside = np.zeros((n, n), bool)
        inside[n // 2 * (k // 2) : n // 2 * (k // 2) + n // 2, n // 2 * (k % 2) : n // 2 * (k % 2) + n // 2] = True
        middle = inside.copy()
        middle[[0, n // 2 - 1, n // 2, n - 1]] = middle[:, [0, n // 2 - 1, n // 2, n - 1]] = False
        assert np.abs(tile[middle] - 127.5 * size).max() <= 1 and tile[~inside].mean() < 6
    frames = bytes_of(made.frames, len(made.zones), 8)
    assert list(made.zones) == sorted(made.zones) and len(made.zones) == 160
    np.testing.assert_array_equal(frames > 0, np.array(made.zones)[:, None] == np.array(made.prefers))
    assert made.on == pytest.approx([float((zone == k).mean()) for k in made.prefers], abs=1e-3)


def test_without_zones_the_quarters_of_the_plane_stand_in_and_wide_codes_are_thinned():
    draw = np.random.default_rng(1)
    values = {"a": draw.normal(size=300), "b": draw.normal(size=300)}
    z = np.maximum(draw.normal(size=(300, 400)), 0)
    z[:, :5] = 0
    made = atlas(z, values, "a", "b")
    assert not made.zoned and set(made.zones) == {0, 1, 2, 3} and len(made.numbers) == SHOWN
    assert made.side == 6 and made.on[-1] == 0 and made.numbers[-1] < 5  # units that are never on come last


def test_on_means_above_zero_in_a_sparse_code_and_well_above_it_in_a_dense_one():
    draw = np.random.default_rng(2)
    z, values = draw.uniform(0.5, 1, (400, 4)), {"a": draw.uniform(size=400), "b": draw.uniform(size=400)}
    z[:100, 0] = 1e-3
    z[100:200, 0] = 0
    sparse, dense = (atlas(code, values, "a", "b") for code in (z, z * [1, -1, 1, -1]))
    assert sparse.on[sparse.numbers.index(0)] == 0.75 and dense.on[dense.numbers.index(0)] == 0.5
