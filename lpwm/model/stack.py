"""All blocks of the encoder but the last, and the last one's LayerNorm, as one operator with its own gradient, for
training on CUDA in bfloat16.

A block is r += out(attention(qkv(x̂))); r += down(gelu(up(x̂))), x̂ the LayerNorm of the stream r. Written as one operator

- a residual is added by the matrix product itself, in place: nothing backwards needs the stream, only x̂;
- LayerNorm's scale and shift are folded into the weights that read it, W' = W diag(s) and b' = b + W t, and the
  biases of `out` and `down` are not added to the stream but carried as their running sum c, which LayerNorm adds:
  x̂ = norm(r + c). So LayerNorm reads one tensor and writes one, and backwards sums one;
- gradients of biases leave each kernel as partial sums and are added up once for all blocks.

Folding and running sums are plain torch outside (`fold`), with autograd's own gradients.

Legend: b frames, n tokens, w width, i = h·d width of all heads, f width of the MLP, L blocks, m = b·n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from lpwm.model import kernels_settings

if TYPE_CHECKING:
    from lpwm.model.encoder import Block

try:
    from lpwm.model import kernels, kernels_mlp, kernels_norm, kernels_pointwise
except ImportError:  # no Triton: a CPU build of torch
    kernels = kernels_mlp = kernels_norm = kernels_pointwise = None  # type: ignore[assignment]


class Folded(NamedTuple):
    """The weights of L blocks: matrices in the precision of the stream, c (2L+1, w) float32 (row 0 is 0)."""

    qkv: Tensor  # (L, 3i, w)
    qkv_bias: Tensor  # (L, 3i)
    out: Tensor  # (L, w, i)
    up: Tensor  # (L, f, w)
    up_bias: Tensor  # (L, f)
    down: Tensor  # (L, w, f)
    c: Tensor


def fold(blocks: Sequence[Block], dtype: torch.dtype) -> Folded:
    def stacked(name: str, part: str) -> Tensor:
        return torch.stack([getattr(getattr(block, name), part) for block in blocks])

    def read(layer: str, norm: str) -> tuple[Tensor, Tensor]:
        weight, scale, shift = stacked(layer, "weight"), stacked(norm, "weight"), stacked(norm, "bias")
        return _read(weight, stacked(layer, "bias"), scale, shift, dtype)

    biases = torch.stack([bias for block in blocks for bias in (block.out.bias, block.down.bias)])
    c = torch.cat((torch.zeros_like(biases[:1]), biases)).cumsum(0)
    return Folded(
        *read("qkv", "norm1"), stacked("out", "weight").to(dtype), *read("up", "norm2"),
        stacked("down", "weight").to(dtype), c,
    )  # fmt: skip


def read_norm(layer: nn.Linear, norm: nn.LayerNorm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weight and bias that read x̂ as `layer` reads norm's output."""
    return _read(layer.weight, layer.bias, norm.weight, norm.bias, dtype)


def _read(
    weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(…, o, w), (…, o), and of the norm (…, w)."""
    bias = bias + (weight * shift.unsqueeze(-2)).sum(-1)
    return (weight * scale.unsqueeze(-2)).to(dtype), bias.to(dtype)


def blocks(x: Tensor, weights: Folded, heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """x (b, n, w) -> token 0 (b, w) of the stream r after the L blocks, its biases added, and x̂ (b, n, w) of that r."""
    first, xhat, *_ = _stack(x, *weights, heads, eps)
    return first + weights.c[-1], xhat


def forward(
    x: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, up_w: Tensor, up_b: Tensor, down_w: Tensor, c: Tensor,
    heads: int, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Token 0 of the stream, x̂ of all at the end, and what else the backward pass reads: 1/σ there, every x̂ and 1/σ
    before, qkv, attention and its log-sums, MLP before and after."""
    (b, n, w), (L, packed, _), f = x.shape, qkv_w.shape, up_w.shape[1]
    m, inner, wide = b * n, packed // 3, torch.promote_types(x.dtype, torch.float32)
    chosen = kernels_settings.of(w)
    norm = chosen.norm_forward
    up, _, slope = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, w, f, x.device))
    r = x.clone()
    stream = r.view(m, w)
    xhat, one = x.new_empty(2 * L, b, n, w), x.new_empty(2 * L, b, n, dtype=wide)
    qkv, heard = x.new_empty(L, b, n, packed), x.new_empty(L, b, n, inner)
    lse = x.new_empty(L, b, heads, n, dtype=wide)
    hidden, active = x.new_empty(L, b, n, f), x.new_empty(L, b, n, f)
    for j in range(L):
        y, h, a = xhat[2 * j].view(m, w), hidden[j].view(m, f), active[j].view(m, f)
        kernels_norm.norm_forward(stream, c[2 * j], eps, y, one[2 * j].view(m), norm)
        torch.addmm(qkv_b[j], y, qkv_w[j].t(), out=qkv[j].view(m, packed))
        kernels.attention_forward(qkv[j], heads, heard[j], lse[j])
        stream.addmm_(heard[j].view(m, inner), out_w[j].t())
        y = xhat[2 * j + 1].view(m, w)
        kernels_norm.norm_forward(stream, c[2 * j + 1], eps, y, one[2 * j + 1].view(m), norm)
        if up:
            kernels_mlp.up(y, up_w[j], up_b[j], h, a, up, slope)
        else:
            torch.addmm(up_b[j], y, up_w[j].t(), out=h)
            kernels_pointwise.gelu_forward(h, a, chosen.gelu)
        stream.addmm_(a, down_w[j].t())
    last, one_last = x.new_empty(b, n, w), x.new_empty(b, n, dtype=wide)
    kernels_norm.norm_forward(stream, c[2 * L], eps, last.view(m, w), one_last.view(m), norm)
    return r[:, 0].clone(), last, one_last, xhat, one, qkv, heard, lse, hidden, active


def backward(
    grad_first: Tensor, grad: Tensor, last: Tensor, one_last: Tensor, xhat: Tensor, one: Tensor, qkv: Tensor,
    heard: Tensor, lse: Tensor, hidden: Tensor, active: Tensor, qkv_w: Tensor, out_w: Tensor, up_w: Tensor,
    down_w: Tensor, heads: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of x and of the weights, in the order of `Folded`; grad is that of x̂ at the end."""
    (L, b, n, packed), f, w = qkv.shape, hidden.shape[-1], grad.shape[-1]
    m, wide, chosen = b * n, one.dtype, kernels_settings.of(w)
    _, down, slope = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, w, f, grad.device))
    tiles = chosen.norm_backward
    d_qkv, d_out, d_up, d_down = (torch.empty_like(t) for t in (qkv_w, out_w, up_w, down_w))
    sum_qkv = grad.new_empty(L, kernels.pieces(b, n), packed, dtype=wide)
    rows = kernels_mlp.pieces(m, down) if down else -(-m // chosen.gelu.span)
    sum_up = grad.new_empty(L, rows, f, dtype=wide)
    sum_norm = grad.new_empty(2 * L + 1, kernels_norm.pieces(m, tiles), w, dtype=wide)
    stream = grad.new_empty(m, w)  # its gradient: begun here, changed in place by all that follows
    d_hidden, d_packed = grad.new_empty(m, f), grad.new_empty(m, packed)
    kernels_norm.norm_backward(
        grad.view(m, w), last.view(m, w), one_last.view(m), None, stream, sum_norm[2 * L], tiles
    )
    stream.view(b, n, w)[:, 0] += grad_first

    def norm_backward(d: Tensor, which: int) -> None:
        kernels_norm.norm_backward(
            d, xhat[which].view(m, w), one[which].view(m), stream, stream, sum_norm[which], tiles
        )

    for j in reversed(range(L)):
        # The stream's gradient changes in place, so a weight that wrote to the stream takes its own before.
        torch.mm(stream.t(), active[j].view(m, f), out=d_down[j])
        h = hidden[j].view(m, f)
        if down:
            kernels_mlp.down_backward(stream, down_w[j], h, d_hidden, sum_up[j], down, slope)
        else:
            kernels_pointwise.gelu_backward(torch.mm(stream, down_w[j]), h, d_hidden, sum_up[j], chosen.gelu)
        d = torch.mm(d_hidden, up_w[j])
        torch.mm(d_hidden.t(), xhat[2 * j + 1].view(m, w), out=d_up[j])
        norm_backward(d, 2 * j + 1)
        d = torch.mm(stream, out_w[j]).view(b, n, packed // 3)
        torch.mm(stream.t(), heard[j].view(m, -1), out=d_out[j])
        kernels.attention_backward(
            d, qkv[j], heard[j], lse[j], heads, d_packed.view(b, n, packed), sum_qkv[j]
        )
        d = torch.mm(d_packed, qkv_w[j])
        torch.mm(d_packed.t(), xhat[2 * j].view(m, w), out=d_qkv[j])
        norm_backward(d, 2 * j)
    d_c = sum_norm.sum(1)
    sums = sum_qkv.sum(1).to(grad.dtype), sum_up.sum(1).to(grad.dtype)
    return stream.view(b, n, w), d_qkv, sums[0], d_out, d_up, sums[1], d_down, d_c


@torch.library.custom_op("lpwm::encoder_blocks", mutates_args=(), device_types="cuda")
def _stack(
    x: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, up_w: Tensor, up_b: Tensor, down_w: Tensor, c: Tensor,
    heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return forward(x.contiguous(), qkv_w, qkv_b, out_w, up_w, up_b, down_w, c, heads, eps)  # type: ignore[return-value]


@_stack.register_fake
def _(
    x: Tensor, qkv_w: Tensor, qkv_b: Tensor, out_w: Tensor, up_w: Tensor, up_b: Tensor, down_w: Tensor, c: Tensor,
    heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (b, n, w), (L, packed, _), f = x.shape, qkv_w.shape, up_w.shape[1]
    wide = torch.float32
    return (
        x.new_empty(b, w), x.new_empty(b, n, w), x.new_empty(b, n, dtype=wide),
        x.new_empty(2 * L, b, n, w), x.new_empty(2 * L, b, n, dtype=wide),
        x.new_empty(L, b, n, packed), x.new_empty(L, b, n, packed // 3), x.new_empty(L, b, heads, n, dtype=wide),
        x.new_empty(L, b, n, f), x.new_empty(L, b, n, f),
    )  # fmt: skip


@torch.library.custom_op("lpwm::encoder_blocks_backward", mutates_args=(), device_types="cuda")
def _stack_backward(
    grad_first: Tensor, grad: Tensor, last: Tensor, one_last: Tensor, xhat: Tensor, one: Tensor, qkv: Tensor,
    heard: Tensor, lse: Tensor, hidden: Tensor, active: Tensor, qkv_w: Tensor, out_w: Tensor, up_w: Tensor,
    down_w: Tensor, heads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return backward(  # type: ignore[return-value]
        grad_first, grad.contiguous(), last, one_last, xhat, one, qkv, heard, lse, hidden, active, qkv_w, out_w, up_w,
        down_w, heads,
    )  # fmt: skip


@_stack_backward.register_fake
def _(
    grad_first: Tensor, grad: Tensor, last: Tensor, one_last: Tensor, xhat: Tensor, one: Tensor, qkv: Tensor,
    heard: Tensor, lse: Tensor, hidden: Tensor, active: Tensor, qkv_w: Tensor, out_w: Tensor, up_w: Tensor,
    down_w: Tensor, heads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (L, packed, w), f = qkv_w.shape, up_w.shape[1]
    return (
        grad.new_empty(grad.shape), grad.new_empty(L, packed, w), grad.new_empty(L, packed),
        grad.new_empty(L, w, packed // 3), grad.new_empty(L, f, w), grad.new_empty(L, f), grad.new_empty(L, w, f),
        grad.new_empty(2 * L + 1, w, dtype=torch.float32),
    )  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, qkv_w, _, out_w, up_w, _, down_w, _, ctx.heads, _ = inputs
    ctx.save_for_backward(*output[1:], qkv_w, out_w, up_w, down_w)


def _grad(ctx: Any, grad_first: Tensor, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (*_stack_backward(grad_first, grad, *ctx.saved_tensors, ctx.heads), None, None)


_stack.register_autograd(_grad, setup_context=_save)
