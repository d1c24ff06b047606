"""Adam in one launch: against torch's own, the update spelled out in float64, captured graphs and checkpoints."""

import copy
import os

import pytest
import torch

from lpwm.core.rng import generator
from lpwm.kernels import adam as one
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim import OptimConfig, build, initialize
from lpwm.train import checkpoint

SIZES = ((1,), (7,), (1000,), (1025,), (50, 100), (2048,), (0,))
OURS, TORCHS = {"adam": one.Adam, "adamw": one.AdamW}, {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
ON_CUDA = {"capturable": True, "fused": True}
TINY = ModelConfig(
    latent=6,
    encoder=EncoderConfig(image_size=8, patch=4, width=8, depth=1, heads=1, head_dim=8, mlp=8),
    projector=ProjectorConfig(hidden=8),
    predictor=PredictorConfig(rung="mlp-lti", history=2),
)


def parameters(device="cpu"):
    return [torch.randn(s, generator=generator("p", i)).to(device) for i, s in enumerate(SIZES)]


def gradient(step, i, like):
    return (torch.randn(like.shape, generator=generator("g", step, i)) * 10.0 ** (i - 3)).to(like.device)


def in_groups(tensors, name, **options):
    """Three groups of different rates, decays, betas and epsilons; the rates in tensors where a graph reads them."""
    kinds = (
        {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8},
        {"lr": 3e-3, "weight_decay": 0.0, "betas": (0.8, 0.95), "eps": 1e-4},
        {"lr": 1e-3, "weight_decay": 0.5, "betas": (0.0, 0.99), "eps": 1e-8},
    )
    made = []
    for number, kind in enumerate(kinds):
        rate = torch.tensor(kind["lr"], device=tensors[0].device) if options.get("capturable") else kind["lr"]
        decay = kind["weight_decay"] if name == "adamw" else 0.0
        made.append({**kind, "lr": rate, "weight_decay": decay, "params": tensors[number::3]})
    return made


def spelled_out(name, steps, absent):
    """The parameters after so many steps, in float64; `absent(step, i)`: no gradient then."""
    found = []
    for i, p in enumerate(t.double() for t in parameters()):
        group = in_groups(list(range(len(SIZES))), name, capturable=False)[i % 3]
        (b1, b2), lr, t = group["betas"], group["lr"], 0
        m = v = torch.zeros_like(p)
        for step in range(steps):
            if absent(step, i):
                continue
            g, t = gradient(step, i, p).double(), t + 1
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            p = p * (1 - lr * group["weight_decay"])
            p = p - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + group["eps"])
        found.append(p)
    return found


def absent(step, i):
    return (i == 2 and step in (0, 3)) or (i == 4 and step < 2)  # its count lags behind the others'


def run(optimizer, steps, start=0):
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    order = [i for number in range(3) for i in range(len(SIZES))[number::3]]
    for step in range(start, start + steps):
        for i, p in zip(order, tensors, strict=True):
            p.grad = None if absent(step, i) else gradient(step, i, p)
        optimizer.step()


def count_launches(monkeypatch):
    seen = []
    step = one.kernels_adam.step
    monkeypatch.setattr(one.kernels_adam, "step", lambda *a: (seen.append(len(a[0])), step(*a))[1])
    return seen


def check_the_kernel(device, monkeypatch):
    """Run on CUDA, and in the interpreter's process on the CPU."""
    seen = count_launches(monkeypatch)
    options = {**ON_CUDA, "fused": device == "cuda"}
    for name in OURS:
        tensors = parameters(device)
        optimizer = OURS[name](in_groups(tensors, name, **options), **options)
        run(optimizer, 8)
        assert seen == [5, 6, 7, 6, 7, 7, 7, 7]  # all that have a gradient, in one launch a step
        seen.clear()
        for found, wanted in zip(tensors, spelled_out(name, 8, absent), strict=True):
            torch.testing.assert_close(found.double().cpu(), wanted, rtol=2e-6, atol=5e-7)
        assert [float(optimizer.state[t]["step"]) for t in tensors] == [8, 8, 6, 8, 6, 8, 8]

        # There and back: torch's class goes on from our state, and ours from torch's.
        plain = [t.detach().cpu().clone() for t in tensors]
        theirs = TORCHS[name](in_groups(plain, name), foreach=False)
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            group.update(lr=float(group["lr"]), capturable=False, fused=False, foreach=False)
        theirs.load_state_dict(state)
        run(theirs, 3, start=8)
        back = OURS[name](in_groups(tensors, name, **options), **options)
        state = copy.deepcopy(theirs.state_dict())
        for group, mine in zip(state["param_groups"], back.param_groups, strict=True):
            group.update(lr=mine["lr"], capturable=True, fused=options["fused"], foreach=None)
        for t, p in zip(tensors, plain, strict=True):
            t.copy_(p)
        back.load_state_dict(state)
        assert back.state[tensors[0]].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert not seen
        run(back, 2, start=11)
        assert seen == [7, 7]
        seen.clear()
        for found, wanted in zip(tensors, spelled_out(name, 13, absent), strict=True):
            torch.testing.assert_close(found.double().cpu(), wanted, rtol=2e-6, atol=5e-7)

        # Parameters in the middle of another tensor, at an address no vector instruction takes.
        whole = torch.zeros(3001, device=device)
        inner = whole[1:-1]
        inner.requires_grad_()
        group = {"params": [inner], "lr": torch.tensor(0.5, device=device), "weight_decay": 0.0}
        optimizer, inner.grad = OURS[name]([group], **options), torch.full_like(inner, -3.0)
        before = inner._version
        optimizer.step()
        wanted = torch.full_like(inner.detach(), 0.5)  # lr·sign, if the corrections are exact
        torch.testing.assert_close(inner.detach(), wanted, rtol=1e-6, atol=0)
        assert whole[0] == whole[-1] == 0 and seen == [1] and inner._version > before
        seen.clear()

    # One tensor of more blocks than are marked at once, and a small one after it.
    tensors = [torch.zeros(300_001, device=device), torch.zeros(2, device=device)]
    group = {"params": tensors, "lr": torch.tensor(0.25, device=device)}
    optimizer = one.Adam([group], **options)
    for t in tensors:
        t.grad = torch.ones_like(t)
    optimizer.step()
    for t in tensors:
        torch.testing.assert_close(t, torch.full_like(t, -0.25))


INTERPRETED = """
import sys
import pytest
sys.path.insert(0, sys.argv[1])
import test_adam
with pytest.MonkeyPatch.context() as monkeypatch:
    test_adam.check_the_kernel("cpu", monkeypatch)
print("right")
"""


def test_the_kernel_in_the_interpreter(interpreted):
    interpreted(INTERPRETED, os.path.dirname(__file__))


@pytest.mark.parametrize("name", OURS)
def test_on_the_cpu_all_is_torchs(name):
    """`build` makes torch's classes there; ours, where the kernel cannot go, makes torch's step bit for bit."""
    model = torch.nn.Linear(3, 2)
    for options in ({}, {"fused": True}, {"capturable": True}):
        assert type(build(model, OptimConfig(name=name), **options)) is TORCHS[name]
    results = []
    for make in (OURS[name], TORCHS[name]):
        tensors = parameters()
        optimizer = make(in_groups(tensors, name))
        run(optimizer, 4)
        results.append((tensors, optimizer.state_dict()))
    (ours, state), (theirs, its) = results
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert state["param_groups"] == its["param_groups"] and OURS[name].__name__ == TORCHS[name].__name__
    for mine, other in zip(state["state"].values(), its["state"].values(), strict=True):
        assert mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)


def test_closures_and_copies():
    p = torch.zeros(3, requires_grad=True)
    optimizer = one.AdamW([p], lr=0.1)

    def closure():
        loss = (p - 1).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3 and (p > 0).all()
    twin = copy.deepcopy(optimizer)
    twin.step()
    assert twin.state_dict()["state"][0]["step"] == 2 and optimizer.state[p]["step"] == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestOnCuda:
    def test_the_kernel(self, monkeypatch):
        check_the_kernel("cuda", monkeypatch)

    @pytest.mark.parametrize("name", OURS)
    def test_twenty_steps_are_torchs_fused_ones(self, name):
        results = []
        for make in (OURS[name], TORCHS[name]):
            tensors = parameters("cuda")
            optimizer = make(in_groups(tensors, name, **ON_CUDA), **ON_CUDA)
            run(optimizer, 20)
            results.append([(t, *(optimizer.state[t][k] for k in ("exp_avg", "exp_avg_sq", "step"))) for t in tensors])
        for mine, theirs in zip(*results, strict=True):
            for a, b in zip(mine, theirs, strict=True):  # torch's 1 − 0.999 is a float32's: off by 1.3e-5
                torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6 * float(b.abs().max()) if b.numel() else 0)

    def test_a_gradient_the_kernel_cannot_read_is_left_to_torch(self, monkeypatch):
        seen = count_launches(monkeypatch)
        results = []
        for make in (one.AdamW, torch.optim.AdamW):
            p = torch.ones(6, 4, device="cuda", requires_grad=True)
            optimizer = make([p], lr=torch.tensor(0.1, device="cuda"), capturable=True)  # fused refuses it
            for step in range(3):
                p.grad = gradient(step, 3, p).T.contiguous().T if step == 1 else gradient(step, 3, p)
                optimizer.step()
            results.append(p.detach())
        assert seen == [1, 1]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)  # torch corrects in float32

    @pytest.mark.parametrize("name", OURS)
    def test_a_captured_step_reads_fresh_gradients_and_rates(self, name, monkeypatch):
        """Warm-up, capture and replays as in training; then an eager step, and a second graph of the same optimizer."""
        seen = count_launches(monkeypatch)
        results, launches = [], []
        for make in (OURS[name], TORCHS[name]):
            tensors = [t.requires_grad_() for t in parameters("cuda")]
            optimizer = make(in_groups(tensors, name, **ON_CUDA), **ON_CUDA)
            slopes = [torch.zeros_like(t) for t in tensors]

            def update(optimizer=optimizer, tensors=tensors, slopes=slopes):
                optimizer.zero_grad(set_to_none=True)
                sum((t * s).sum() for t, s in zip(tensors, slopes, strict=True)).backward()
                optimizer.step()

            def feed(step, optimizer=optimizer, slopes=slopes):
                for i, s in enumerate(slopes):
                    s.copy_(gradient(step, i, s))
                for number, group in enumerate(optimizer.param_groups):
                    group["lr"].fill_(1e-3 * (number + 1) / (step + 1))

            def captured(update=update, optimizer=optimizer):
                graph = torch.cuda.CUDAGraph()
                optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(graph):
                    update()
                return graph

            side = torch.cuda.Stream()
            for step in range(3):
                feed(step)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    update()
                torch.cuda.current_stream().wait_stream(side)
            first = captured()
            for step in range(3, 8):
                feed(step)
                first.replay()
            graphs = [first, captured(), captured()]  # the last two have no memory pinned for them: torch's step
            feed(8)
            update()
            graphs.append(captured())
            for step in range(9, 21):
                feed(step)
                graphs[step % 4].replay()
            torch.cuda.synchronize()
            launches.append(len(seen))
            results.append(
                [(t.detach(), optimizer.state[t]["exp_avg_sq"], optimizer.state[t]["step"]) for t in tensors]
            )
        assert launches == [3 + 1 + 1 + 1, 6]  # replays do not come through Python; torch's class never comes here
        for mine, theirs in zip(*results, strict=True):
            assert mine[-1] == 21
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6 * float(b.abs().max()) if b.numel() else 0)

    def test_checkpoints_go_to_the_cpu_and_back(self, tmp_path):
        """A run moves between devices; its numbers go on as if it had stayed, and the moments as they were."""

        def on(device):
            model = WorldModel(TINY, action_dim=4)
            initialize(model, 0)
            options = ON_CUDA if device == "cuda" else {"fused": True}
            model = model.to(device)
            return model, build(model, OptimConfig(lr=1e-2), **options)

        def go_on(model, optimizer, steps):
            for step in steps:
                for i, p in enumerate(model.parameters()):
                    p.grad = gradient(step, i % 7, p)
                optimizer.step()

        stayed, its = on("cuda")
        assert type(its) is one.AdamW
        go_on(stayed, its, range(9))
        model, optimizer = on("cuda")
        go_on(model, optimizer, range(3))
        for device, steps in (("cpu", range(3, 6)), ("cuda", range(6, 9))):
            checkpoint.save(
                tmp_path, model=model, optimizer=optimizer, step=steps.start, run={"seed": 0}, run_hash="a", meta={}
            )
            last, old = ([{k: v.cpu() for k, v in optimizer.state[p].items()} for p in model.parameters()], model)
            model, optimizer = on(device)
            assert checkpoint.restore(checkpoint.latest(tmp_path), model, optimizer) == steps.start
            for p, before, q in zip(model.parameters(), last, old.parameters(), strict=True):
                assert torch.equal(p.cpu(), q.cpu())
                assert all(torch.equal(optimizer.state[p][k].cpu(), before[k]) for k in before)
            go_on(model, optimizer, steps)
        for p, q in zip(model.parameters(), stayed.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
