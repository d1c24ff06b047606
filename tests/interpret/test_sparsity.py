"""The sparsity of runs: numbers by hand, the paper's arrangement, the command, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lpwm.cli import main
from lpwm.core.errors import UserError
from lpwm.interpret import Sparsity, sparsity
from lpwm.interpret.sparsity import arrange, numbers, table
from lpwm.recipes import dense, tiny
from lpwm.train import Run, load


def base(steps=25, seed=0, axis=0.0):
    config = tiny()
    rdmreg = replace(config.objective.rdmreg, p=1.0, mu=0.0, axis_fraction=axis)
    return replace(
        config,
        data=replace(config.data, episodes=40, holdout=0.3),
        objective=replace(config.objective, rdmreg=rdmreg),
        train=replace(config.train, steps=steps, seed=seed, stop_dead=False),
    )


def trained(config, root, name):
    run = Run.create(config, root, name)
    run.train(torch.device("cpu"), console=False)
    return run.folder


@pytest.fixture(scope="module")
def folders(root):
    """Two seeds with plain slices, two with coordinate slices."""
    return [trained(base(25, seed, axis), root, f"axis{axis:g}") for axis in (0.0, 0.25) for seed in (0, 1)]


def test_sparsity_of_runs_in_the_paper_s_arrangement(folders):
    results = [sparsity(load(f), frames=60) for f in folders]
    one = results[0]
    record = json.loads(json.dumps(one.to_json(), allow_nan=False))
    assert Sparsity.from_json(record).to_json() == record
    assert one.target.active_fraction == pytest.approx(0.5) and one.target.at_least == pytest.approx(0.25)
    fraction = one.active_fraction
    assert fraction.low <= fraction.estimate <= fraction.high
    assert np.mean(one.activity) == pytest.approx(fraction.estimate, abs=1e-4)
    assert one.dead_units == sum(a == 0 for a in one.activity) and len(one.activity) == 16
    arranged = arrange(results)
    assert len(arranged) == 2  # plain and coordinate slices are not pooled
    group = arranged[0]
    assert group.widths == (16,) and [r.rung for r in group.rows] == ["mlp-lti"]
    cell = group.rows[0].cells[0]
    assert cell.estimate == pytest.approx(np.mean([r.active_fraction.estimate for r in results[:2]]))
    assert cell.unit == "checkpoints" and len(cell.runs) == 2 and 0 <= cell.low <= cell.high <= 1
    text = table(arranged)
    assert "MLP∘LTI" in text and "D = 16" in text and max(map(len, text.splitlines())) <= 80
    assert "the target's is 0.500, its moments allow at least 0.250" in text


def test_rungs_from_rich_to_poor_and_widths_in_order(folders):
    one = sparsity(load(folders[0]), frames=60)

    def other(rung, D):
        return replace(one, rung=rung, run=replace(one.run, latent=D, hash=f"{rung}{D}"))

    (group,) = arrange([other("lti1", 768), other("my-gru", 768), other("deep-adaln", 384), other("lti1", 384)])
    assert [r.title for r in group.rows] == ["Deep-AdaLN(k)", "LTI(1)", "my-gru"] and group.widths == (384, 768)
    assert group.rows[0].cells[1] is None and "–" in table([group])
    with pytest.raises(UserError, match="given twice"):
        arrange([one, one])


def test_numbers_by_hand():
    class E:
        def __init__(self, z):
            self.z_TD = np.array(z, dtype=np.float32)

        def active_TD(self):
            return self.z_TD > 0

    result = numbers([E([[1, 0, 0, 2], [1, 0, 0, 0]]), E([[1, 0, 3, 0]])])
    assert result["active_fraction"].estimate == pytest.approx(5 / 12)
    assert (result["dead_units"], result["always_on_units"], result["units_on"]) == (1, 1, (1, 1.5, 2, 2, 2))
    assert result["at_least"] == pytest.approx((8 / 12) ** 2 / (16 / 12)) and result["at_least"] < 5 / 12


def test_the_command_tells_sparsity_and_the_report_shows_it(folders, tmp_path, call, capsys):
    status, out, err = call("--what", "sparsity", *folders, "--frames", 60)
    assert status == 0 and "active fraction, piecewise" in out and "wrote " in err
    (kept,) = folders[0].glob("interpret/sparsity-*.json")
    assert len(json.loads(kept.read_text())["readings"]) == 4
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    status = main(["report", str(folders[0]), str(folders[1]), "--out", str(page), "--figures", str(figures), "--json"])
    made = json.loads(capsys.readouterr().out)
    assert status == 0 and made["readings"] == ["lpwm sparsity"] * 2  # of the two runs given
    text = page.read_text()
    assert 'id="sparsity"' in text and "How sparse" in text and "D = 16" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--what", "sparsity", "RUN", "--visible"], "--visible is about zones"),
        (["--what", "sparsity", "RUN", "--frames", "0"], "--frames is 0: give at least 1"),
        (["--what", "sparsity", "RUN", "--pictures", "x"], "no pictures"),
    ],
)
def test_mistakes_are_one_sentence(folders, call, argv, words):
    status, out, err = call(*[folders[0] if a == "RUN" else a for a in argv])
    assert status == 2 and words in err and err.startswith("lpwm: ") and out == ""


def test_a_dense_run_has_no_support(root, call):
    folder = trained(dense(base(steps=2)), root, "dense")
    status, _, err = call("--what", "sparsity", folder)
    assert status == 2 and "is dense (link identity), so it has no support" in err
