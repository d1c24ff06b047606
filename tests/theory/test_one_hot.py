"""The one-hot linearization: exact codes, one 1 a column, errors below their bounds on 10,000 random systems."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.core.errors import UserError
from lpwm.theory import SMOOTH, Cover, Grid, OneHot, measure, rollout_bound, sine_family, slope, step_bound
from lpwm.theory.systems import sine_step

BATCH, STATES, STEPS = 100, 24, 4


def affine_box(low, high):
    """A map of the unit box as a map of another one, whose sides all have one length: L stays what it was."""
    low, side = np.array(low), high[0] - low[0]
    return lambda x, a: low + side * sine_step((x - low) / side, a)


@settings(max_examples=100)
@given(st.integers(1, 3), st.integers(1, 7), st.floats(-50, 50), st.floats(0.1, 300), st.integers(0, 10**6))
def test_bounds_hold_on_ten_thousand_random_systems(d, n, corner, side, seed):
    """100 draws of (d, n, box) × 100 random maps each: every action of the family is a system of its own."""
    low, high = (corner,) * d, (corner + side,) * d
    f, (actions, L) = affine_box(low, high), sine_family(d, BATCH, seed, gain=3.0)
    grid = Grid(low, high, n)
    model = OneHot.of(f, grid, actions)
    x = np.random.default_rng(seed).uniform(low, high, (STATES, d))
    epsilon = side * np.sqrt(d) / (2 * n)  # the paper's
    assert grid.epsilon == pytest.approx(epsilon)
    for a in range(BATCH):
        found = measure(model, f, x, [a] * STEPS, L[a])
        bound = [epsilon * sum(L[a] ** k for k in range(h + 1)) for h in range(STEPS + 1)]
        worst = np.array([found.error_HM[h].max() for h in range(STEPS + 1)])
        assert (worst <= np.array(bound) * (1 + 1e-9) + 1e-9 * side).all()
        assert found.bound_H == pytest.approx(bound)
        assert bound[1] == pytest.approx(float(step_bound(epsilon, L[a])))


def test_the_lipschitz_constants_of_the_family_are_right_and_near_tight():
    """Difference quotients of close pairs stay below L, and the random maps come near it."""
    draw, ratios = np.random.default_rng(3), []
    for d in (1, 2, 3):
        actions, L = sine_family(d, 40, 9)
        x = draw.random((400, d))
        y = np.clip(x + draw.normal(0, 1e-4, x.shape), 0, 1)
        for a, bound in zip(actions, L, strict=True):
            quotient = np.linalg.norm(sine_step(x, a) - sine_step(y, a), axis=1) / np.linalg.norm(x - y, axis=1)
            assert quotient.max() <= bound * (1 + 1e-6)
            ratios.append(quotient.max() / bound)
    assert np.median(ratios) > 0.6


def test_bounds_break_where_the_assumption_does():
    """A jump of ½ at ¾ on a grid whose cells straddle it: the bound of the smooth part must be violated."""
    jump = lambda x, _: np.where(x < 0.75, 0.25 * x, 0.5 + 0.25 * x)  # noqa: E731
    model = OneHot.of(jump, Grid.unit(1, 9), [[0.0]])
    x = np.random.default_rng(0).random((2000, 1))
    found = measure(model, jump, x, [0], 0.25)
    assert not found.holds and found.worst_H[1] > 0.45
    assert 0 < found.beyond_H[1] < 1 / 9


@pytest.mark.parametrize("name", SMOOTH)
def test_matrices_have_one_one_in_every_column_and_move_codes_exactly(name):
    s = SMOOTH[name]
    model = OneHot.of(s.f, Grid.unit(s.d, 6), s.actions_AK)
    x = np.random.default_rng(1).random((50, s.d))
    for a in range(len(s.actions_AK)):
        P = model.matrix(a)
        dense = P.toarray()
        assert dense.shape == (6**s.d, 6**s.d) and set(np.unique(dense)) <= {0.0, 1.0}
        assert (dense.sum(0) == 1).all() and P.nnz == 6**s.d
        assert np.array_equal(model.torch_matrix(a).to_dense().numpy(), dense)
        z = model.codes(x)
        assert (z.toarray().sum(0) == 1).all()
        after = (P @ z).toarray()
        assert np.array_equal(after.argmax(0), model.step(model.encode(x), a))
        assert np.array_equal(torch.mv(model.torch_matrix(a), torch.from_numpy(z.toarray()[:, 0])).numpy(), after[:, 0])
        centers = model.decode(np.arange(model.cells))  # column i by hand: where the center of cell i goes
        goes = np.minimum(np.floor(s.f(centers, s.actions_AK[a]) * 6), 5) @ 6 ** np.arange(s.d - 1, -1, -1)
        assert np.array_equal(dense.argmax(0), goes)


@pytest.mark.parametrize("name", SMOOTH)
def test_error_falls_with_slope_minus_one_over_d(name):
    s = SMOOTH[name]
    sizes = {1: (16, 32, 64, 128, 256), 2: (8, 16, 32, 64, 128), 3: (6, 10, 16, 26, 40)}[s.d]
    x = np.random.default_rng(2).random((8000, s.d))
    mean, worst = [], []
    for n in sizes:
        model = OneHot.of(s.f, Grid.unit(s.d, n), s.actions_AK)
        errors = np.stack([measure(model, s.f, x, [a], s.lipschitz).error_HM[1] for a in range(4)])
        mean.append(errors.mean())
        worst.append(errors.max())
    for error in (mean, worst):
        fitted = np.polyfit(np.log([n**s.d for n in sizes]), np.log(error), 1)[0]
        assert abs(fitted * s.d + 1) < 0.1
        assert slope([n**s.d for n in sizes], error) == pytest.approx(fitted)


@settings(max_examples=15)
@given(st.integers(2, 400), st.integers(1, 3), st.floats(0.05, 0.8), st.integers(0, 10**6))
def test_a_cover_of_a_closed_cloud(M, d, radius, seed):
    """A random map of a cloud into itself has some Lipschitz constant; the bound with it holds for every point."""
    draw = np.random.default_rng(seed)
    points = draw.random((M, d))
    goes = draw.integers(0, M, (2, M))  # two actions, any map whatever
    lookup = {p.tobytes(): i for i, p in enumerate(points)}

    def f(x, a):
        return points[[goes[int(a[0]), lookup[p.tobytes()]] for p in x]]

    cover = Cover(points, radius)
    assert cover.epsilon <= radius and {c.tobytes() for c in cover.centers_Nd} <= set(lookup)
    apart = np.linalg.norm(cover.centers_Nd[:, None] - cover.centers_Nd[None], axis=-1)
    assert (apart[~np.eye(cover.cells, dtype=bool)] > radius).all()  # greedy: no center is superfluous
    model = OneHot.of(f, cover, [[0.0], [1.0]])
    gap = np.linalg.norm(points[:, None] - points[None], axis=-1)
    L = 0.0
    for a in range(2):
        after = points[goes[a]]
        moved = np.linalg.norm(after[:, None] - after[None], axis=-1)
        L = max(L, float(np.max(np.where(gap > 0, moved / np.where(gap > 0, gap, 1), 0))))
    found = measure(model, f, points, [0, 1, 1], L)
    assert found.holds
    assert (model.matrix(1).toarray().sum(0) == 1).all()


def test_memory_is_linear_in_the_number_of_cells():
    s = SMOOTH["sine 2-D"]
    for n in (10, 100, 300):
        model = OneHot.of(s.f, Grid.unit(2, n), s.actions_AK)
        assert model.bytes == model.next_AN.nbytes == 4 * 4 * n * n
        P = model.matrix(0)
        assert P.data.nbytes + P.indices.nbytes + P.indptr.nbytes <= 12 * (n * n + 1)


def test_bounds_by_hand():
    assert rollout_bound(0.5, 2.0, 3).tolist() == [0.5, 1.5, 3.5, 7.5]
    assert float(step_bound(0.5, 3.0)) == 2.0
    assert Grid.unit(2, 4).epsilon == pytest.approx(np.sqrt(2) / 8)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Grid((0.0,), (0.0,), 3), "is empty"),
        (lambda: Grid.unit(3, 5000), "cannot be numbered: use 1 to"),
        (lambda: Grid.unit(2, 3).encode([[0.5, 1.2]]), "is outside the box"),
        (lambda: Grid.unit(2, 3).encode([[0.5, np.nan]]), "is outside the box"),
        (lambda: Grid.unit(2, 3).encode([0.5, 0.2]), "not of shape"),
        (lambda: OneHot.of(lambda x, a: x + 1, Grid.unit(1, 3), [[0.0]]), "widen the box or clamp the map"),
        (lambda: OneHot.of(lambda x, a: x, Grid.unit(1, 3), []), "actions come as"),
        (lambda: Cover(np.zeros((0, 2)), 0.1), "at least one point"),
        (lambda: Cover(np.zeros((3, 2)), 0.0), "must be above 0"),
        (lambda: Cover(np.zeros((3, 2)), 0.1).encode([[1.0, 1.0]]), "not closed under the map"),
        (lambda: slope([10], [0.1]), "at least two sizes"),
    ],
)
def test_mistakes_are_one_sentence(wrong, words):
    with pytest.raises(UserError, match=words) as found:
        wrong()
    assert str(found.value).count(". ") == 0 and str(found.value).endswith(".")
