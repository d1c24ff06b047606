"""The proposition on Piecewise, which breaks its assumption at zone borders."""

import json

import numpy as np
import pytest
import torch

from lpwm.theory import Grid, OneHot
from lpwm.worlds.piecewise import Piecewise
from results.tool import theory
from results.tool.__main__ import main

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
    assert "sine 3-D" in text and "2×2 zones, even grids" in text and max(map(len, text.splitlines())) <= 80
    result = json.loads((out / "theory.json").read_text())
    assert result["kind"] == theory.KIND and len(result["systems"][0]["rows"]) == 3
    assert json.loads(json.dumps(theory.TheoryStudy.from_json(result).to_json())) == result
    made = sorted(p.name for p in out.iterdir())
    assert made == ["theory-borders.pdf", "theory-borders.png", "theory-slopes.pdf", "theory-slopes.png", "theory.json"]
    assert all((out / name).stat().st_size > 5000 for name in made)
