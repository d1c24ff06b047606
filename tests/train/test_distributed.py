"""N processes equal one: loss and every gradient, for each regularizer and norm, uneven batches included."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig, SIGRegConfig
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim import OptimConfig, build, initialize
from lpwm.train.distributed import Ranks, join
from lpwm.train.loop import measure_step
from lpwm.train.step import Stepper

FRAMES, LATENT = 4, 12
CASES = [
    # regularizer, projector norm, head norm, link, tj, rollout
    ("rdmreg", "layer", "layer", "reprelu", 0.1, 1),
    ("rdmreg", "batch", "batch", "reprelu", 0.0, 3),
    ("sigreg", "batch", "layer", "identity", 0.0, 1),
    ("vicreg", "layer", "batch", "identity", 0.0, 2),
]

LONG = [(CASES[0], torch.float32), (CASES[1], torch.float64)]  # LayerNorm, BatchNorm


def make(case):
    regularizer, projector, head, link, tj, rollout = case
    config = ModelConfig(
        latent=LATENT,
        link=link,
        encoder=EncoderConfig(image_size=8, patch=4, width=16, depth=1, heads=1, head_dim=16, mlp=16),
        projector=ProjectorConfig(hidden=16, norm=projector),
        predictor=PredictorConfig(
            rung="shallow-adaln", heads=2, head_dim=8, mlp=16, head_hidden=16, head_norm=head, dropout=0.0
        ),
    )
    model = WorldModel(config, 4)
    initialize(model, 0)
    with torch.no_grad():  # open the AdaLN gates, so that gradients reach everything
        for p in model.predictor.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    objective = Objective(
        ObjectiveConfig(
            regularizer=regularizer,
            lam=2.0,
            tj_weight=tj,
            rollout_steps=rollout,
            rdmreg=RDMRegConfig(slices=15),
            sigreg=SIGRegConfig(slices=15),
        ),
        config.sparse,
    )
    return model, objective


def one_step(case, batch, ranks, accumulate=1):
    """Loss and gradients of one update on this rank's slice of a fixed global batch."""
    torch.set_num_threads(1)
    model, objective = make(case)
    stepper = Stepper(model, objective, build(model, OptimConfig(lr=1e-12)), batch, ranks=ranks, accumulate=accumulate)
    g = torch.Generator().manual_seed(5)
    pixels = torch.randint(0, 256, (batch, FRAMES, 3, 8, 8), generator=g, dtype=torch.uint8)
    actions = torch.randn(batch, FRAMES - 1, 4, generator=g)
    sizes = ranks.sizes(batch)
    mine = slice(sum(sizes[: ranks.rank]), sum(sizes[: ranks.rank + 1]))
    draw = objective.draw((0, 0), (batch, FRAMES, LATENT), "cpu", ranks.group(batch))
    terms = stepper(pixels[mine], actions[mine], draw, 1.0, 0)
    loss = ranks.mean({"loss": terms["loss"]})["loss"].item()
    buffers = {n: b.clone() for n, b in model.named_buffers() if "running" in n}
    return loss, {n: p.grad.clone() for n, p in model.named_parameters()}, buffers


def five_steps(case, dtype, batch, ranks):
    """The logged numbers of five updates, each with its own batch, of which this rank has its slice."""
    torch.set_num_threads(1)
    model, objective = make(case)
    model = model.to(dtype)
    stepper = Stepper(model, objective, build(model, OptimConfig(lr=1e-3)), batch, clip=1.0, ranks=ranks)
    sizes, records = ranks.sizes(batch), []
    mine = slice(sum(sizes[: ranks.rank]), sum(sizes[: ranks.rank + 1]))
    for step in range(5):
        g = torch.Generator().manual_seed(step)
        pixels = torch.randint(0, 256, (batch, FRAMES, 3, 8, 8), generator=g, dtype=torch.uint8)
        actions = torch.randn(batch, FRAMES - 1, 4, generator=g).to(dtype)
        draw = objective.draw((0, step), (batch, FRAMES, LATENT), "cpu", ranks.group(batch))
        out = stepper(pixels[mine], actions[mine], draw, 1.0, step)
        records.append(measure_step(actions[mine], out, stepper))
    return records


def worker(rank, ranks, port, batch, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks), RANK=str(rank))
    me = Ranks.from_environment("cpu")
    results = [one_step(case, batch, me) for case in CASES]
    torch.save((results, [five_steps(*case, batch, me) for case in LONG]), f"{folder}/{rank}.pt")
    me.leave()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def alone(case, batch):
    return one_step(case, batch, Ranks())


def test_ranks_equal_one_process(tmp_path):
    ranks, batch, port = 3, 8, free_port()  # 2 + 3 + 3 clips
    commands = [[sys.executable, __file__, *map(str, (rank, ranks, port, batch, tmp_path))] for rank in range(ranks)]
    workers = [subprocess.Popen(command) for command in commands]
    assert [w.wait(timeout=300) for w in workers] == [0] * ranks
    for rank in range(ranks):
        results, runs = torch.load(tmp_path / f"{rank}.pt")
        for case, records in zip(LONG, runs, strict=True):
            for step, (got, want) in enumerate(zip(records, five_steps(*case, batch, Ranks()), strict=True)):
                assert got.keys() == want.keys() and {"dead_units", "effective_dimension", "loss"} <= want.keys()
                for name, value in want.items():
                    assert got[name] == pytest.approx(value, rel=1e-5, abs=1e-5), (case, rank, step, name)
        for case, (loss, grads, buffers) in zip(CASES, results, strict=True):
            want_loss, want_grads, want_buffers = alone(case, batch)
            assert loss == pytest.approx(want_loss, abs=1e-5), (case, rank)
            for name, want in want_grads.items():
                torch.testing.assert_close(grads[name], want, rtol=1e-5, atol=1e-5, msg=f"{case} {name}")
            for name, want in want_buffers.items():
                torch.testing.assert_close(buffers[name], want, rtol=1e-5, atol=1e-6)
            assert max(g.abs().max() for g in want_grads.values()) > 1e-2  # the comparison sees something


@pytest.mark.parametrize("pieces", [2, 3])
@pytest.mark.parametrize("case", [CASES[0], ("sigreg", "layer", "layer", "identity", 0.0, 3)])
def test_accumulated_gradients_equal_the_whole_batch(case, pieces):
    loss, grads, _ = alone(case, 8)
    got_loss, got, _ = one_step(case, 8, Ranks(), accumulate=pieces)
    assert got_loss == pytest.approx(loss, abs=1e-5)
    for name, want in grads.items():
        torch.testing.assert_close(got[name], want, rtol=1e-4, atol=1e-5, msg=name)


def test_accumulation_is_refused_with_batch_norm():
    with pytest.raises(UserError, match="BatchNorm"):
        one_step(CASES[1], 8, Ranks(), accumulate=2)


def test_a_parameter_unused_on_this_rank_takes_part_all_the_same(monkeypatch):
    """The other rank sends 3 for every number."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: flat.add_(3))
    used, unused, frozen = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    used.grad = torch.ones(2)
    frozen.requires_grad_(False)
    Ranks(0, 2).average_gradients([used, unused, frozen])
    assert used.grad.tolist() == [2, 2] and unused.grad.tolist() == [1.5, 1.5] and frozen.grad is None


if __name__ == "__main__":  # one rank
    worker(*map(int, sys.argv[1:5]), sys.argv[5])


def test_gpus_meet_through_nccl_each_with_its_own(monkeypatch):
    """What torch is called with, in its place: no GPU is needed to see it."""
    met = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", lambda local: met.append(local))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *a, **kw: met.append((a, kw)))
    join("cuda", 1)
    assert met == [1, (("nccl",), {"device_id": torch.device("cuda", 1)})]
    with pytest.raises(UserError, match=r"process 3 .* there are 2: start at most 2"):
        join("cuda", 2)
    join("cpu", 7)
    assert met[2:] == [(("gloo",), {})]


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.soak), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_torchrun_and_a_group_of_one_train_as_one_process_does(tmp_path, device):
    bench = Path(__file__).parents[2] / "bench" / "nccl.py"
    command = [sys.executable, str(bench), "--device", device, "--steps", "8", "--json", str(tmp_path / "a.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {"alone", "joined", "torchrun 1"} <= set(rows)
    assert all(len(row["losses"]) == 8 and row["apart"] < 1e-3 for row in rows.values())
