"""The encoder from patches to its last block's attention, as one operator with its own gradient: tokens, all blocks but
the last, and the attention of the last, whose only query is token 0.

A block is r += out(attention(qkv(x̂))); r += down(gelu(up(x̂))), x̂ the LayerNorm of the stream r. As one operator

- a residual is added by the matrix product itself, in place: backwards only x̂ is needed;
- LayerNorm's scale and shift are folded into the weights after it, and the biases of `out` and `down` are carried as
  their running sum c: x̂ = norm(r + c). Folding is plain torch (`fold`), with autograd's own gradients;
- token 0 of the stream, of which the code is made, is also kept in float32: at first it differs from frame to frame by
  about what bfloat16 rounds (docs/performance.md);
- gradients of biases leave each kernel as partial sums and are added up once for all blocks;
- the last block has no keys and values (`last`): its query is carried back through the keys' weights.

Legend: b frames, n tokens, p numbers of a patch, w width, i = h·d width of all heads, f width of the MLP, L blocks but
the last, m = b·n.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.kernels import settings

try:
    from lpwm.kernels import attention, last, mlp, norm
    from lpwm.kernels import patches as patches_kernel
except ImportError:  # no Triton
    attention = last = mlp = norm = patches_kernel = None  # type: ignore[assignment]

HEAD_DIM = 64  # the kernels' only one


class Folded(NamedTuple):
    """Weights as the operator takes them: matrices in the precision of the stream, c float32 (its row 0 is 0)."""

    embed: Tensor  # (w, p)
    begin: Tensor  # (n, w): what the stream of a frame begins as
    qkv: Tensor  # (L, 3i, w)
    qkv_bias: Tensor  # (L, 3i)
    out: Tensor  # (L, w, i)
    up: Tensor  # (L, f, w)
    up_bias: Tensor  # (L, f)
    down: Tensor  # (L, w, f)
    c: Tensor  # (2L+1, w)
    last: Tensor  # (3i, w)
    last_bias: Tensor  # (3i)


def fold(embed: Tensor, begin: Tensor, blocks: Sequence[Any], final: Any, dtype: torch.dtype) -> Folded:
    def stacked(name: str, part: str) -> Tensor:
        return torch.stack([getattr(getattr(block, name), part) for block in blocks])

    def after(layer: str, normed: str) -> tuple[Tensor, Tensor]:
        weight, scale, shift = stacked(layer, "weight"), stacked(normed, "weight"), stacked(normed, "bias")
        return _after_norm(weight, stacked(layer, "bias"), scale, shift, dtype)

    biases = torch.stack([bias for block in blocks for bias in (block.out.bias, block.down.bias)])
    c = torch.cat((torch.zeros_like(biases[:1]), biases)).cumsum(0)
    return Folded(
        embed.to(dtype),
        begin.to(dtype),
        *after("qkv", "norm1"),
        stacked("out", "weight").to(dtype),
        *after("up", "norm2"),
        stacked("down", "weight").to(dtype),
        c,
        *_after_norm(final.qkv.weight, final.qkv.bias, final.norm1.weight, final.norm1.bias, dtype),
    )


def _after_norm(
    weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(…, o, w), (…, o), and of the norm (…, w) -> weight and bias that make of x̂ what these make of its output."""
    bias = bias + (weight * shift.unsqueeze(-2)).sum(-1)
    return (weight * scale.unsqueeze(-2)).to(dtype), bias.to(dtype)


def reference(patches: Tensor, weights: Folded, heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """What the operator computes, in plain torch: token 0 of the stream (without its c), its attention at last."""

    def normed(which: int) -> Tensor:
        return F.layer_norm(r + weights.c[which], r.shape[-1:], eps=eps)

    def attend(packed: Tensor, queries: int | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in packed.chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q[:, :, :queries], k, v).transpose(1, 2).flatten(2)

    r = weights.begin + patches @ weights.embed.t()
    for j in range(len(weights.qkv)):
        r = r + attend(F.linear(normed(2 * j), weights.qkv[j], weights.qkv_bias[j])) @ weights.out[j].t()
        r = r + F.gelu(F.linear(normed(2 * j + 1), weights.up[j], weights.up_bias[j])) @ weights.down[j].t()
    attended = attend(F.linear(normed(-1), weights.last, weights.last_bias), queries=1)
    return r[:, 0], attended[:, 0]


class Kept(NamedTuple):
    """What the backward pass needs besides the weights: of the last block, of its token 0, and of the others."""

    r: Tensor  # (b, n, w): the stream
    direction: Tensor  # (h, b, w): the query, carried back through the keys' weights
    average: Tensor  # (h, b, w): of x̂
    lse_last: Tensor  # (h, b)
    x0: Tensor  # (b, w): x̂ of token 0
    one0: Tensor  # (b): 1/σ
    q: Tensor  # (b, i)
    xhat: Tensor  # (2L, b, n, w)
    one: Tensor  # (2L, b, n): 1/σ
    qkv: Tensor  # (L, b, n, 3i)
    attended: Tensor  # (L, b, n, i)
    lse: Tensor  # (L, b, h, n)
    slope: Tensor  # (L, b, n, f): the GELU's derivative
    active: Tensor  # (L, b, n, f): after the GELU


def _new(patches: Tensor, weights: Folded, heads: int) -> tuple[Tensor, Tensor, Kept]:
    """Everything that `forward` fills: token 0, its attention, and what is kept."""
    (b, n, _), (L, packed, w), f = patches.shape, weights.qkv.shape, weights.up.shape[1]
    new, wide, i = patches.new_empty, torch.promote_types(patches.dtype, torch.float32), packed // 3
    last = new(b, n, w), new(heads, b, w), new(heads, b, w), new(heads, b, dtype=wide)
    token = new(b, w), new(b, dtype=wide), new(b, i)
    blocks = new(2 * L, b, n, w), new(2 * L, b, n, dtype=wide), new(L, b, n, packed), new(L, b, n, i)
    kept = Kept(*last, *token, *blocks, new(L, b, heads, n, dtype=wide), new(L, b, n, f), new(L, b, n, f))
    return new(b, w, dtype=wide), new(b, i), kept


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out += a b, in float32 where out is."""
    if out.dtype == a.dtype:
        out.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        out += a.to(out.dtype) @ b.to(out.dtype)


def forward(patches: Tensor, weights: Folded, heads: int, eps: float) -> tuple[Tensor, Tensor, Kept]:
    """Token 0 of the stream, its attention in the last block, and what is kept."""
    first, attended, kept = _new(patches, weights, heads)
    (L, b, n, packed), w, f = kept.qkv.shape, kept.r.shape[-1], kept.slope.shape[-1]
    m, c, tiles = b * n, weights.c, settings.of(w)
    stream = kept.r.view(m, w)
    kept.r.copy_(weights.begin)
    stream.addmm_(patches.view(m, -1), weights.embed.t())
    first.copy_(weights.begin[0].expand(b, w))

    def normed(which: int) -> Tensor:
        x = kept.xhat[which].view(m, w)
        norm.forward(stream, c[which], eps, x, kept.one[which].view(m), tiles.norm_forward, first)
        return x

    for j in range(L):
        torch.addmm(weights.qkv_bias[j], normed(2 * j), weights.qkv[j].t(), out=kept.qkv[j].view(m, packed))
        attention.forward(kept.qkv[j], heads, kept.attended[j], kept.lse[j])
        stream.addmm_(kept.attended[j].view(m, -1), weights.out[j].t())
        _add_product(first, kept.attended[j, :, 0], weights.out[j].t())
        slope, active = kept.slope[j].view(m, f), kept.active[j].view(m, f)
        mlp.up(normed(2 * j + 1), weights.up[j], weights.up_bias[j], slope, active, tiles.up)
        stream.addmm_(active, weights.down[j].t())
        _add_product(first, kept.active[j, :, 0], weights.down[j].t())
    query, key, value, query_bias, value_bias, scale = _final(weights, heads)
    norm.forward(first, c[2 * L], eps, kept.x0, kept.one0, tiles.norm_forward)
    torch.addmm(query_bias, kept.x0, query.t(), out=kept.q)
    torch.bmm(_by_head(kept.q, heads), key, out=kept.direction)
    last.forward(kept.r, c[2 * L], kept.direction, scale, eps, kept.average, kept.lse_last, tiles.last)
    attended.copy_(_together(torch.bmm(kept.average, value.transpose(1, 2))) + value_bias)
    return first, attended, kept


def backward(
    grad_first: Tensor, grad: Tensor, patches: Tensor, kept: Kept, weights: Folded, heads: int, eps: float
) -> Folded:
    """The gradients of the weights; grad is that of token 0's attention in the last block."""
    (L, b, n, packed), f, w = kept.qkv.shape, kept.slope.shape[-1], kept.r.shape[-1]
    m, wide, tiles, new = b * n, kept.one.dtype, settings.of(w), grad.new_empty
    d = Folded(*(torch.empty_like(t) for t in weights))
    sum_qkv = new(L, attention.pieces(b, n), packed, dtype=wide)
    sum_up = new(L, mlp.pieces(m, tiles.down), f, dtype=wide)
    sum_norm = new(2 * L, norm.pieces(m, tiles.norm_backward), w, dtype=wide)
    d_hidden, d_packed, d_stream, d_attended = new(m, f), new(m, packed), new(m, w), new(m, packed // 3)
    # The stream's gradient changes in place from here on, so a weight that wrote to the stream takes its own before.
    stream = _last_backward(grad_first, grad, kept, weights, d, heads, eps).view(m, w)

    def norm_backward(which: int) -> None:
        x, one = kept.xhat[which].view(m, w), kept.one[which].view(m)
        norm.backward(d_stream, x, one, stream, stream, sum_norm[which], tiles.norm_backward)

    for j in reversed(range(L)):
        # Gradients of weights come before the products whose outcome the next kernel needs, and finds in the cache.
        attended = kept.attended[j]
        torch.mm(stream.t(), kept.active[j].view(m, f), out=d.down[j])
        mlp.down_backward(stream, weights.down[j], kept.slope[j].view(m, f), d_hidden, sum_up[j], tiles.down)
        torch.mm(d_hidden.t(), kept.xhat[2 * j + 1].view(m, w), out=d.up[j])
        torch.mm(d_hidden, weights.up[j], out=d_stream)
        norm_backward(2 * j + 1)
        torch.mm(stream.t(), attended.view(m, -1), out=d.out[j])
        torch.mm(stream, weights.out[j], out=d_attended)
        g, d_qkv = d_attended.view_as(attended), d_packed.view(b, n, packed)
        attention.backward(g, kept.qkv[j], attended, kept.lse[j], heads, d_qkv, sum_qkv[j])
        torch.mm(d_packed.t(), kept.xhat[2 * j].view(m, w), out=d.qkv[j])
        torch.mm(d_packed, weights.qkv[j], out=d_stream)
        norm_backward(2 * j)
    torch.mm(stream.t(), patches.view(m, -1), out=d.embed)
    norm.totals(stream.view(1, b, n * w), d.begin.view(1, n * w))
    norm.totals(sum_norm, d.c[:-1])
    norm.totals(sum_qkv, d.qkv_bias)
    norm.totals(sum_up, d.up_bias)
    return d


def _final(weights: Folded, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
    """The last block's query (i, w), key and value (h, d, w), biases of query and value (i), and scale."""
    (query, key, value), (query_bias, _, value_bias) = weights.last.chunk(3), weights.last_bias.chunk(3)
    key, value = (t.unflatten(0, (heads, -1)) for t in (key, value))
    return query, key, value, query_bias, value_bias, key.shape[1] ** -0.5


def _last_backward(
    grad_first: Tensor, grad: Tensor, kept: Kept, weights: Folded, d: Folded, heads: int, eps: float
) -> Tensor:
    """The gradient of the stream after the L blocks (b, n, w); those of `last`, its bias and the last of c into d."""
    (b, _, w), g = kept.r.shape, _by_head(grad, heads)
    query, key, value, *_, scale = _final(weights, heads)
    tiles = settings.of(w)
    sums = grad.new_empty(b + norm.pieces(b, tiles.norm_backward), w, dtype=kept.one.dtype)
    known = kept.r, weights.c[-1], kept.direction, kept.average, kept.lse_last
    stream, d_direction = last.backward(torch.bmm(g, value), known, scale, eps, sums[:b], tiles.last_backward)
    d_q = _together(torch.bmm(d_direction, key.transpose(1, 2)))
    (d_query, d_key, d_value), (d_query_bias, d_key_bias, d_value_bias) = (d.last.chunk(3), d.last_bias.chunk(3))
    torch.mm(d_q.t(), kept.x0, out=d_query)
    torch.bmm(_by_head(kept.q, heads).transpose(1, 2), d_direction, out=d_key.view_as(key))
    torch.bmm(g.transpose(1, 2), kept.average, out=d_value.view_as(value))
    norm.totals(d_q[None], d_query_bias[None])
    d_key_bias.zero_()  # a softmax does not see it
    norm.totals(grad[None], d_value_bias[None])
    d_first = torch.empty_like(kept.x0)
    norm.backward(d_q @ query, kept.x0, kept.one0, grad_first, d_first, sums[b:], tiles.norm_backward)
    stream[:, 0] += d_first
    norm.totals(sums[None], d.c[-1:])
    return stream


def _by_head(x: Tensor, heads: int) -> Tensor:
    """(b, i) -> (h, b, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def _together(x: Tensor) -> Tensor:
    """(h, b, d) -> (b, i)"""
    return x.transpose(0, 1).flatten(1)


def _schema(inputs: int, outputs: int, rest: str = "") -> str:
    given = ", ".join(f"Tensor x{i}" for i in range(inputs))
    return f"({given}{rest}, int heads, float eps) -> ({', '.join(['Tensor'] * outputs)})"


def _op(name: str, schema: str) -> Any:
    return torch.library.custom_op(f"lpwm::{name}", mutates_args=(), device_types="cuda", schema=schema)


# patches, *Folded, heads, eps -> token 0, its attention, *Kept
@_op("encoder_blocks", _schema(1 + len(Folded._fields), 2 + len(Kept._fields)))
def operator(patches: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *weights, heads, eps = rest
    first, attended, kept = forward(patches.contiguous(), Folded(*weights), heads, eps)
    return first, attended, *kept


@operator.register_fake
def _(patches: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *weights, heads, _ = rest
    first, attended, kept = _new(patches, Folded(*weights), heads)
    return first, attended, *kept


# The gradients of both outputs, patches, kept, weights, heads, eps -> *Folded
@_op("encoder_blocks_backward", _schema(3, len(Folded._fields), ", Tensor[] kept, Tensor[] weights"))
def operator_backward(
    grad_first: Tensor, grad: Tensor, patches: Tensor, kept: Any, weights: Any, heads: int, eps: float
) -> tuple[Tensor, ...]:
    grad_first, grad, patches = (t.contiguous() for t in (grad_first, grad, patches))
    return backward(grad_first, grad, patches, Kept(*kept), Folded(*weights), heads, eps)


@operator_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t) for t in args[4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    patches, *weights, ctx.heads, ctx.eps = inputs
    ctx.save_for_backward(patches, *output[2:], *weights)


def _grad(ctx: Any, grad_first: Tensor, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    patches, *saved = ctx.saved_tensors
    kept, weights = saved[: len(Kept._fields)], saved[len(Kept._fields) :]
    return (None, *operator_backward(grad_first, grad, patches, kept, weights, ctx.heads, ctx.eps), None, None)


operator.register_autograd(_grad, setup_context=_save)


@torch.library.custom_op("lpwm::patches", mutates_args=(), device_types="cuda")
def cut_patches(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    """uint8 (b, 3, s, s) -> bfloat16 (b, 1 + (s/p)², P); see `patches.cut`. It has no gradient."""
    return patches_kernel.cut(frames.contiguous(), scale, shift, patch)


@cut_patches.register_fake
def _(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    b, _, _, side = frames.shape
    return frames.new_empty(b, 1 + (side // patch) ** 2, patches_kernel.width(patch), dtype=torch.bfloat16)
