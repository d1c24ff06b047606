"""What a run will cost, against what torch counts while a step is taken."""

import json
from pathlib import Path

import pytest
import torch
from tools import refused
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lpwm.core.errors import UserError
from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig, SIGRegConfig
from lpwm.losses.base import ALONE
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.model.predictors import PAPER_RUNGS
from lpwm.recipes import recipe
from lpwm.train.cost import Cost, check_memory, estimate
from lpwm.train.step import clip_loss

BATCH, FRAMES, ACTION = 6, 4, 10
BENCH = Path(__file__).parents[2] / "bench" / "results"


def step(model, objective):
    """The loss of a batch, on the CPU."""
    network, loss = WorldModel(model, ACTION), Objective(objective, model.sparse)
    side = model.encoder.image_size
    pixels = torch.randint(0, 256, (BATCH, FRAMES, 3, side, side), dtype=torch.uint8)
    draw = loss.draw((0, 0), (BATCH, FRAMES, model.latent), "cpu")
    return clip_loss(network, loss, pixels, torch.randn(BATCH, FRAMES, ACTION), draw, ALONE, 1.0)["loss"]


def kept(model, objective):
    """The bytes that wait for the backward pass, parameters left out."""
    storages = {}  # by address, alive, so that no address is used twice

    def keep(t):
        if not isinstance(t, torch.nn.Parameter) and not isinstance(t._base, torch.nn.Parameter):
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = step(model, objective)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def operations(model, objective):
    """Forwards and backwards, as torch counts them."""
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # attention by products that are counted
        step(model, objective).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("rung", PAPER_RUNGS)
@pytest.mark.parametrize("regularizer", ["rdmreg", "none"])
def test_operations_and_bytes_are_those_of_a_step(rung, regularizer):
    encoder = EncoderConfig(image_size=32, patch=4, width=48, depth=3, heads=2, head_dim=24, mlp=96)
    model = ModelConfig(64, encoder=encoder, predictor=PredictorConfig(rung, heads=2, head_dim=16, mlp=64))
    objective = ObjectiveConfig(regularizer=regularizer, rdmreg=RDMRegConfig(slices=256))
    cost = estimate(model, objective, ACTION, FRAMES, BATCH, half=False)
    assert cost.flops == pytest.approx(operations(model, objective), rel=0.03)
    assert 0.9 < BATCH * cost.clip_bytes / kept(model, objective) < 1.4
    assert cost.parameters == sum(p.numel() for p in WorldModel(model, ACTION).parameters())


@pytest.mark.parametrize("rung", ["deep-adaln", "lti"])
@pytest.mark.parametrize(
    "slices, objective",
    [
        (8192, ObjectiveConfig(rdmreg=RDMRegConfig(slices=8192))),
        (4096, ObjectiveConfig(regularizer="sigreg", sigreg=SIGRegConfig(slices=4096))),
        (0, ObjectiveConfig(regularizer="vicreg")),
        (0, ObjectiveConfig(regularizer="none", rollout_steps=3)),
    ],
    ids=["rdmreg", "sigreg", "vicreg", "fed back"],
)
def test_where_the_encoder_is_the_least_of_it(rung, slices, objective):
    encoder = EncoderConfig(image_size=8, patch=4, width=16, depth=2, heads=1, head_dim=16, mlp=16)
    model = ModelConfig(64, "reprelu", encoder, ProjectorConfig(hidden=16), PredictorConfig(rung))
    cost = estimate(model, objective, ACTION, FRAMES, BATCH, half=False)
    assert cost.flops == pytest.approx(operations(model, objective), rel=0.1)
    directions = 4 * slices * model.latent  # counted once, not by clip
    assert 0.9 < (BATCH * cost.clip_bytes + directions) / kept(model, objective) < 2


def test_the_sentence_names_the_largest_batch_that_fits():
    cost = Cost(parameters=1, flops=1.0, clip_bytes=2.0**30, fixed_bytes=2.0**29)
    check_memory(cost, 3, 3.5 * 2**30, "the GPU")
    with pytest.raises(UserError, match=r"batch of 4 clips needs about 4.5 GiB and the GPU has 3.5 GiB .*batch 3 fits"):
        check_memory(cost, 4, 3.5 * 2**30, "the GPU")
    refused("batch 1 fits", check_memory, cost, 4, 1.5 * 2**30, "the GPU")
    refused("even one clip does not fit", check_memory, cost, 4, 1.4 * 2**30, "the GPU")


def test_weights_gradients_and_adam_are_four_numbers_each():
    model, objective = ModelConfig(64), ObjectiveConfig(regularizer="none")
    full, half = (estimate(model, objective, ACTION, FRAMES, BATCH, half=half) for half in (False, True))
    network = WorldModel(model, ACTION)
    network.requires_grad_()
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    adam = torch.optim.Adam(network.parameters())
    adam.step()
    held = [*network.parameters(), *(p.grad for p in network.parameters())]
    held += [t for state in adam.state.values() for t in state.values()]
    assert full.fixed_bytes == pytest.approx(sum(t.nbytes for t in held if t is not None), rel=1e-3)
    assert half.fixed_bytes - full.fixed_bytes == 2 * full.parameters  # a copy in bfloat16


def test_minutes_are_near_the_steps_that_were_measured():
    """The GPU's, from the files that bench/ wrote; the small recipe's on two cores took 59 s with its data."""
    measured = json.loads((BENCH / "train_step_h200.json").read_text())["rows"]
    seen = {row["case"]: row["ours_ms"] / 1000 for row in measured}
    alone = json.loads((BENCH / "stacked_seeds_h200.json").read_text())["rows"][0]
    seen["small"] = alone["ms"]["alone graph"] / alone["seeds"] / 1000
    recipes = {
        "pusht-deep": "pusht/deep-adaln/lpwm",
        "pusht-mlp-lti": "pusht/mlp-lti/lpwm",
        "small": "piecewise-2x2-small/lpwm",
    }
    for case, name in recipes.items():
        config = recipe(name)
        cost = config.cost(10, half=True)
        predicted = 60 * cost.minutes(config.train.steps, "cuda") / config.train.steps
        assert 0.75 < predicted / seen[case] < 1.35, case
    small = recipe("piecewise-2x2-small/lpwm")
    assert 40 < 60 * small.cost(10, half=False).minutes(small.train.steps, "cpu") < 90
