"""The encoder's kernels: on CUDA against float64, and everywhere when they are used."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from lpwm.kernels import encoder as attention
from lpwm.kernels.settings import Product, Settings
from lpwm.model.encoder import EncoderConfig, ViT

CONFIG = EncoderConfig(image_size=32, patch=8, width=64, depth=3, heads=2, head_dim=64, mlp=128)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def far(got, want):
    got, want = got.double().cpu(), want.double().cpu()
    return float((got - want).norm() / want.norm())


def exact(qkv, g, heads):
    """softmax(q kᵀ/√d) v, its gradient and the gradient's sum over everything but the last axis, in float64."""
    x = qkv.double().cpu().requires_grad_()
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x.chunk(3, -1))
    weight = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    out = (weight @ v).transpose(1, 2).flatten(-2)
    out.backward(g.double().cpu())
    return out.detach(), x.grad, x.grad.sum((0, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [17, 64, 65, 100, 257])
@pytest.mark.parametrize("heads", [1, 3])
def test_attention_is_float64s_up_to_bfloat16(n, heads):
    kernels = pytest.importorskip("lpwm.kernels.attention")
    x = noise(4, n, 3 * heads * 64, seed=n).bfloat16().cuda()
    g = noise(4, n, heads * 64, seed=n + 1).bfloat16().cuda()
    out, lse = kernels.attention_forward(x, heads)
    got, sums = kernels.attention_backward(g, x, out, lse, heads)
    want, dx, db = exact(x, g, heads)
    assert far(out, want) < 5e-3 and far(got, dx) < 8e-3
    q, k, v = sums.sum(0).cpu().double().chunk(3)
    assert far(q, db.chunk(3)[0]) < 2e-2 and far(v, db.chunk(3)[2]) < 5e-3
    assert not k.any() and db.chunk(3)[1].abs().max() < 1e-9  # a softmax does not see the keys' bias


@pytest.mark.gpu
def test_large_scores_stay_finite():
    kernels = pytest.importorskip("lpwm.kernels.attention")
    x = (30 * noise(2, 257, 3 * 64)).bfloat16().cuda()
    out, lse = kernels.attention_forward(x, 1)
    dx, _ = kernels.attention_backward(torch.ones_like(out), x, out, lse, 1)
    assert out.isfinite().all() and dx.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 257, 768), (1, 5, 96)])
def test_gelu_and_its_bias(shape):
    kernels = pytest.importorskip("lpwm.kernels.pointwise")
    x = (2 * noise(*shape)).bfloat16().cuda()
    g = noise(*shape, seed=1).bfloat16().cuda()
    out = kernels.gelu_forward(x)
    dx, sums = kernels.gelu_backward(g, x)
    y = x.double().cpu().requires_grad_()
    F.gelu(y).backward(g.double().cpu())
    assert far(out, F.gelu(y).detach()) < 4e-3 and far(dx, y.grad) < 4e-3
    assert far(sums.sum(0), y.grad.sum((0, 1))) < 1e-4


@pytest.mark.gpu
def test_patches_are_those_of_the_plain_path():
    vit = ViT(EncoderConfig(image_size=56, width=8, depth=1, heads=1, head_dim=8, mlp=8, pixels="imagenet")).cuda()
    frames = torch.randint(0, 256, (3, 3, 56, 56), dtype=torch.uint8, generator=torch.Generator()).cuda()
    got = attention.patches(frames, vit.scale, vit.shift, 14)
    pixels = frames * vit.scale + vit.shift
    want = pixels.unfold(2, 14, 14).unfold(3, 14, 14).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
    assert got.shape[-1] == 592 and not got[..., 588:].any() and not got[:, 0].any()
    assert far(got[:, 1:, :588], want) < 3e-3


@pytest.mark.gpu
def test_the_compiled_encoder_is_the_eager_one():
    """Loss and gradients in bfloat16, compiled with the kernels, are as near to float32 as eager bfloat16 is."""
    config = EncoderConfig(image_size=56, width=192, depth=3, mlp=384)
    torch.manual_seed(0)
    vit = ViT(config).cuda()
    assert vit.use_kernels()
    frames = torch.randint(0, 256, (8, 3, 56, 56), dtype=torch.uint8).cuda()
    to = noise(8, 192).cuda()

    def gradients(f, enabled):
        vit.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            (f(frames).float() * to).sum().backward()
        return torch.cat([p.grad.flatten() for p in vit.parameters()])

    exact = gradients(vit, False)
    eager, compiled = gradients(vit, True), gradients(torch.compile(vit, fullgraph=True), True)
    assert far(compiled, exact) < 1.5 * far(eager, exact) + 1e-3


def test_plain_torch_elsewhere():
    vit = ViT(CONFIG)
    assert not vit.use_kernels() and not vit.by_kernels
    assert not attention.kernels_serve(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def split(qkv, heads):
    return (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))


class Plain:
    """Torch in the place of the kernels; what is named in `broken` is 5 % too large."""

    def __init__(self, broken=""):
        self.scale = lambda name: 1.05 if name == broken else 1.0

    def attention_forward(self, qkv, heads):
        out = F.scaled_dot_product_attention(*split(qkv, heads)).transpose(1, 2).flatten(-2)
        return self.scale("attention") * out, None

    def attention_backward(self, grad, qkv, out, lse, heads):
        x = qkv.detach().requires_grad_()
        (d,) = torch.autograd.grad(
            F.scaled_dot_product_attention(*split(x, heads)).transpose(1, 2).flatten(-2), x, grad
        )
        return self.scale("attention's gradient") * d, self.scale("attention's sums") * d.float().sum(1)

    def gelu_forward(self, x, tiles):
        return self.scale("gelu") * F.gelu(x)

    def gelu_backward(self, grad, x, tiles):
        y = x.detach().requires_grad_()
        (d,) = torch.autograd.grad(F.gelu(y), y, grad)
        return self.scale("gelu's gradient") * d, self.scale("gelu's sums") * d.float().sum(0, keepdim=True)


class PlainProducts(Plain):
    def serves(self, *_):
        return True

    def pieces(self, *_):
        return 1

    def up(self, x, w, bias, hidden, active, product, slope):
        u = (x.float() @ w.float().t() + bias.float()).requires_grad_()
        y = F.gelu(u)
        (d,) = torch.autograd.grad(y.sum(), u)
        hidden.copy_(self.scale("up") * (d if slope else u.detach()))
        active.copy_(self.scale("gelu after up") * y.detach())

    def down_backward(self, grad, w, hidden, out, sums, product, slope):
        d, u = grad.float() @ w.float(), hidden.float().requires_grad_()
        d = d * (hidden.float() if slope else torch.autograd.grad(F.gelu(u).sum(), u)[0])
        out.copy_(self.scale("down's gradient") * d)
        sums.copy_(self.scale("down's sums") * d.sum(0, keepdim=True))


PRODUCTS = ["up", "gelu after up", "down's gradient", "down's sums"]


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("broken", ["", *PRODUCTS])
def test_the_trial_of_products_tells_right_from_wrong(monkeypatch, broken, slope):
    monkeypatch.setattr(attention, "kernels_mlp", PlainProducts(broken))
    chosen = Settings(up=Product(), down=Product(), slope=slope)
    errors = attention._product_errors(chosen, 32, 64, torch.device("cpu"))
    assert all((error < 0.02) == (name != broken) for name, error in zip(PRODUCTS, errors, strict=True))
    assert attention._product_errors(Settings(), 32, 64, torch.device("cpu")) == []


def plain_patches(frames, scale, shift, patch):
    x = (frames * scale + shift).bfloat16()
    x = rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=patch, q=patch)
    return F.pad(x, (0, -x.shape[-1] % 8, 1, 0))


class PlainNorms(Plain):
    """LayerNorm, the last block's attention, and products."""

    def pieces(self, m, tiles):
        return 2

    def norm_forward(self, r, c, eps, out, one, tiles, first=None):
        x = r.float() + c
        if first is not None:
            x.view(len(first), -1, x.shape[-1])[:, 0] = first + c
        scale = self.scale("norm" if first is None else "norm of token 0")
        out.copy_(scale * F.layer_norm(x, c.shape, eps=eps))
        one.copy_((x.var(-1, correction=0) + eps).rsqrt())

    def norm_backward(self, grad, xhat, one, stream, out, sums, tiles):
        g, x = grad.float(), xhat.float()
        d = (g - g.mean(1, keepdim=True) - x * (g * x).mean(1, keepdim=True)) * one[:, None]
        out.copy_(self.scale("norm's gradient") * d)
        sums.zero_()[0] = self.scale("norm's sums") * d.sum(0)

    def totals(self, parts, out):
        out.copy_(parts.sum(1))

    def hear(self, r, c, asked, scale, eps, tiles):
        x = F.layer_norm(r.float() + c, c.shape, eps=eps)
        a = (torch.einsum("hbw,bnw->hbn", asked.float(), x) * scale).softmax(-1)
        return self.scale("heard") * torch.einsum("hbn,bnw->hbw", a, x), None

    def hear_backward(self, grad, r, c, asked, heard, lse, scale, eps, sums, tiles):
        inputs = [t.detach().float().requires_grad_() for t in (r, c, asked)]
        out = PlainNorms().hear(*inputs, scale, eps, tiles)[0]
        d_r, d_c, d_asked = torch.autograd.grad(out, inputs, grad.float())
        sums.zero_()[0] = self.scale("heard's sums") * d_c
        return self.scale("heard's gradient") * d_r, self.scale("asked's gradient") * d_asked

    def product(self, a, b, out, bias=None, grows=False):
        wide = a.float() @ b.float() + (bias.float() if bias is not None else 0.0) + (out if grows else 0.0)
        name = "product with a bias" if bias is not None else "product that grows" if grows else "product"
        name = "wide product" if out.dtype != a.dtype else name
        out.copy_(self.scale(name) * wide)


KINDS = [
    "attention",
    "attention's gradient",
    "attention's sums",
    "gelu",
    "gelu's gradient",
    "gelu's sums",
    "norm",
    "norm's gradient",
    "norm's sums",
    "norm of token 0",
    "heard",
    "heard's gradient",
    "heard's sums",
    "asked's gradient",
    "product with a bias",
    "product",
    "product that grows",
    "wide product",
    "patches",
]


@pytest.mark.parametrize("broken", ["", *KINDS])
def test_the_trial_tells_right_from_wrong(monkeypatch, broken):
    """Plain torch passes it, and a scale of 1.05 anywhere does not."""
    plain = PlainNorms(broken)
    for name in ("kernels", "kernels_pointwise", "kernels_norm", "kernels_last"):
        monkeypatch.setattr(attention, name, plain)
    monkeypatch.setattr(attention, "product", plain.product)
    monkeypatch.setattr(attention, "patches", lambda *a: plain.scale("patches") * plain_patches(*a))
    cpu = torch.device("cpu")
    errors = [
        *attention._attention_errors(17, 2, cpu),
        *attention._gelu_errors(24, 32, cpu),
        *attention._norm_errors(24, cpu),
        *attention._last_errors(17, 24, 2, cpu),
        *attention._blas_errors(24, 32, cpu),
        attention._cut_error(4, cpu),
    ]
    assert all((error < 0.02) == (name != broken) for name, error in zip(KINDS, errors, strict=True))


@pytest.mark.parametrize(("error", "ends"), [(0.003, True), (0.1, False), (float("nan"), False)])
def test_kernels_that_are_wrong_here_are_not_used(monkeypatch, error, ends):
    monkeypatch.setattr(attention, "kernels", object())
    monkeypatch.setattr(attention, "_attention_errors", lambda *a: [0.001, error, 0.001])
    monkeypatch.setattr(attention, "_gelu_errors", lambda *a: [0.001])
    for name in ("_norm_errors", "_last_errors", "_blas_errors"):
        monkeypatch.setattr(attention, name, lambda *a: [0.001])
    monkeypatch.setattr(attention, "_cut_error", lambda *a: 0.001)
    call = attention.usable.__wrapped__
    args = (257, 384, 3, 64, 768, 14, torch.device("cuda"))
    if ends:
        assert call(*args)
    else:
        with pytest.warns(UserWarning, match=r"torch's are used"):
            assert not call(*args)


def test_kernels_that_do_not_start_here_are_not_used(monkeypatch):
    def fail(*_):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(attention, "kernels", object())
    monkeypatch.setattr(attention, "_attention_errors", fail)
    with pytest.warns(UserWarning, match="shared memory"):
        assert not attention.usable.__wrapped__(257, 384, 3, 64, 768, 14, torch.device("cuda"))
