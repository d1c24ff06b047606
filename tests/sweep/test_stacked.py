"""Seeds trained as one stack: each gets the update it would have got alone."""

from dataclasses import replace

import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.optim import build, initialize
from lpwm.recipes import dense, support, tiny
from lpwm.sweep.cells import run_cell
from lpwm.sweep.grid import Cell, cell_hash
from lpwm.sweep.stack_cells import run_stack
from lpwm.sweep.stacked import StackedStepper, check_stackable
from lpwm.train import checkpoint
from lpwm.train.log import read_log
from lpwm.train.loop import Interrupted
from lpwm.train.step import Stepper

CPU = torch.device("cpu")
SEEDS = (0, 1, 5)
A, B, T = 10, 8, 4


def rung(name, **changes):
    base = tiny()
    predictor = replace(base.model.predictor, rung=name, heads=2, head_dim=8, mlp=16, head_hidden=16, dropout=0.0)
    return replace(base, model=replace(base.model, predictor=predictor), **changes)


def models_of(config):
    out = []
    for seed in SEEDS:
        model = WorldModel(config.model, A)
        initialize(model, seed)
        out.append(model.double().train())
    return out


def batch(seed, step, image=16):
    g = torch.Generator().manual_seed(1000 * seed + step)
    pixels = torch.randint(0, 256, (B, T, 3, image, image), generator=g, dtype=torch.uint8)
    return pixels, torch.randn(B, T - 1, A, generator=g, dtype=torch.float64)


CASES = {
    "sparse": rung("mlp-lti"),
    "dense": dense(rung("lti")),
    "ltv": rung("mlp-ltv"),
    "adaln": rung("shallow-adaln"),
    "rollout": rung("mlp-lti", objective=replace(tiny().objective, rollout_steps=3)),
    "no clipping": rung("lti1", optim=replace(tiny().optim, clip=0.0, mup=True)),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_stack_makes_the_same_updates_as_the_seeds_alone(case):
    """In float64, where Adam does not turn rounding into steps: weights agree to 1e-9 after five updates."""
    config = CASES[case]
    objective = Objective(config.objective, config.model.sparse)
    alone, together = models_of(config), models_of(config)
    steppers = [
        Stepper(m, objective, build(m, config.optim), B, clip=config.optim.clip, precision=torch.float32) for m in alone
    ]
    optimizers = [build(m, config.optim) for m in together]
    stack = StackedStepper(together, objective, optimizers, clip=config.optim.clip)
    before = {n: p.detach().clone() for n, p in together[1].named_parameters()}
    for step in range(5):
        clips = [batch(s, step) for s in SEEDS]
        draws = [objective.draw((s, step), B, T, config.model.latent) for s in SEEDS]
        rate = 1.0 / (step + 1)
        outs = stack(torch.stack([c[0] for c in clips]), torch.stack([c[1] for c in clips]), draws, rate)
        for stepper, clip, draw, out in zip(steppers, clips, draws, outs, strict=True):
            terms = stepper(*clip, draw, rate, step)
            assert torch.allclose(terms["loss"], out["loss"], rtol=1e-9)
            assert torch.allclose(terms["z"], out["z"], atol=1e-9)
    for a, b in zip(alone, together, strict=True):
        for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
            assert torch.allclose(p, q, atol=1e-9), name
    assert any(not torch.equal(before[n], p) for n, p in together[1].named_parameters())  # views of the stack moved
    stack.spread()
    state = optimizers[2].state[next(iter(together[2].parameters()))]
    other = steppers[2].optimizer.state[next(iter(alone[2].parameters()))]
    assert torch.allclose(state["exp_avg"], other["exp_avg"], atol=1e-9) and state["step"] == other["step"]


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["sparse", "rollout"])
def test_a_captured_stack_makes_the_same_updates_as_an_eager_one(case):
    config = CASES[case]
    objective = Objective(config.objective, config.model.sparse)

    def losses(graphed):
        models = [m.cuda() for m in models_of(config)]
        optimizers = [build(m, config.optim, fused=True, capturable=True) for m in models]
        stack = StackedStepper(models, objective, optimizers, clip=config.optim.clip, graphed=graphed)
        found = []
        for step in range(8):  # captured at the fourth
            pixels, actions = (torch.stack(x).cuda() for x in zip(*(batch(s, step) for s in SEEDS), strict=True))
            draws = [objective.draw((s, step), B, T, config.model.latent, "cuda") for s in SEEDS]
            outs = stack(pixels, actions, draws, 1.0 / (step + 1))
            found.append(torch.stack([out["loss"] for out in outs]).clone())
        assert (stack._graph is not None) == graphed
        return torch.stack(found)

    torch.testing.assert_close(losses(True), losses(False), rtol=1e-6, atol=1e-9)


def cells_of(config, seeds=SEEDS):
    made = [replace(config, train=replace(config.train, seed=s)) for s in seeds]
    return [Cell(cell_hash(c, {}), "stack", c, {}, {}) for c in made]


def test_stacked_cells_leave_ordinary_runs(tmp_path):
    """Same folders, logs and checkpoints as one after another; numbers agree as far as float32 and Adam allow."""
    cells = cells_of(tiny())
    stacked = run_stack(cells, tmp_path / "a", CPU)
    for cell, (result, files) in zip(cells, stacked, strict=True):
        other, where = run_cell(cell, tmp_path / "b", CPU)
        assert files == where and result["run"] == other["run"] and result["step"] == 60
        for name, value in other["train"].items():
            assert result["train"][name] == pytest.approx(value, rel=2e-2, abs=2e-3), name
        assert result["held_out"]["error_depth"] == pytest.approx(other["held_out"]["error_depth"], rel=2e-2)
        logs = [read_log(root / files["run"], "train") for root in (tmp_path / "a", tmp_path / "b")]
        assert [r["step"] for r in logs[0]] == [r["step"] for r in logs[1]]
        assert logs[0][0].keys() == logs[1][0].keys()
    losses = {r["train"]["loss"] for r, _ in stacked}
    assert len(losses) == len(SEEDS)  # each seed saw its own clips and slices


def test_an_interrupted_stack_continues_stacked_or_alone(tmp_path, monkeypatch):
    cells = cells_of(tiny(), (0, 1))
    whole = run_stack(cells, tmp_path / "whole", CPU)
    from lpwm.sweep import stack_cells

    class Asked(stack_cells.Interrupts):
        calls = 0

        @property
        def asked(self):
            Asked.calls += 1
            return Asked.calls > 40

        @asked.setter
        def asked(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(stack_cells, "Interrupts", Asked)
        with pytest.raises(Interrupted):
            run_stack(cells, tmp_path / "cut", CPU)
    cut = [checkpoint.latest(p.parent).step for p in sorted((tmp_path / "cut" / "runs").glob("*/run.json"))]
    assert len(set(cut)) == 1 and 0 < cut[0] < 60
    again = run_stack(cells, tmp_path / "cut", CPU)
    for (a, _), (b, _) in zip(whole, again, strict=True):
        assert a["train"] == b["train"] and a["held_out"] == b["held_out"]  # to the bit


def test_what_cannot_be_stacked_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="BatchNorm"):
        check_stackable(support())
    deep = tiny()
    deep = replace(deep, model=replace(deep.model, predictor=replace(deep.model.predictor, rung="shallow-adaln")))
    with pytest.raises(UserError, match=r"dropout.*dropout = 0"):
        check_stackable(deep)
    with pytest.raises(UserError, match="accumulate"):
        check_stackable(replace(tiny(), train=replace(tiny().train, accumulate=2)))
    check_stackable(tiny())
