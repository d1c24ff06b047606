"""Stacked seeds in bfloat16: every fused gradient gets the types it announced, under CUDA's rules of autocast too."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.optim import build, initialize
from lpwm.recipes import tiny
from lpwm.sweep import stacked
from lpwm.sweep.stack_layers import plain_attention, spell_out
from lpwm.sweep.stacked import StackedStepper
from lpwm.train.step import Stepper

SEEDS = (0, 3)
A, B, T = 4, 6, 4


@contextmanager
def autocast_as_on_cuda():
    """CUDA's autocast makes float32 of some operations that the CPU's leaves alone; here the CPU's does too."""
    aten = torch.ops.aten
    wide = [
        aten.layer_norm.default,
        aten.native_layer_norm.default,
        aten.pow.Tensor_Scalar,
        aten.exp.default,
        aten.rsqrt.default,
        aten.log.default,
    ]
    summed = {aten.softmax.int: 2, aten.cumsum.default: 2, aten.sum.default: 1, aten.sum.dim_IntList: 3}

    def cast(op):
        def kernel(*args, **kwargs):
            with torch.autocast("cpu", enabled=False):
                return op(*(x.float() if low(x) else x for x in args), **kwargs)

        return kernel

    def typed(op, positional):
        def kernel(*args, dtype=None, **kwargs):
            given = [*args[positional:], dtype][0] or (torch.float32 if low(args[0]) else None)
            with torch.autocast("cpu", enabled=False):
                return op(*args[:positional], dtype=given, **kwargs)

        return kernel

    with torch.library._scoped_library("aten", "IMPL") as library:
        for op in wide:
            library.impl(op, cast(op), "AutocastCPU")
        for op, positional in summed.items():
            library.impl(op, typed(op, positional), "AutocastCPU")
        yield


def low(x):
    return isinstance(x, Tensor) and x.dtype == torch.bfloat16


class Gradients(TorchDispatchMode):
    """Which fused gradients run, and those whose gradient is not of the type of the input, or of the one announced."""

    def __init__(self):
        super().__init__()
        self.seen, self.mixed = set(), []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        if "backward" in name:
            told = [x.dtype for x in args if isinstance(x, Tensor)][:2]
            told += [x for x in args if isinstance(x, torch.dtype)]
            self.seen.add(name)
            if len(set(told)) > 1:
                self.mixed.append((name, *told))
        return op(*args, **(kwargs or {}))


@pytest.fixture
def gradients(monkeypatch):
    """The mode is on in the backward pass alone: in the forward one it would hide what autocast does inside."""
    log, backward = Gradients(), Tensor.backward

    def logged(self, *args, **kwargs):
        with log:
            backward(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "backward", logged)
    return log


def config_of(rung):
    base = tiny()
    predictor = replace(base.model.predictor, rung=rung, heads=2, head_dim=8, mlp=16, head_hidden=16, dropout=0.0)
    encoder = replace(base.model.encoder, depth=2)  # the last block attends in another way on the CPU
    return replace(base, model=replace(base.model, predictor=predictor, encoder=encoder))


def models_of(config, device="cpu"):
    out = []
    for seed in SEEDS:
        model = WorldModel(config.model, A)
        initialize(model, seed)
        out.append(model.to(device).train())
    return out


def inputs(config, objective, device="cpu"):
    g = torch.Generator().manual_seed(0)
    side = config.model.encoder.image_size
    pixels = torch.randint(0, 256, (len(SEEDS), B, T, 3, side, side), generator=g, dtype=torch.uint8)
    actions = torch.randn(len(SEEDS), B, T - 1, A, generator=g)
    draws = [objective.draw((s, 0), B, T, config.model.latent, device) for s in SEEDS]
    return pixels.to(device), actions.to(device), draws


def together(config, device="cpu", compiled=False):
    objective = Objective(config.objective, config.model.sparse)
    models = models_of(config, device)
    optimizers = [build(m, config.optim) for m in models]
    stepper = StackedStepper(models, objective, optimizers, config.optim.clip, torch.bfloat16, compiled=compiled)
    return stepper(*inputs(config, objective, device), 1.0)


def alone(config, device="cpu"):
    objective = Objective(config.objective, config.model.sparse)
    pixels, actions, draws = inputs(config, objective, device)
    steppers = [
        Stepper(m, objective, build(m, config.optim), B, clip=config.optim.clip, precision=torch.bfloat16)
        for m in models_of(config, device)
    ]
    return [s(pixels[i], actions[i], draws[i], 1.0, 0) for i, s in enumerate(steppers)]


def compare(stack, single):
    """Same types, and codes and terms within what bfloat16 leaves: 2⁻⁸ an operation, some dozen in a row."""
    for mine, theirs in zip(stack, single, strict=True):
        assert mine["z"].dtype == theirs["z"].dtype == torch.float32  # the projector's
        assert mine["zhat"].dtype == theirs["zhat"].dtype
        z, other = mine["z"].float(), theirs["z"].float()
        assert (z - other).norm() < 2e-2 * other.norm()
        for name, within in (("loss", 2e-2), ("gradient_norm", 5e-2)):
            assert mine[name].item() == pytest.approx(theirs[name].item(), rel=within), name


@pytest.mark.parametrize("rung", ["mlp-lti", "shallow-adaln"])
@pytest.mark.parametrize("rules", ["cpu", "cuda"])
def test_in_bfloat16_no_fused_gradient_gets_mixed_types(rung, rules, gradients):
    config = config_of(rung)
    with autocast_as_on_cuda() if rules == "cuda" else nullcontext():
        found = together(config)
        fused = {"native_layer_norm_backward", "_scaled_dot_product_flash_attention_for_cpu_backward"}
        assert fused | {"_softmax_backward_data"} <= gradients.seen
        assert gradients.mixed == []
        compare(found, alone(config))


def test_left_to_vmap_attention_gets_a_gradient_that_cuda_refuses(gradients, monkeypatch):
    """What the test above would see, and where: not in LayerNorm but in the softmax."""
    monkeypatch.setattr(stacked, "spell_out", lambda net, compiled: net)
    with autocast_as_on_cuda(), sdpa_kernel(SDPBackend.MATH):
        together(config_of("mlp-lti"))
    assert gradients.mixed == [("_softmax_backward_data", torch.float32, torch.float32, torch.bfloat16)]


def test_spelled_out_layers_are_those_of_torch():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 7),
        nn.LayerNorm(7),
        nn.LayerNorm(7, elementwise_affine=False),
        nn.LayerNorm(7, bias=False),
        nn.Linear(7, 3, bias=False),
    ).double()
    for p in net.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    want = net(x)
    assert spell_out(net) is net and torch.allclose(net(x), want, atol=1e-12)
    assert spell_out(nn.LayerNorm(4))(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32
    q, k, v = torch.randn(3, 2, 2, 6, 4, dtype=torch.float64)
    want = nn.functional.scaled_dot_product_attention(q[:, :, :1], k, v)
    assert torch.allclose(plain_attention(q[:, :, :1], k, v), want, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 2])
def test_folded_attention_takes_the_seeds_from_any_axis(axis):
    block = spell_out(WorldModel(config_of("lti").model, A).encoder.vit.blocks[0])
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 3, 2, 2, 6, 4, dtype=torch.float64))
    moved = [t.movedim(0, axis) for t in (q, k, v)]
    got = vmap(block.attend, in_dims=axis)(*moved)
    want = torch.stack([plain_attention(q[i], k[i], v[i]) for i in range(3)])
    assert torch.allclose(got, want, atol=1e-12)
    weight = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, (q, k, v), weight) for y in (got, want)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_the_compiled_form_is_traced_whole(monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: real(f, backend="eager", fullgraph=True, **kw))
    config = config_of("mlp-lti")
    compare(together(config, compiled=True), alone(config))


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["mlp-lti", "shallow-adaln"])
def test_on_cuda_a_stack_in_bfloat16_agrees_with_the_seeds_alone(rung):
    config = config_of(rung)
    compare(together(config, "cuda"), alone(config, "cuda"))
