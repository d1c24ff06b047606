"""The encoder from patches to what its last block hears, as one operator with its own gradient, for training on CUDA in
bfloat16: tokens, all blocks but the last, and the attention of the last, which only token 0 asks.

A block is r += out(attention(qkv(x̂))); r += down(gelu(up(x̂))), x̂ the LayerNorm of the stream r. Written as one operator

- a residual is added by the matrix product itself, in place: nothing backwards needs the stream, only x̂. The first
  product adds patches to a stream that begins as positions (row 0 of the patches is 0: there is the class token);
- LayerNorm's scale and shift are folded into the weights that read it, W' = W diag(s) and b' = b + W t, and the
  biases of `out` and `down` are not added to the stream but carried as their running sum c, which LayerNorm adds:
  x̂ = norm(r + c). So LayerNorm reads one tensor and writes one, and backwards sums one;
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

from lpwm.model import kernels_settings
from lpwm.model.blas import product

if TYPE_CHECKING:
    from lpwm.model.encoder import Block

try:
    from lpwm.model import kernels, kernels_last, kernels_mlp, kernels_norm, kernels_pointwise
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


def fold(embed: Tensor, begin: Tensor, blocks: Sequence[Block], last: Block, dtype: torch.dtype) -> Folded:
    def stacked(name: str, part: str) -> Tensor:
        return torch.stack([getattr(getattr(block, name), part) for block in blocks])

    def read(layer: str, norm: str) -> tuple[Tensor, Tensor]:
        weight, scale, shift = stacked(layer, "weight"), stacked(norm, "weight"), stacked(norm, "bias")
        return _read(weight, stacked(layer, "bias"), scale, shift, dtype)

    biases = torch.stack([bias for block in blocks for bias in (block.out.bias, block.down.bias)])
    c = torch.cat((torch.zeros_like(biases[:1]), biases)).cumsum(0)
    return Folded(
        embed.to(dtype), begin.to(dtype), *read("qkv", "norm1"), stacked("out", "weight").to(dtype),
        *read("up", "norm2"), stacked("down", "weight").to(dtype), c,
        *_read(last.qkv.weight, last.qkv.bias, last.norm1.weight, last.norm1.bias, dtype),
    )  # fmt: skip


def _read(
    weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(…, o, w), (…, o), and of the norm (…, w) -> the weight and bias that read x̂ as these read the norm's output."""
    bias = bias + (weight * shift.unsqueeze(-2)).sum(-1)
    return (weight * scale.unsqueeze(-2)).to(dtype), bias.to(dtype)


def blocks(patches: Tensor, weights: Folded, heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """patches (b, n, p) -> token 0 (b, w) of the stream after the L blocks, and what it hears in the last one (b, i)."""
    first, heard, *_ = _stack(patches, *weights, heads, eps)
    return first + weights.c[-1], heard


class _Last(NamedTuple):
    """The last block's attention by its parts."""

    query: Tensor  # (i, w)
    key: Tensor  # (h, d, w)
    value: Tensor  # (h, d, w)
    query_bias: Tensor  # (i)
    value_bias: Tensor  # (i)
    scale: float


def _last(weight: Tensor, bias: Tensor, heads: int) -> _Last:
    (query, key, value), (query_bias, _, value_bias) = weight.chunk(3), bias.chunk(3)
    key, value = (t.unflatten(0, (heads, -1)) for t in (key, value))
    return _Last(query, key, value, query_bias, value_bias, key.shape[1] ** -0.5)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """(b, i) -> (h, b, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def _together(x: Tensor) -> Tensor:
    """(h, b, d) -> (b, i)"""
    return x.transpose(0, 1).flatten(1)


def forward(
    patches: Tensor, embed: Tensor, begin: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, up_w: Tensor,
    up_b: Tensor, down_w: Tensor, c: Tensor, last_w: Tensor, last_b: Tensor, heads: int, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Token 0 of the stream, what it hears in the last block, and what else the backward pass reads: the stream; of the
    last block x̂ of token 0 and 1/σ, q, what it asks for, the average of x̂ and its log-sum; of the others
    x̂ and 1/σ, qkv, attention and its log-sums, MLP before and after."""
    (b, n, pixels), (L, packed, w), f = patches.shape, qkv_w.shape, up_w.shape[1]
    m, inner, wide = b * n, packed // 3, torch.promote_types(patches.dtype, torch.float32)
    chosen = kernels_settings.of(w)
    norm = chosen.norm_forward
    up, _, slope = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, w, f, patches.device))
    new = patches.new_empty
    r = new(b, n, w)
    stream = r.view(m, w)
    kernels_norm.begin(begin, r)
    product(patches.view(m, pixels), embed.t(), stream, grows=True)
    xhat, one = new(2 * L, b, n, w), new(2 * L, b, n, dtype=wide)
    qkv, heard, lse = new(L, b, n, packed), new(L, b, n, inner), new(L, b, heads, n, dtype=wide)
    hidden, active = new(L, b, n, f), new(L, b, n, f)
    for j in range(L):
        y, h, a = xhat[2 * j].view(m, w), hidden[j].view(m, f), active[j].view(m, f)
        kernels_norm.norm_forward(stream, c[2 * j], eps, y, one[2 * j].view(m), norm)
        product(y, qkv_w[j].t(), qkv[j].view(m, packed), qkv_b[j])
        kernels.attention_forward(qkv[j], heads, heard[j], lse[j])
        product(heard[j].view(m, inner), out_w[j].t(), stream, grows=True)
        y = xhat[2 * j + 1].view(m, w)
        kernels_norm.norm_forward(stream, c[2 * j + 1], eps, y, one[2 * j + 1].view(m), norm)
        if up:
            kernels_mlp.up(y, up_w[j], up_b[j], h, a, up, slope)
        else:
            product(y, up_w[j].t(), h, up_b[j])
            kernels_pointwise.gelu_forward(h, a, chosen.gelu)
        product(a, down_w[j].t(), stream, grows=True)
    last, first = _last(last_w, last_b, heads), r[:, 0].clone()
    x0, one0 = new(b, w), new(b, dtype=wide)
    kernels_norm.norm_forward(first, c[2 * L], eps, x0, one0, norm)
    q = torch.addmm(last.query_bias, x0, last.query.t())
    asked = torch.bmm(_by_head(q, heads), last.key)
    average, lse_last = kernels_last.hear(r, c[2 * L], asked, last.scale, eps, chosen.last)
    heard_last = _together(torch.bmm(average, last.value.transpose(1, 2))) + last.value_bias
    kept = r, x0, one0, q, asked, average, lse_last, xhat, one, qkv, heard, lse, hidden, active
    return first, heard_last, *kept


def backward(
    grad_first: Tensor, grad: Tensor, patches: Tensor, r: Tensor, x0: Tensor, one0: Tensor, q: Tensor, asked: Tensor,
    average: Tensor, lse_last: Tensor, xhat: Tensor, one: Tensor, qkv: Tensor, heard: Tensor,
    lse: Tensor, hidden: Tensor, active: Tensor, qkv_w: Tensor, out_w: Tensor, up_w: Tensor, down_w: Tensor, c: Tensor,
    last_w: Tensor, last_b: Tensor, heads: int, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of the weights, in the order of `Folded`; grad is that of what token 0 hears at last."""
    (L, b, n, packed), f, w = qkv.shape, hidden.shape[-1], r.shape[-1]
    m, wide, chosen = b * n, one.dtype, kernels_settings.of(w)
    _, down, slope = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, w, f, grad.device))
    tiles, new = chosen.norm_backward, grad.new_empty
    d_qkv, d_out, d_up, d_down = (torch.empty_like(t) for t in (qkv_w, out_w, up_w, down_w))
    sum_qkv = new(L, kernels.pieces(b, n), packed, dtype=wide)
    rows = kernels_mlp.pieces(m, down) if down else -(-m // chosen.gelu.span)
    sum_up, sum_norm = new(L, rows, f, dtype=wide), new(2 * L, kernels_norm.pieces(m, tiles), w, dtype=wide)
    d_hidden, d_packed, d_stream, d_heard = new(m, f), new(m, packed), new(m, w), new(m, packed // 3)

    # The last block. Its keys' bias has no gradient: a softmax does not see it.
    last, g = _last(last_w, last_b, heads), _by_head(grad, heads)
    sum_last = new(b + kernels_norm.pieces(b, tiles), w, dtype=wide)
    first_stream, d_asked = kernels_last.hear_backward(
        torch.bmm(g, last.value), r, c[2 * L], asked, average, lse_last, last.scale, eps, sum_last[:b],
        chosen.last_backward,
    )  # fmt: skip
    d_q = _together(torch.bmm(d_asked, last.key.transpose(1, 2)))
    d_last, d_last_bias = torch.empty_like(last_w), torch.zeros_like(last_b)
    d_query, d_key, d_value = d_last.chunk(3)
    torch.mm(d_q.t(), x0, out=d_query)
    torch.bmm(_by_head(q, heads).transpose(1, 2), d_asked, out=d_key.view_as(last.key))
    torch.bmm(g.transpose(1, 2), average, out=d_value.view_as(last.value))
    kernels_norm.totals(d_q[None], d_last_bias[None, : len(d_query)])
    kernels_norm.totals(grad[None], d_last_bias[None, -len(d_value) :])
    d_first = torch.empty_like(x0)
    kernels_norm.norm_backward(d_q @ last.query, x0, one0, grad_first, d_first, sum_last[b:], tiles)
    first_stream[:, 0] += d_first
    stream = first_stream.view(m, w)  # its gradient, changed in place by all that follows

    def norm_backward(which: int) -> None:
        kernels_norm.norm_backward(
            d_stream, xhat[which].view(m, w), one[which].view(m), stream, stream, sum_norm[which], tiles
        )

    for j in reversed(range(L)):
        # The stream's gradient changes in place, so a weight that wrote to the stream takes its own before. Inner
        # dimensions as long as m want a workspace, which torch's products have.
        torch.mm(stream.t(), active[j].view(m, f), out=d_down[j])
        h = hidden[j].view(m, f)
        if down:
            kernels_mlp.down_backward(stream, down_w[j], h, d_hidden, sum_up[j], down, slope)
        else:
            product(stream, down_w[j], d_hidden)
            kernels_pointwise.gelu_backward(d_hidden, h, d_hidden, sum_up[j], chosen.gelu)
        torch.mm(d_hidden.t(), xhat[2 * j + 1].view(m, w), out=d_up[j])
        product(d_hidden, up_w[j], d_stream)
        norm_backward(2 * j + 1)
        torch.mm(stream.t(), heard[j].view(m, -1), out=d_out[j])
        product(stream, out_w[j], d_heard)
        kernels.attention_backward(
            d_heard.view(b, n, -1), qkv[j], heard[j], lse[j], heads, d_packed.view(b, n, packed), sum_qkv[j]
        )
        torch.mm(d_packed.t(), xhat[2 * j].view(m, w), out=d_qkv[j])
        product(d_packed, qkv_w[j], d_stream)
        norm_backward(2 * j)
    d_embed = torch.mm(stream.t(), patches.view(m, -1))
    d_begin, d_c = new(n, w), new(2 * L + 1, w, dtype=wide)
    d_qkv_bias, d_up_bias = new(L, packed), new(L, f)
    kernels_norm.totals(stream.view(1, b, n * w), d_begin.view(1, n * w))
    kernels_norm.totals(sum_norm, d_c[:-1])
    kernels_norm.totals(sum_last[None], d_c[-1:])
    kernels_norm.totals(sum_qkv, d_qkv_bias)
    kernels_norm.totals(sum_up, d_up_bias)
    return d_embed, d_begin, d_qkv, d_qkv_bias, d_out, d_up, d_up_bias, d_down, d_c, d_last, d_last_bias


if TYPE_CHECKING:
    Made = Grads = tuple[Tensor, ...]
else:  # a schema counts them
    Made, Grads = tuple[(Tensor,) * 16], tuple[(Tensor,) * 11]


@torch.library.custom_op("lpwm::encoder_blocks", mutates_args=(), device_types="cuda")
def _stack(
    patches: Tensor, embed: Tensor, begin: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, up_w: Tensor,
    up_b: Tensor, down_w: Tensor, c: Tensor, last_w: Tensor, last_b: Tensor, heads: int, eps: float,
) -> Made:  # fmt: skip
    return forward(
        patches.contiguous(), embed, begin, qkv_w, qkv_b, out_w, up_w, up_b, down_w, c, last_w, last_b, heads, eps
    )


@_stack.register_fake
def _(
    patches: Tensor, embed: Tensor, begin: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, up_w: Tensor,
    up_b: Tensor, down_w: Tensor, c: Tensor, last_w: Tensor, last_b: Tensor, heads: int, eps: float,
) -> Made:  # fmt: skip
    (b, n, _), (L, packed, w), f = patches.shape, qkv_w.shape, up_w.shape[1]
    new, wide = patches.new_empty, torch.float32
    asked = heads, b, w
    return (
        new(b, w), new(b, packed // 3),
        new(b, n, w), new(b, w), new(b, dtype=wide), new(b, packed // 3),
        new(asked), new(asked), new(heads, b, dtype=wide),
        new(2 * L, b, n, w), new(2 * L, b, n, dtype=wide), new(L, b, n, packed), new(L, b, n, packed // 3),
        new(L, b, heads, n, dtype=wide), new(L, b, n, f), new(L, b, n, f),
    )  # fmt: skip


@torch.library.custom_op("lpwm::encoder_blocks_backward", mutates_args=(), device_types="cuda")
def _stack_backward(
    grad_first: Tensor, grad: Tensor, patches: Tensor, r: Tensor, x0: Tensor, one0: Tensor, q: Tensor, asked: Tensor,
    average: Tensor, lse_last: Tensor, xhat: Tensor, one: Tensor, qkv: Tensor, heard: Tensor,
    lse: Tensor, hidden: Tensor, active: Tensor, qkv_w: Tensor, out_w: Tensor, up_w: Tensor, down_w: Tensor, c: Tensor,
    last_w: Tensor, last_b: Tensor, heads: int, eps: float,
) -> Grads:  # fmt: skip
    return backward(
        grad_first.contiguous(), grad.contiguous(), patches.contiguous(), r, x0, one0, q, asked, average, lse_last, xhat, one,
        qkv, heard, lse, hidden, active, qkv_w, out_w, up_w, down_w, c, last_w, last_b, heads, eps,
    )  # fmt: skip


@_stack_backward.register_fake
def _(
    grad_first: Tensor, grad: Tensor, patches: Tensor, r: Tensor, x0: Tensor, one0: Tensor, q: Tensor, asked: Tensor,
    average: Tensor, lse_last: Tensor, xhat: Tensor, one: Tensor, qkv: Tensor, heard: Tensor,
    lse: Tensor, hidden: Tensor, active: Tensor, qkv_w: Tensor, out_w: Tensor, up_w: Tensor, down_w: Tensor, c: Tensor,
    last_w: Tensor, last_b: Tensor, heads: int, eps: float,
) -> Grads:  # fmt: skip
    (L, packed, w), f, (_, n, pixels), new = qkv_w.shape, up_w.shape[1], patches.shape, grad.new_empty
    return (
        new(w, pixels), new(n, w), new(L, packed, w), new(L, packed), new(L, w, packed // 3), new(L, f, w), new(L, f),
        new(L, w, f), new(2 * L + 1, w, dtype=torch.float32), new(packed, w), new(packed),
    )  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    patches, _, _, qkv_w, _, out_w, up_w, _, down_w, c, last_w, last_b, ctx.heads, ctx.eps = inputs
    ctx.save_for_backward(patches, *output[2:], qkv_w, out_w, up_w, down_w, c, last_w, last_b)


def _grad(ctx: Any, grad_first: Tensor, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (None, *_stack_backward(grad_first, grad, *ctx.saved_tensors, ctx.heads, ctx.eps), None, None)


_stack.register_autograd(_grad, setup_context=_save)
