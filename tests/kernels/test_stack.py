"""All blocks as one operator: against the plain blocks in float64, with torch in the place of the kernels; and the
kernels themselves in Triton's interpreter, where Triton is installed."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from lpwm.core.errors import UserError
from lpwm.kernels import encoder as attention
from lpwm.kernels import settings as kernels_settings
from lpwm.kernels import stack
from lpwm.kernels.settings import Product, Settings
from lpwm.model.encoder import EncoderConfig, ViT

CONFIG = EncoderConfig(image_size=32, patch=8, width=24, depth=4, heads=2, head_dim=8, mlp=40)


def split(qkv, heads):
    return (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))


def attention_forward(qkv, heads, out, lse):
    q, k, v = split(qkv, heads)
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    out.copy_((s.softmax(-1) @ v).transpose(1, 2).flatten(-2))
    lse.copy_(s.logsumexp(-1) / math.log(2))


def attention_backward(grad, qkv, out, lse, heads, dqkv, dbias):
    with torch.enable_grad():
        x = qkv.detach().requires_grad_()
        o = F.scaled_dot_product_attention(*split(x, heads)).transpose(1, 2).flatten(-2)
        (d,) = torch.autograd.grad(o, x, grad)
    dqkv.copy_(d)
    dbias.copy_(d.sum(1))


def gelu_backward(grad, x, out, sums, tiles):
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        (d,) = torch.autograd.grad(F.gelu(y), y, grad)
    out.copy_(d)
    sums.zero_()[0] = d.sum(0)


def norm_forward(r, c, eps, out, scale, tiles, first=None):
    x = r + c
    if first is not None:
        x.view(len(first), -1, x.shape[-1])[:, 0] = first + c
    out.copy_(F.layer_norm(x, x.shape[-1:], eps=eps))
    scale.copy_((x.var(-1, correction=0) + eps).rsqrt())


def norm_backward(grad, xhat, scale, stream, out, sums, tiles):
    w = grad.shape[-1]
    d = (grad - grad.mean(-1, keepdim=True) - xhat * (grad * xhat).sum(-1, keepdim=True) / w) * scale[:, None]
    out.copy_(stream + d)
    sums.zero_()[0] = d.sum(0)


class Stack(torch.autograd.Function):
    """The operator, as `torch.library` wires it on CUDA."""

    @staticmethod
    def forward(ctx, patches, *inputs):
        first, told, kept = stack.forward(patches, stack.Folded(*inputs[:-2]), *inputs[-2:])
        stack._save(ctx, (patches, *inputs), (first, told, *kept))
        return first, told, *kept

    @staticmethod
    def backward(ctx, grad_first, grad, *_):
        return stack._grad(ctx, grad_first, grad)


def plain_up(x, w, bias, hidden, active, product, slope):
    with torch.enable_grad():
        u = (x @ w.t() + bias).detach().requires_grad_()
        (d,) = torch.autograd.grad(F.gelu(u).sum(), u)
    active.copy_(F.gelu(u.detach()))
    hidden.copy_(d if slope else u.detach())


def plain_down(grad, w, hidden, out, sums, product, slope):
    if slope:
        out.copy_(grad @ w * hidden)
        sums.zero_()[0] = out.sum(0)
    else:
        gelu_backward(grad @ w, hidden, out, sums, None)


def average(r, c, asked, scale, eps):
    """What the last block hears of x̂, and the log-sum of its scores."""
    x = F.layer_norm(r + c, c.shape, eps=eps)
    s = torch.einsum("hbw,bnw->hbn", asked, x) * scale
    return torch.einsum("hbn,bnw->hbw", s.softmax(-1), x), s.logsumexp(-1) / math.log(2)


def hear_backward(grad, r, c, asked, heard, lse, scale, eps, sums, tiles):
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in (r, c, asked)]
        d_r, d_c, d_asked = torch.autograd.grad(average(*inputs, scale, eps)[0], inputs, grad)
    sums.zero_()[0] = d_c
    return d_r, d_asked


def plain_patches(frames, scale, shift, patch):
    x = rearrange(frames * scale + shift, "b c (h p) (w q) -> b (h w) (c p q)", p=patch, q=patch)
    return F.pad(x, (0, 2, 1, 0))


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(),
        Settings(up=Product()),
        Settings(down=Product()),
        Settings(up=Product(), down=Product(), slope=True),
        Settings(up=Product(), slope=True),
    ],
    ids=["plain", "up", "down", "slope", "slope without down"],
)
def test_the_operator_is_the_blocks(monkeypatch, chosen):
    monkeypatch.setitem(kernels_settings.BY_WIDTH, CONFIG.width, chosen)
    fused = SimpleNamespace(
        up=plain_up, down_backward=plain_down, serves=lambda p, w, f, device: p is not None, pieces=lambda *_: 2
    )
    monkeypatch.setattr(stack, "kernels_mlp", fused)
    torch.manual_seed(0)
    vit = ViT(CONFIG).double()
    for name, p in vit.named_parameters():  # nothing is 0 or 1 by chance
        torch.nn.init.normal_(p, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.2)
    frames = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    to = torch.randn(4, 24, dtype=torch.float64)

    def gradients():
        vit.zero_grad()
        out = vit(frames)
        (out * to).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in vit.parameters())]

    want = gradients()
    used = []
    monkeypatch.setattr(attention, "kernels_serve", lambda x: True)
    monkeypatch.setattr(attention, "patches", plain_patches)
    monkeypatch.setattr(stack, "_stack", lambda *a: used.append(a) or Stack.apply(*a))
    whole = lambda g0, g, patches, kept, weights, *rest: stack.backward(  # noqa: E731
        g0.contiguous(), g.contiguous(), patches, stack.Kept(*kept), stack.Folded(*weights), *rest
    )
    monkeypatch.setattr(stack, "_stack_backward", whole)
    heads = SimpleNamespace(
        attention_forward=attention_forward, attention_backward=attention_backward, pieces=lambda b, n: b
    )
    monkeypatch.setattr(stack, "kernels", heads)
    gelu = SimpleNamespace(gelu_forward=lambda x, out, tiles: out.copy_(F.gelu(x)), gelu_backward=gelu_backward)
    monkeypatch.setattr(stack, "kernels_pointwise", gelu)
    norm = SimpleNamespace(
        norm_forward=norm_forward,
        norm_backward=norm_backward,
        pieces=lambda m, tiles: 2,
        totals=lambda parts, out: out.copy_(parts.sum(1)),
        begin=lambda frame, out: out.copy_(frame),
    )
    monkeypatch.setattr(stack, "kernels_norm", norm)
    last = SimpleNamespace(hear=lambda *a: average(*a[:-1]), hear_backward=hear_backward)
    monkeypatch.setattr(stack, "kernels_last", last)
    vit.by_kernels = True
    got = gradients()
    assert len(used) == 1
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_token_0_is_nearer_than_bfloat16_rounds(monkeypatch):
    """In the precision of a GPU, with torch in the place of the kernels."""
    wide = lambda f: lambda *a: f(*(t.float() if isinstance(t, torch.Tensor) else t for t in a[:1]), *a[1:])  # noqa: E731
    heads = SimpleNamespace(attention_forward=wide(attention_forward))
    norm = SimpleNamespace(norm_forward=wide(norm_forward), begin=lambda frame, out: out.copy_(frame))
    gelu = SimpleNamespace(gelu_forward=lambda x, out, tiles: out.copy_(F.gelu(x.float())))
    last = SimpleNamespace(hear=lambda r, c, asked, *_: (torch.zeros_like(asked), asked))
    fakes = {"kernels": heads, "kernels_norm": norm, "kernels_pointwise": gelu, "kernels_last": last}
    for name, fake in {**fakes, "kernels_mlp": SimpleNamespace(serves=lambda *_: False)}.items():
        monkeypatch.setattr(stack, name, fake)
    torch.manual_seed(0)
    vit = ViT(CONFIG)
    for name, p in vit.named_parameters():
        torch.nn.init.normal_(p, mean=1.0 if "norm" in name and "weight" in name else 0.0, std=0.2)
    patches = plain_patches(torch.randint(0, 256, (4, 3, 32, 32)), vit.scale, vit.shift, CONFIG.patch)
    embed = F.pad(vit.embed.weight, (0, 2))
    *first, end = vit.blocks

    with torch.no_grad():  # a stream that begins far from 0, so that bfloat16 cannot tell what is added
        weights = stack.fold(embed, vit.position + 64 * torch.ones(24), first, end, torch.bfloat16)
        token, _, kept = stack.forward(patches.bfloat16(), weights, CONFIG.heads, 1e-6)
    assert token.dtype == torch.float32
    want = weights.begin[0].double() + sum(
        kept.heard[j, :, 0].double() @ weights.out[j].double().t()
        + kept.active[j, :, 0].double() @ weights.down[j].double().t()
        for j in range(len(first))
    )
    assert (token - want).norm() < 0.1 * (kept.r[:, 0] - want).norm()
    x = F.layer_norm(token + weights.c[-1], (24,), eps=1e-6)
    torch.testing.assert_close(kept.x0.float(), x, rtol=1e-2, atol=1e-2)  # what asks is of that token


def test_settings_are_read_as_they_were_written(monkeypatch):
    monkeypatch.setattr(kernels_settings, "BY_WIDTH", {})
    chosen = Settings(up=Product(rows=64), slope=True)
    kernels_settings.apply(json.loads(json.dumps({"384": asdict(chosen)})))
    assert kernels_settings.of(384) == chosen and kernels_settings.of(192) == Settings()
    for wrong in ({"rows": 3}, {"up": {"row": 3}}):
        with pytest.raises(UserError, match="measure them anew"):
            kernels_settings.read(wrong)


INTERPRETED = """
import itertools, math, sys, torch, torch.nn.functional as F
sys.path.insert(0, sys.argv[1])
from common.trials import interpret
from lpwm.model import kernels as K, kernels_last as O, kernels_mlp as M, kernels_norm as N, kernels_pointwise as P
from lpwm.kernels.settings import GeluTiles, LastTiles, NormTiles, Product

interpret()

def far(a, b):
    error = float((a.double() - b.double()).norm() / b.double().norm())
    return error if error == error else math.inf  # max() passes over what is no number

torch.manual_seed(0)
large = K.Tiles(rows=128, keys=64, lone=True), K.Tiles(rows=32, lone=True), K.Tiles(rows=32, lone=True)
cuts = [(K.FORWARD, K.DQ, K.DKV), [K.Tiles()] * 3, [K.Tiles(rows=128, queries=32, even=True)] * 3, large]
for even in (False, True):  # as in use, but for the last tile and for rows of a multiple of 4
    cuts.append((K.Tiles(keys=64), K.Tiles(keys=64), K.Tiles(queries=32, even=even)))
for n in (17, 64, 65, 100, 130, 257):
    b = 2 if n < 100 else 1
    x, g = torch.randn(b, n, 3 * 2 * 64), torch.randn(b, n, 2 * 64)
    x[..., :256] *= 2  # so that maxima move from tile to tile
    wide = x.double().requires_grad_()
    q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in wide.chunk(3, -1))
    s = q @ k.transpose(-1, -2) / 8
    o = (s.softmax(-1) @ v).transpose(1, 2).flatten(-2)
    o.backward(g.double())
    sums = wide.grad.sum((0, 1))
    for K.FORWARD, K.DQ, K.DKV in cuts:
        out, lse, dx = (torch.full(t, float("nan")) for t in (g.shape, (b, 2, n), x.shape))
        K.attention_forward(x, 2, out, lse)
        assert K.pieces(b, n) == b * -(-n // K.DQ.rows)
        db = torch.full((K.pieces(b, n), 384), float("nan"))
        K.attention_backward(g, x, out, lse, 2, dx, db)
        db = db.sum(0)
        errors = [far(out, o.detach()), far(lse * math.log(2), s.detach().logsumexp(-1)), far(dx, wide.grad),
                  far(db[:128], sums[:128]), far(db[256:], sums[256:])]
        assert max(errors) < 2e-6 and not db[128:256].any(), (n, K.FORWARD, K.DQ, K.DKV, errors)
m = 70
for w, tiles in ((24, NormTiles()), (96, NormTiles(part=32)), (48, NormTiles(4, 16, span=16, stages=2)),
                 (24, NormTiles(part=16))):
    r, c, g, stream = torch.randn(m, w), torch.randn(w), torch.randn(m, w), torch.randn(m, w)
    out, one, sums = torch.empty(m, w), torch.empty(m), torch.empty(N.pieces(m, tiles), w)
    wide = (r + c).double().requires_grad_()
    y = F.layer_norm(wide, (w,), eps=1e-6)
    y.backward(g.double())
    N.norm_forward(r, c, 1e-6, out, one, tiles)
    kept = r.clone()
    kept.view(10, 7, w)[:, 0] = math.nan
    again, once = torch.full_like(out, math.nan), torch.full_like(one, math.nan)
    N.norm_forward(kept, c, 1e-6, again, once, tiles, r.view(10, 7, w)[:, 0].contiguous())
    assert torch.equal(again, out) and torch.equal(once, one), (w, tiles)
    total = stream.clone()
    N.norm_backward(g, out, one, total, total, sums, tiles)
    errors = [far(out, y.detach()), far(total, stream + wide.grad), far(sums.sum(0), wide.grad.sum(0))]
    assert max(errors) < 5e-6, (w, tiles, errors)
for b, n, w, h, tiles in ((2, 17, 24, 2, LastTiles()), (3, 9, 48, 3, LastTiles(part=16)), (2, 3, 24, 2, LastTiles()),
                          (1, 65, 96, 1, LastTiles(32, 32, warps=2, stages=3)), (2, 33, 24, 16, LastTiles())):
    r, c, asked, g = torch.randn(b, n, w), torch.randn(w), torch.randn(h, b, w), torch.randn(h, b, w)
    wide = [t.double().requires_grad_() for t in (r, c, asked)]
    x = F.layer_norm(wide[0] + wide[1], (w,), eps=1e-6)
    s = torch.einsum("hbw,bnw->hbn", wide[2], x) / 3
    y = torch.einsum("hbn,bnw->hbw", s.softmax(-1), x)
    slopes = torch.autograd.grad(y, wide, g.double())
    heard, lse = O.hear(r, c, asked, 1 / 3, 1e-6, tiles)
    sums = torch.full((b, w), float("nan"))
    dr, da = O.hear_backward(g, r, c, asked, heard, lse, 1 / 3, 1e-6, sums, tiles)
    errors = [far(heard, y.detach()), far(lse * math.log(2), s.detach().logsumexp(-1)),
              *map(far, (dr, sums.sum(0), da), slopes)]
    assert max(errors) < 5e-6, (n, w, tiles, errors)
for g, rows, w in ((3, 5, 24), (1, 300, 40), (2, 33, 4200)):
    parts, out = torch.randn(g, rows, w), torch.full((g, w), float("nan"))
    N.totals(parts, out)
    assert far(out, parts.double().sum(1)) < 2e-6, (g, rows, w)
frame, out = torch.randn(3, 1700), torch.full((4, 3, 1700), float("nan"))
N.begin(frame, out)
assert torch.equal(out, frame.expand(4, 3, 1700))
w, f = 48, 64
x, g, bias = torch.randn(m, w), torch.randn(m, w), torch.randn(f)
up, down = torch.randn(f, w) / 7, torch.randn(w, f) / 7
u = (x.double() @ up.double().t() + bias).requires_grad_()
y = F.gelu(u)
(slope,) = torch.autograd.grad(y.sum(), u, retain_graph=True)
(want,) = torch.autograd.grad(y, u, g.double() @ down.double())
for tiles in (GeluTiles(), GeluTiles(block=256, span=32, rows=8, cols=32)):
    v = u.detach().float()
    dx, sums = P.gelu_backward((g @ down), v, tiles=tiles)
    errors = [far(P.gelu_forward(v, tiles=tiles), y.detach()), far(dx, want), far(sums.sum(0), want.sum(0))]
    assert max(errors) < 2e-6, (tiles, errors)
forms = Product(32, 32, 16), Product(16, 32, 16), Product(64, 16, 16)
for product, kept in itertools.product(forms, (False, True)):
    assert M.serves(product, w, f, x.device)
    hidden, active, out = (torch.full((m, f), float("nan")) for _ in range(3))
    M.up(x, up, bias, hidden, active, product, kept)
    sums = torch.full((M.pieces(m, product), f), float("nan"))
    M.down_backward(g, down, hidden, out, sums, product, kept)
    errors = [far(hidden, slope if kept else u.detach()), far(active, y.detach()), far(out, want),
              far(sums.sum(0), want.sum(0))]
    assert max(errors) < 2e-6, (product, kept, errors)
assert not any(M.serves(p, w, f, x.device) for p in (None, Product(32, 48, 16), Product(32, 32, 32)))
descriptors, gpu = M.TensorDescriptor, torch.device("cuda", 0)
for version, M.TensorDescriptor, there in (((8, 0), descriptors, False), ((8, 9), descriptors, False),
                                           ((9, 0), descriptors, True), ((12, 0), descriptors, True),
                                           ((9, 0), None, False)):
    M._described.cache_clear()
    torch.cuda.get_device_capability = lambda device: version
    assert M.serves(forms[0], w, f, gpu) == there, (version, M.TensorDescriptor)
frames = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)
scale, shift = torch.rand(3, 1, 1), torch.rand(3, 1, 1)
got = P.patches(frames, scale, shift, 14).float()
want = (frames * scale + shift).unfold(2, 14, 14).unfold(3, 14, 14).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
assert got.shape[-1] == 592 and not got[..., 588:].any() and not got[:, 0].any()
assert far(got[:, 1:, :588], want) < 5e-3  # it truncates
print("right")
"""


def test_kernels_in_the_interpreter(interpreted):
    interpreted(INTERPRETED, str(Path(__file__).parents[2] / "bench"))


@pytest.mark.gpu
def test_the_operator_on_cuda_is_the_plain_blocks():
    """Output and gradients in bfloat16, as near to float32 as eager bfloat16 is."""
    torch.manual_seed(0)
    vit = ViT(EncoderConfig(image_size=56, width=192, depth=4, mlp=384)).cuda()
    assert vit.use_kernels()
    for block in vit.blocks:
        torch.nn.init.normal_(block.norm1.bias, std=0.3)
        torch.nn.init.normal_(block.out.bias, std=0.3)
    frames = torch.randint(0, 256, (8, 3, 56, 56), dtype=torch.uint8).cuda()
    to = torch.randn(8, 192).cuda()

    def gradients(f, enabled):
        vit.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            (f(frames).float() * to).sum().backward()
        return [p.grad.double().clone() for p in vit.parameters()]

    def far(a, b):
        return float((a - b).norm() / (b.norm() + 1e-9))

    want = gradients(vit, False)
    eager, fused = gradients(vit, True), gradients(torch.compile(vit, fullgraph=True), True)
    for (name, _), a, e, w in zip(vit.named_parameters(), fused, eager, want, strict=True):
        if name.endswith("qkv.bias"):  # the keys' part is 0 up to rounding
            a, e, w = (torch.cat((t[: len(t) // 3], t[-len(t) // 3 :])) for t in (a, e, w))
        assert far(a, w) < 2 * far(e, w) + 5e-3, name
