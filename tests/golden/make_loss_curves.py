"""Makes loss_curves.json: 50 steps of every rung on the CPU, fixed seed. Run it only when the method changes.

python tests/golden/make_loss_curves.py
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from lpwm.losses import Objective
from lpwm.model import PAPER_RUNGS
from lpwm.optim import build, factor
from lpwm.recipes import tiny
from lpwm.train import Run, RunConfig
from lpwm.train.step import Stepper

HERE = Path(__file__).parent
STEPS = 50


def config_of(rung: str) -> RunConfig:
    base = tiny()
    predictor = replace(
        base.model.predictor, rung=rung, heads=2, head_dim=8, mlp=32, head_hidden=32, rank=4, dropout=0.0
    )
    # Both optional terms are on for one rung, so that they are guarded too.
    extra = {"tj_weight": 0.1, "rollout_steps": 3} if rung == "mlp-ltv" else {}
    return replace(
        base,
        model=replace(base.model, predictor=predictor),
        objective=replace(base.objective, **extra),
        optim=replace(base.optim, lr=2e-3, mup=rung != "lti"),
        train=replace(base.train, steps=STEPS, seed=3),
    )


def curve(config: RunConfig, folder: Path) -> list[float]:
    run = Run.create(config, folder)
    model = run.build_model(torch.device("cpu")).train()
    source, objective = run.source(torch.device("cpu")), Objective(config.objective, config.model.sparse)
    stepper = Stepper(
        model, objective, build(model, config.optim), config.train.batch, config.train.seed, config.optim.clip
    )
    losses = []
    for step in range(STEPS):
        clip = source.batch(step)
        draw = objective.draw((config.train.seed, step), (config.train.batch, config.frames, config.model.latent))
        rate = factor(config.optim.schedule, config.optim.warmup, step, STEPS)
        losses.append(float(stepper(clip.pixels, clip.actions, draw, rate, step)["loss"]))
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        curves = {rung: curve(config_of(rung), Path(folder)) for rung in PAPER_RUNGS}
    (HERE / "loss_curves.json").write_text(json.dumps(curves, indent=1) + "\n")
