"""The one-hot linearization: exact codes, one 1 a column, errors below their bounds on 10,000 random systems."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm.cli import main
from lpwm.report import figures, theory
from lpwm.theory import SMOOTH, Grid, OneHot, measure, sine_family
from lpwm.theory.bounds import sine_step
from lpwm.worlds.piecewise import Piecewise

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
        assert np.array_equal(model.torch_matrix(a).to_dense().numpy(), dense)
        z = model.codes(x)
        assert (z.toarray().sum(0) == 1).all()
        after = (P @ z).toarray()
        assert np.array_equal(after.argmax(0), model.step(model.encode(x), a))
        assert np.array_equal(torch.mv(model.torch_matrix(a), torch.from_numpy(z.toarray()[:, 0])).numpy(), after[:, 0])
        centers = model.decode(np.arange(model.cells))  # column i by hand: where the center of cell i goes
        goes = np.minimum(np.floor(s.f(centers, s.actions_AK[a]) * 6), 5) @ 6 ** np.arange(s.d - 1, -1, -1)
        assert np.array_equal(dense.argmax(0), goes)


QUICK = theory.StudyConfig(states=4000, horizon=3, sequences=2)


def piecewise(g, sizes):
    return theory.borders("x", Piecewise(g=g), sizes, QUICK).rows


def test_the_box_is_closed_under_piecewise_and_its_edge_is_reached():
    draw = torch.Generator().manual_seed(0)
    x = 14 + 195 * torch.rand(5000, 2, generator=draw)
    after = Piecewise().step(x, 4 * torch.rand(5000, 2, generator=draw) - 2)
    assert after.min() == theory.LOW and after.max() == theory.HIGH


def test_worst_errors_stay_at_the_jump_while_the_share_of_cut_cells_shrinks():
    rows = piecewise(2, (33, 65, 129, 257))
    jump = theory.jump_of(Piecewise())
    assert jump == pytest.approx(4.0)  # opposite pushes of length 2
    for r in rows:
        assert r.worst_whole <= r.bound * (1 + 1e-9)  # within a zone the proposition holds
        assert r.bound < r.worst_cut <= r.bound + jump
        # 2n − 1 of n² cells lie across the middle, and half of each is on the other side of its center
        assert r.cut_cells == pytest.approx((2 * r.n - 1) / r.n**2)
        assert r.cut == pytest.approx(1 / r.n, rel=0.5)
    assert rows[-1].worst_cut > jump and rows[-1].worst_whole < 1
    shares = [r.parted for r in rows]
    assert shares == sorted(shares, reverse=True) and shares[-1] > rows[-1].cut


def test_a_grid_with_edges_on_the_borders_keeps_the_one_step_bound_and_loses_it_later():
    rows = piecewise(2, (32, 128, 256))
    for r in rows:
        assert r.cut == r.cut_cells == r.beyond == 0 and r.worst_cut is None
        assert r.worst <= r.bound * (1 + 1e-9)
    assert not rows[-1].holds and rows[-1].far_beyond > 0


def test_the_error_map_is_worst_along_the_borders():
    world, grid = Piecewise(), Grid((theory.LOW,) * 2, (theory.HIGH,) * 2, 33)
    result = np.array(theory.error_map(world, 33, 99).error)
    row, col = np.unravel_index(result.argmax(), result.shape)
    assert result.max() > 2 * grid.epsilon and min(abs(row - 49), abs(col - 49)) <= 2
    model = OneHot.of(theory.step_of(world), grid, theory.ACTIONS)  # one point by hand
    x = np.array([[21 + 182 * (col + 0.5) / 99, 21 + 182 * (row + 0.5) / 99]])
    by_hand = [
        np.linalg.norm(
            model.decode(model.step(model.encode(x), a))[0]
            - world.step(torch.from_numpy(x), torch.from_numpy(action))[0].numpy()
        )
        for a, action in enumerate(theory.ACTIONS)
    ]
    assert max(by_hand) == pytest.approx(result[row, col], abs=0.006)


def test_the_command_writes_numbers_and_figures(tmp_path, capsys):
    out = tmp_path / "made"
    assert main(["theory", "--out", str(out), "--sizes", "3", "--states", "3000"]) == 0
    text = capsys.readouterr().out
    assert "sine 3-D" in text and "2×2 zones, even grids" in text and "BROKEN" not in text
    result = json.loads((out / "theory.json").read_text())
    assert result["kind"] == theory.KIND and [s["d"] for s in result["systems"]] == [1, 2, 2, 3]
    assert len(result["systems"][0]["rows"]) == 3
    again = theory.TheoryStudy.from_json(result)
    assert json.loads(json.dumps(again.to_json())) == result and max(map(len, text.splitlines())) <= 80
    made = sorted(p.name for p in out.iterdir())
    assert made == ["theory-borders.pdf", "theory-borders.png", "theory-slopes.pdf", "theory-slopes.png", "theory.json"]
    assert all((out / name).stat().st_size > 5000 for name in made)


def test_a_broken_slope_is_said_and_exits_with_1(tmp_path, capsys, monkeypatch):
    honest = theory.converge
    monkeypatch.setattr(theory, "converge", lambda *a: replace(honest(*a), slope_mean=-0.7))
    monkeypatch.setattr(figures, "save", lambda *_, **__: [])  # drawn in another test
    assert main(["theory", "--out", str(tmp_path), "--sizes", "2", "--states", "500"]) == 1
    assert "not within 10 % of −1/2" in capsys.readouterr().err
