"""The one-hot linearization: exact codes, one 1 a column, errors below their bounds on 10,000 random systems."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.cli import main
from lpwm.theory import SMOOTH, Grid, OneHot, measure, sine_family, study
from lpwm.theory.bounds import sine_step

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
        result = measure(model, f, x, [a] * STEPS, L[a])
        bound = [epsilon * sum(L[a] ** k for k in range(h + 1)) for h in range(STEPS + 1)]
        worst = np.array([result.error_HM[h].max() for h in range(STEPS + 1)])
        assert (worst <= np.array(bound) * (1 + 1e-9) + 1e-9 * side).all()
        assert result.bound_H == pytest.approx(bound)
        assert bound[1] == pytest.approx((L[a] + 1) * epsilon)


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
    result = measure(model, jump, x, [0], 0.25)
    assert not result.holds and result.worst_H[1] > 0.45
    assert 0 < result.beyond_H[1] < 1 / 9


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
        z = model.codes(x)
        assert (z.toarray().sum(0) == 1).all()
        after = (P @ z).toarray()
        assert np.array_equal(after.argmax(0), model.step(model.encode(x), a))
        centers = model.decode(np.arange(model.cells))  # column i by hand: where the center of cell i goes
        goes = np.minimum(np.floor(s.f(centers, s.actions_AK[a]) * 6), 5) @ 6 ** np.arange(s.d - 1, -1, -1)
        assert np.array_equal(dense.argmax(0), goes)


def test_the_command_prints_a_table_or_json(capsys):
    few = ["paper", "theory", "--sizes", "3", "--states", "3000"]
    assert main(few) == 0
    text = capsys.readouterr().out
    assert "sine 3-D" in text and "BROKEN" not in text and max(map(len, text.splitlines())) <= 80
    assert main([*few, "--json"]) == 0
    systems = json.loads(capsys.readouterr().out)["systems"]
    assert [s["d"] for s in systems] == [1, 2, 2, 3] and all(len(s["rows"]) == 3 for s in systems)


def test_a_broken_slope_or_bound_is_said_and_exits_with_1(capsys, monkeypatch):
    honest = study.converge

    def broken(*args):
        made = honest(*args)
        return replace(made, slope_mean=-0.7, rows=(replace(made.rows[0], holds=False), *made.rows[1:]))

    monkeypatch.setattr(study, "converge", broken)
    assert main(["theory", "--sizes", "2", "--states", "500"]) == 1
    told = capsys.readouterr().err
    assert "not within 10 % of −1/2" in told and "above its bound" in told
