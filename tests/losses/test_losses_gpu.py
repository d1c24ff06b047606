"""On CUDA: the same numbers, no waiting for the device, and replay as a graph with the draw as its input."""

import pytest
import torch

from lpwm.core.rng import generator
from lpwm.losses import REGULARIZERS, Objective, ObjectiveConfig, RDMRegConfig, SIGRegConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
B, T, D = 16, 4, 32


def objective(name):
    config = ObjectiveConfig(
        name, tj_weight=0.1, rdmreg=RDMRegConfig(slices=64, axis_fraction=0.25, p=1.5), sigreg=SIGRegConfig(slices=64)
    )
    return Objective(config, nonnegative=True)


def clip(seed):
    z = torch.randn(B, T, D, generator=generator(seed)).relu()
    return z.cuda(), z[:, :-1].cuda() + 0.1


@pytest.mark.parametrize("name", sorted(REGULARIZERS))
def test_cuda_equals_cpu(name):
    o = objective(name)
    z, zhat = clip(0)
    draw = o.draw((0,), (B, T, D), "cuda")
    assert all(x.is_cuda and x.dtype == torch.float32 for x in draw)
    on_cpu = o(z.cpu(), zhat.cpu(), tuple(x.cpu() for x in draw))
    for key, value in o(z, zhat, draw).items():
        assert torch.allclose(value.cpu(), on_cpu[key], rtol=1e-4, atol=1e-6), key


@pytest.mark.parametrize("name", sorted(REGULARIZERS))
def test_replays_as_a_graph_without_waiting(name):
    o = objective(name)
    z, zhat = (x.requires_grad_() for x in clip(0))
    draw = o.draw((0,), (B, T, D), "cuda")

    def step():
        loss = o(z, zhat, draw)["loss"]
        return loss, *torch.autograd.grad(loss, (z, zhat))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        fresh = o.draw((1,), (B, T, D), "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for held, new in zip((z, zhat), clip(1), strict=True):
            held.copy_(new)
    for held, new in zip(draw, fresh, strict=True):
        held.copy_(new)
    graph.replay()
    for result, want in zip(captured, step(), strict=True):
        assert torch.allclose(result, want, rtol=1e-5, atol=1e-7)
