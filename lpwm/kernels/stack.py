"""The encoder from patches to what its last block hears, as one operator with its own gradient, for training on CUDA in
bfloat16: tokens, all blocks but the last, and the attention of the last, which only token 0 asks.

A block is r += out(attention(qkv(x̂))); r += down(gelu(up(x̂))), x̂ the LayerNorm of the stream r. Written as one operator

- a residual is added by the matrix product itself, in place: nothing backwards needs the stream, only x̂. The first
  product adds patches to a stream that begins as positions (row 0 of the patches is 0: there is the class token);
- LayerNorm's scale and shift are folded into the weights that read it, W' = W diag(s) and b' = b + W t, and the
  biases of `out` and `down` are not added to the stream but carried as their running sum c, which LayerNorm adds:
  x̂ = norm(r + c). So LayerNorm reads one tensor and writes one, and backwards sums one;
- token 0 of the stream, of which the code is made, is also kept in float32: at first it differs from frame to frame by
  about what bfloat16 rounds (the others are averaged and do not mind; see docs/performance.md);
- gradients of biases leave each kernel as partial sums and are added up once for all blocks;
- the last block has no keys and values (`kernels_last`): its query is carried back through the keys' weights.

Folding and running sums are plain torch outside (`fold`), with autograd's own gradients.

Legend: b frames, n tokens, p numbers of a patch, w width, i = h·d width of all heads, f width of the MLP, L blocks but
the last, m = b·n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lpwm.kernels import settings as kernels_settings
from lpwm.kernels.blas import product

try:
    from lpwm.kernels import attention as kernels
    from lpwm.kernels import last as kernels_last
    from lpwm.kernels import mlp as kernels_mlp
    from lpwm.kernels import norm as kernels_norm
    from lpwm.kernels import pointwise as kernels_pointwise
except ImportError:  # no Triton: a CPU build of torch
    kernels = kernels_last = kernels_mlp = kernels_norm = kernels_pointwise = None  # type: ignore[assignment]


class Folded(NamedTuple):
    """Weights as the operator reads them: matrices in the precision of the stream, c (2L+1, w) float32 (row 0 is 0)."""

    embed: Tensor  # (w, p)
    begin: Tensor  # (n, w): what the stream of a frame begins as
    qkv: Tensor  # (L, 3i, w)
    qkv_bias: Tensor  # (L, 3i)
    out: Tensor  # (L, w, i)
    up: Tensor  # (L, f, w)
    up_bias: Tensor  # (L, f)
    down: Tensor  # (L, w, f)
    c: Tensor
    last: Tensor  # (3i, w)
    last_bias: Tensor  # (3i)


def fold(embed: Tensor, begin: Tensor, blocks: Sequence[Any], last: Any, dtype: torch.dtype) -> Folded:
    def stacked(name: str, part: str) -> Tensor:
        return torch.stack([getattr(getattr(block, name), part) for block in blocks])

    def read(layer: str, norm: str) -> tuple[Tensor, Tensor]:
        weight, scale, shift = stacked(layer, "weight"), stacked(norm, "weight"), stacked(norm, "bias")
        return _read(weight, stacked(layer, "bias"), scale, shift, dtype)

    biases = torch.stack([bias for block in blocks for bias in (block.out.bias, block.down.bias)])
    c = torch.cat((torch.zeros_like(biases[:1]), biases)).cumsum(0)
    return Folded(
        embed.to(dtype),
        begin.to(dtype),
        *read("qkv", "norm1"),
        stacked("out", "weight").to(dtype),
        *read("up", "norm2"),
        stacked("down", "weight").to(dtype),
        c,
        *_read(last.qkv.weight, last.qkv.bias, last.norm1.weight, last.norm1.bias, dtype),
    )


def _read(weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(…, o, w), (…, o), and of the norm (…, w) -> the weight and bias that read x̂ as these read the norm's output."""
    bias = bias + (weight * shift.unsqueeze(-2)).sum(-1)
    return (weight * scale.unsqueeze(-2)).to(dtype), bias.to(dtype)


def blocks(patches: Tensor, weights: Folded, heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """patches (b, n, p) -> token 0 of the stream after the L blocks (b, w), and what it hears in the last (b, i)."""
    first, heard, *_ = _stack(patches, *weights, heads, eps)
    return first + weights.c[-1], heard


class Kept(NamedTuple):
    """What the backward pass reads beside the weights: of the last block, of its token 0 and of the others."""

    r: Tensor  # (b, n, w): the stream
    asked: Tensor  # (h, b, w)
    average: Tensor  # (h, b, w): of x̂
    lse_last: Tensor  # (h, b)
    x0: Tensor  # (b, w): x̂ of token 0
    one0: Tensor  # (b): 1/σ
    q: Tensor  # (b, i)
    xhat: Tensor  # (2L, b, n, w)
    one: Tensor  # (2L, b, n): 1/σ
    qkv: Tensor  # (L, b, n, 3i)
    heard: Tensor  # (L, b, n, i)
    lse: Tensor  # (L, b, h, n)
    hidden: Tensor  # (L, b, n, f): the MLP before its GELU, or the GELU's derivative there
    active: Tensor  # (L, b, n, f): after it


def forward(patches: Tensor, weights: Folded, heads: int, eps: float) -> tuple[Tensor, Tensor, Kept]:
    """Token 0 of the stream, what it hears in the last block, and what is kept."""
    (b, n, p), (L, packed, w), f = patches.shape, weights.qkv.shape, weights.up.shape[1]
    m, inner, wide = b * n, packed // 3, torch.promote_types(patches.dtype, torch.float32)
    chosen, new = kernels_settings.of(w), patches.new_empty
    norm, c = chosen.norm_forward, weights.c
    up, _, slope = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, w, f, patches.device))
    r = new(b, n, w)
    stream = r.view(m, w)
    kernels_norm.begin(weights.begin, r)
    product(patches.view(m, p), weights.embed.t(), stream, grows=True)
    first = weights.begin[0].to(wide).repeat(b, 1)
    xhat, one = new(2 * L, b, n, w), new(2 * L, b, n, dtype=wide)
    qkv, heard, lse = new(L, b, n, packed), new(L, b, n, inner), new(L, b, heads, n, dtype=wide)
    hidden, active = new(L, b, n, f), new(L, b, n, f)
    for j in range(L):
        y, h, a = xhat[2 * j].view(m, w), hidden[j].view(m, f), active[j].view(m, f)
        kernels_norm.norm_forward(stream, c[2 * j], eps, y, one[2 * j].view(m), norm, first)
        product(y, weights.qkv[j].t(), qkv[j].view(m, packed), weights.qkv_bias[j])
        kernels.attention_forward(qkv[j], heads, heard[j], lse[j])
        product(heard[j].view(m, inner), weights.out[j].t(), stream, grows=True)
        product(heard[j, :, 0], weights.out[j].t(), first, grows=True)
        y = xhat[2 * j + 1].view(m, w)
        kernels_norm.norm_forward(stream, c[2 * j + 1], eps, y, one[2 * j + 1].view(m), norm, first)
        if up:
            kernels_mlp.up(y, weights.up[j], weights.up_bias[j], h, a, up, slope)
        else:
            product(y, weights.up[j].t(), h, weights.up_bias[j])
            kernels_pointwise.gelu_forward(h, a, chosen.gelu)
        product(a, weights.down[j].t(), stream, grows=True)
        product(active[j, :, 0], weights.down[j].t(), first, grows=True)
    last, x0, one0 = _last(weights, heads), new(b, w), new(b, dtype=wide)
    kernels_norm.norm_forward(first, c[2 * L], eps, x0, one0, norm)
    q = torch.addmm(last.query_bias, x0, last.query.t())
    asked = torch.bmm(_by_head(q, heads), last.key)
    average, lse_last = kernels_last.hear(r, c[2 * L], asked, last.scale, eps, chosen.last)
    told = _together(torch.bmm(average, last.value.transpose(1, 2))) + last.value_bias
    kept = Kept(r, asked, average, lse_last, x0, one0, q, xhat, one, qkv, heard, lse, hidden, active)
    return first, told, kept


def backward(
    grad_first: Tensor, grad: Tensor, patches: Tensor, kept: Kept, weights: Folded, heads: int, eps: float
) -> Folded:
    """The gradients of the weights; grad is that of what token 0 hears at last."""
    (L, b, n, packed), f, w = kept.qkv.shape, kept.hidden.shape[-1], kept.r.shape[-1]
    m, wide, chosen, new = b * n, kept.one.dtype, kernels_settings.of(w), grad.new_empty
    _, down, slope = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, w, f, grad.device))
    tiles, rows = chosen.norm_backward, kernels_mlp.pieces(m, down) if down else -(-m // chosen.gelu.span)
    d = Folded(*(torch.empty_like(t) for t in weights))
    sum_qkv, sum_up = new(L, kernels.pieces(b, n), packed, dtype=wide), new(L, rows, f, dtype=wide)
    sum_norm = new(2 * L, kernels_norm.pieces(m, tiles), w, dtype=wide)
    d_hidden, d_packed, d_stream, d_heard = new(m, f), new(m, packed), new(m, w), new(m, packed // 3)
    # The stream's gradient changes in place from here on, so a weight that wrote to the stream takes its own before.
    stream = _last_backward(grad_first, grad, kept, weights, d, heads, eps).view(m, w)

    def norm_backward(which: int) -> None:
        x, one = kept.xhat[which].view(m, w), kept.one[which].view(m)
        kernels_norm.norm_backward(d_stream, x, one, stream, stream, sum_norm[which], tiles)

    for j in reversed(range(L)):
        # Gradients of weights sum over m, so long that the product wants a workspace: they are torch's. They come
        # before the products whose outcome the next kernel reads, which it then finds in the cache.
        h, heard = kept.hidden[j].view(m, f), kept.heard[j]
        torch.mm(stream.t(), kept.active[j].view(m, f), out=d.down[j])
        if down:
            kernels_mlp.down_backward(stream, weights.down[j], h, d_hidden, sum_up[j], down, slope)
        else:
            product(stream, weights.down[j], d_hidden)
            kernels_pointwise.gelu_backward(d_hidden, h, d_hidden, sum_up[j], chosen.gelu)
        torch.mm(d_hidden.t(), kept.xhat[2 * j + 1].view(m, w), out=d.up[j])
        product(d_hidden, weights.up[j], d_stream)
        norm_backward(2 * j + 1)
        torch.mm(stream.t(), heard.view(m, -1), out=d.out[j])
        product(stream, weights.out[j], d_heard)
        kernels.attention_backward(
            d_heard.view_as(heard), kept.qkv[j], heard, kept.lse[j], heads, d_packed.view(b, n, packed), sum_qkv[j]
        )
        torch.mm(d_packed.t(), kept.xhat[2 * j].view(m, w), out=d.qkv[j])
        product(d_packed, weights.qkv[j], d_stream)
        norm_backward(2 * j)
    torch.mm(stream.t(), patches.view(m, -1), out=d.embed)
    kernels_norm.totals(stream.view(1, b, n * w), d.begin.view(1, n * w))
    kernels_norm.totals(sum_norm, d.c[:-1])
    kernels_norm.totals(sum_qkv, d.qkv_bias)
    kernels_norm.totals(sum_up, d.up_bias)
    return d


class _Last(NamedTuple):
    """The last block's attention by its parts."""

    query: Tensor  # (i, w)
    key: Tensor  # (h, d, w)
    value: Tensor  # (h, d, w)
    query_bias: Tensor  # (i)
    value_bias: Tensor  # (i)
    scale: float


def _last(weights: Folded, heads: int) -> _Last:
    (query, key, value), (query_bias, _, value_bias) = weights.last.chunk(3), weights.last_bias.chunk(3)
    key, value = (t.unflatten(0, (heads, -1)) for t in (key, value))
    return _Last(query, key, value, query_bias, value_bias, key.shape[1] ** -0.5)


def _last_backward(
    grad_first: Tensor, grad: Tensor, kept: Kept, weights: Folded, d: Folded, heads: int, eps: float
) -> Tensor:
    """The gradient of the stream after the L blocks (b, n, w); those of `last`, its bias and the last of c into d."""
    (b, _, w), last, g = kept.r.shape, _last(weights, heads), _by_head(grad, heads)
    chosen = kernels_settings.of(w)
    tiles, wide = chosen.norm_backward, kept.one.dtype
    sums = grad.new_empty(b + kernels_norm.pieces(b, tiles), w, dtype=wide)
    stream, d_asked = kernels_last.hear_backward(
        torch.bmm(g, last.value),
        kept.r,
        weights.c[-1],
        kept.asked,
        kept.average,
        kept.lse_last,
        last.scale,
        eps,
        sums[:b],
        chosen.last_backward,
    )
    d_q = _together(torch.bmm(d_asked, last.key.transpose(1, 2)))
    (d_query, d_key, d_value), (d_query_bias, d_key_bias, d_value_bias) = (d.last.chunk(3), d.last_bias.chunk(3))
    torch.mm(d_q.t(), kept.x0, out=d_query)
    torch.bmm(_by_head(kept.q, heads).transpose(1, 2), d_asked, out=d_key.view_as(last.key))
    torch.bmm(g.transpose(1, 2), kept.average, out=d_value.view_as(last.value))
    kernels_norm.totals(d_q[None], d_query_bias[None])
    d_key_bias.zero_()  # a softmax does not see it
    kernels_norm.totals(grad[None], d_value_bias[None])
    d_first = torch.empty_like(kept.x0)
    kernels_norm.norm_backward(d_q @ last.query, kept.x0, kept.one0, grad_first, d_first, sums[b:], tiles)
    stream[:, 0] += d_first
    kernels_norm.totals(sums[None], d.c[-1:])
    return stream


def _by_head(x: Tensor, heads: int) -> Tensor:
    """(b, i) -> (h, b, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def _together(x: Tensor) -> Tensor:
    """(h, b, d) -> (b, i)"""
    return x.transpose(0, 1).flatten(1)


if TYPE_CHECKING:
    Made = tuple[Tensor, ...]
    Grads = tuple[Tensor, ...]
else:  # a schema counts them
    Made, Grads = tuple[(Tensor,) * (2 + len(Kept._fields))], tuple[(Tensor,) * len(Folded._fields)]


@torch.library.custom_op("lpwm::encoder_blocks", mutates_args=(), device_types="cuda")
def _stack(
    patches: Tensor,
    embed: Tensor,
    begin: Tensor,
    qkv: Tensor,
    qkv_bias: Tensor,
    out: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    c: Tensor,
    last: Tensor,
    last_bias: Tensor,
    heads: int,
    eps: float,
) -> Made:
    weights = Folded(embed, begin, qkv, qkv_bias, out, up, up_bias, down, c, last, last_bias)
    first, told, kept = forward(patches.contiguous(), weights, heads, eps)
    return first, told, *kept


@_stack.register_fake
def _(
    patches: Tensor,
    embed: Tensor,
    begin: Tensor,
    qkv: Tensor,
    qkv_bias: Tensor,
    out: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    c: Tensor,
    last: Tensor,
    last_bias: Tensor,
    heads: int,
    eps: float,
) -> Made:
    (b, n, _), (L, packed, w), f, i = patches.shape, qkv.shape, up.shape[1], qkv.shape[1] // 3
    new, wide = patches.new_empty, torch.float32
    kept = Kept(
        r=new(b, n, w),
        asked=new(heads, b, w),
        average=new(heads, b, w),
        lse_last=new(heads, b, dtype=wide),
        x0=new(b, w),
        one0=new(b, dtype=wide),
        q=new(b, i),
        xhat=new(2 * L, b, n, w),
        one=new(2 * L, b, n, dtype=wide),
        qkv=new(L, b, n, packed),
        heard=new(L, b, n, i),
        lse=new(L, b, heads, n, dtype=wide),
        hidden=new(L, b, n, f),
        active=new(L, b, n, f),
    )
    return new(b, w, dtype=wide), new(b, i), *kept


@torch.library.custom_op("lpwm::encoder_blocks_backward", mutates_args=(), device_types="cuda")
def _stack_backward(
    grad_first: Tensor,
    grad: Tensor,
    patches: Tensor,
    kept: Sequence[Tensor],
    weights: Sequence[Tensor],
    heads: int,
    eps: float,
) -> Grads:
    grad_first, grad, patches = (t.contiguous() for t in (grad_first, grad, patches))
    return backward(grad_first, grad, patches, Kept(*kept), Folded(*weights), heads, eps)


@_stack_backward.register_fake
def _(
    grad_first: Tensor,
    grad: Tensor,
    patches: Tensor,
    kept: Sequence[Tensor],
    weights: Sequence[Tensor],
    heads: int,
    eps: float,
) -> Grads:
    return tuple(torch.empty_like(t) for t in weights)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    patches, *weights, ctx.heads, ctx.eps = inputs
    ctx.save_for_backward(patches, *output[2:], *weights)


def _grad(ctx: Any, grad_first: Tensor, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    patches, *saved = ctx.saved_tensors
    kept, weights = saved[: len(Kept._fields)], saved[len(Kept._fields) :]
    return (None, *_stack_backward(grad_first, grad, patches, kept, weights, ctx.heads, ctx.eps), None, None)


_stack.register_autograd(_grad, setup_context=_save)
