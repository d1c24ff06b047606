"""What a run will cost, before anything is allocated: operations and bytes, counted from the config.

Counts follow the arithmetic of the networks (a multiply-add is two operations; the backward pass costs twice the
forward pass). Times are those counts over a rate measured on a machine; they are estimates and are called so.
"""

from dataclasses import dataclass

import torch

from lpwm.core.errors import UserError
from lpwm.losses import ObjectiveConfig
from lpwm.model import ModelConfig, WorldModel

# A step takes what it takes with almost no work (on one H200, captured, 1.4 ms: bench/results/stacked_seeds_h200.json),
# and its operations over a rate: bf16 on one H200 254e12 (ViT-Tiny), 310e12 and 330e12 (the ladder's Deep-AdaLN and
# MLP∘LTI) in bench/results/train_step_h200.json; float32 on two CPU cores, 44e9 (the small Piecewise recipe, all of its
# 59 s). Compiling, about a minute on a GPU, and making data are not in it: the estimate is for planning one's day.
RATES = {"cuda": 250e12, "cpu": 45e9}
EVERY_STEP = {"cuda": 1.4e-3, "cpu": 0.0}  # seconds


@dataclass(frozen=True)
class Cost:
    parameters: int
    flops: float  # of one step
    clip_bytes: float  # activations kept for the backward pass, per clip
    fixed_bytes: float  # weights, gradients, optimizer, slices

    def bytes(self, batch: int) -> float:
        return self.fixed_bytes + batch * self.clip_bytes

    def batch_that_fits(self, free: float) -> int:
        return int((free - self.fixed_bytes) // self.clip_bytes)

    def minutes(self, steps: int, device: str) -> float:
        return steps * (EVERY_STEP[device] + self.flops / RATES[device]) / 60


def estimate(
    model: ModelConfig, objective: ObjectiveConfig, action_dim: int, frames: int, batch: int, half: bool
) -> Cost:
    """`frames` per clip; `half`: activations in bf16."""
    with torch.device("meta"):
        network = WorldModel(model, action_dim)
    parameters = sum(p.numel() for p in network.parameters())
    matrices = [p for p in network.predictor.parameters() if p.ndim == 2]
    predictor, outputs = sum(p.numel() for p in matrices), sum(p.shape[0] for p in matrices)
    head = sum(p.numel() for p in network.encoder.project.parameters() if p.ndim == 2)
    v, D = model.encoder, model.latent
    inner, tokens = v.heads * v.head_dim, (v.image_size // v.patch) ** 2 + 1
    layer = 2 * (4 * v.width * inner + 2 * v.width * v.mlp) + 4 * tokens * inner
    once = 4 * v.heads * v.width  # of the last block: the scores and the average that token 0 takes
    frame = tokens * ((v.depth - 1) * layer + once + 2 * 3 * v.patch**2 * v.width) + 2 * head
    positions = frames - 1
    passes = positions + (objective.rollout_steps if objective.rollout_steps > 1 else 0)
    clip = frames * frame + passes * 2 * (predictor + 4 * D * D)
    # Directions that codes are projected on, how often (backwards too, and RDMReg's targets), and the numbers kept for
    # each of a code: its projection and order, or a wave at each knot; VICReg's are the axes, for the covariance.
    slices, projections, numbers = {
        "rdmreg": (objective.rdmreg.slices, 3, 6.0),
        "sigreg": (objective.sigreg.slices, 2, 1.5 * objective.sigreg.knots),
        "vicreg": (D, 3, 4.0),
    }.get(objective.regularizer, (0, 0, 0.0))
    item = 2 if half else 4
    kept: float = frames * tokens * v.depth * (4 * v.width + 4 * inner + 2 * v.mlp) * item
    kept += frames * v.image_size**2 * 3 * (1 + item)
    kept += passes * (2.5 * outputs + 12 * D) * item
    kept += frames * slices * numbers * 4
    flops = 3 * batch * clip + 2.0 * batch * frames * D * slices * projections
    fixed = parameters * 4 * 4 + parameters * (2 if half else 0) + 4.0 * slices * D
    return Cost(parameters, flops, clip_bytes=kept, fixed_bytes=fixed)


def check_memory(cost: Cost, batch: int, free: float, where: str) -> None:
    """Refuse a batch that cannot fit, naming the one that does."""
    if cost.bytes(batch) <= free:
        return
    fits = cost.batch_that_fits(free)
    remedy = f"train.batch {fits} fits" if fits >= 1 else "even one clip does not fit: use a smaller model"
    raise UserError(
        f"a batch of {batch} clips needs about {cost.bytes(batch) / 2**30:.1f} GiB and {where} has "
        f"{free / 2**30:.1f} GiB free: {remedy}, or use train.accumulate."
    )
