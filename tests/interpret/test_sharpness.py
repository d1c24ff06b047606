"""Sharpness: against loops over pairs, on codes whose answer is known, and what nearness alone makes of it."""

import numpy as np
import pytest

from lpwm.core.errors import UserError
from lpwm.interpret import jaccard, sharpness
from lpwm.interpret.sharpness import translations


def loops(active, zones):
    """Sharpness and the matched contrast, pair by pair."""
    n = len(zones)
    cells = [(r, c) for r in range(n) for c in range(n)]
    J = jaccard(active, active)
    gaps, matched = [], {}
    for i, a in enumerate(cells):
        same = [J[i, j] for j, b in enumerate(cells) if j != i and zones[b] == zones[a]]
        other = [J[i, j] for j, b in enumerate(cells) if zones[b] != zones[a]]
        gaps.append(np.mean(same) - np.mean(other))
        for j, b in enumerate(cells):
            if j > i:
                kind = matched.setdefault((b[0] - a[0], b[1] - a[1]), ([], []))
                kind[int(zones[a] != zones[b])].append(J[i, j])
    total = weights = 0.0
    for same, other in matched.values():
        if same and other:
            w = 1 / (1 / len(same) + 1 / len(other))
            total += w * (np.mean(same) - np.mean(other))
            weights += w
    return np.mean(gaps), total / weights


@pytest.mark.parametrize("g", [2, 3])
def test_it_is_the_mean_over_all_pairs(g):
    draw = np.random.default_rng(g)
    n = 6
    zones = np.add.outer(np.arange(n) * g // n * g, np.arange(n) * g // n)
    active = draw.random((n * n, 10)) < draw.uniform(0.2, 0.8, (g * g, 10))[zones.reshape(-1)]
    result = sharpness(active, zones, resamples=20)
    expected, matched = loops(active, zones)
    assert result.sharpness.estimate == pytest.approx(expected, abs=1e-12)
    assert result.matched == pytest.approx(matched, abs=1e-12)
    assert result.within - result.across == pytest.approx(expected, abs=1e-12)
    assert np.average([z.sharpness for z in result.zones], weights=[z.cells for z in result.zones]) == pytest.approx(
        expected
    )


def of(made, **options):
    return sharpness(made.grid_z.reshape(400, -1) > 0, made.zones, resamples=100, **options)


def test_zone_coded_supports_are_perfectly_sharp(synthetic):
    result = of(synthetic("zone"))
    assert result.sharpness.estimate == result.within == result.matched == 1 and result.across == 0
    assert result.sharpness.low == result.sharpness.high == 1  # whichever units one has
    assert all(z.sharpness == 1 for z in result.zones) and len(result.zones) == 4
    assert result.shuffled.p == 1 / 101 and result.matched_translated.p == 1 / 101 and result.translated.p is None
    assert abs(result.shuffled.mean) < 0.01 and result.translated.mean < 0.6 and result.matched_translated.high < 1


def test_zone_coded_magnitudes_leave_no_border_in_the_support(synthetic):
    result = of(synthetic("reverse"))
    assert result.sharpness.estimate == pytest.approx(0, abs=0.01) and result.within > 0.1
    # Not positive: a cell of the next zone may look more alike, as the fields repeat there.
    assert -0.05 < result.matched < 0.01


def test_chance_where_nothing_is_coded(synthetic):
    ps = []
    for seed in range(5):
        result = of(synthetic("nothing", seed))
        assert abs(result.sharpness.estimate) < 0.01 and abs(result.matched) < 0.01
        ps.append(result.shuffled.p)
    assert min(ps) > 0.01 and np.mean(ps) > 0.2


def test_nearness_alone_is_sharp_but_not_at_equal_distance():
    """Place fields on a lattice wider than the arena: overlap is a function of the displacement alone."""
    n = 20
    row, col = np.divmod(np.arange(n * n), n)
    center = np.stack(np.meshgrid(np.arange(-8, n + 8), np.arange(-8, n + 8)), -1).reshape(-1, 2)
    active = (center[:, 0] - col[:, None]) ** 2 + (center[:, 1] - row[:, None]) ** 2 <= 49
    zones = (row >= 10) * 2 + (col >= 10)
    result = sharpness(active, zones.reshape(n, n), resamples=20)
    assert result.sharpness.estimate > 0.2  # although the code knows no zones
    assert result.matched == pytest.approx(0, abs=1e-9)
    assert 0.8 < result.translated.mean / result.sharpness.estimate < 1  # borders elsewhere are nearly as sharp
    assert abs(result.matched_translated.mean) < 1e-9 and result.shuffled.high < 0.02


def test_translations_move_every_border_by_whole_cells():
    zones = np.add.outer(np.arange(12) // 6 * 2, np.arange(12) // 6)
    moved = translations(zones).reshape(-1, 12, 12)
    cuts = set()
    for labels in moved:
        down, across = np.flatnonzero(np.diff(labels[:, 0])), np.flatnonzero(np.diff(labels[0]))
        assert len(down) == len(across) == 1  # still two zones a side, each in one piece
        assert np.array_equal(np.diff(labels, axis=0).any(1).nonzero()[0], down)
        cuts.add((int(down[0]) + 1 - 6, int(across[0]) + 1 - 6))
    assert cuts == {(i, j) for i in range(-3, 4) for j in range(-3, 4)} - {(0, 0)} and len(moved) == 48
    assert len(translations(zones, limit=5)) == 5
    coarse = translations(np.add.outer(np.arange(4) // 2 * 2, np.arange(4) // 2))
    assert min(np.bincount(labels).min() for labels in coarse) == 2  # no zone of a single cell


def test_units_make_the_interval():
    """One unit of four carries the zone: without it the code says nothing, and the interval shows it."""
    zones = np.add.outer(np.arange(6) // 3 * 2, np.arange(6) // 3)
    active = np.ones((36, 4), bool)
    active[:, 0] = zones.reshape(-1) == 0
    result = sharpness(active, zones, resamples=200)
    assert result.sharpness.low == 0 < result.sharpness.estimate < result.sharpness.high


def test_what_cannot_be_compared_is_said():
    with pytest.raises(UserError, match="finer grid"):
        sharpness(np.ones((4, 3), bool), np.arange(4).reshape(2, 2))
    with pytest.raises(UserError, match="one for each cell"):
        sharpness(np.ones((3, 3), bool), np.arange(4).reshape(2, 2))
