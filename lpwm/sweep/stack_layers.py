"""The layers of a stack, spelled out where torch.func.vmap and autocast would disagree about types.

Autocast comes after vmap: it does not see the operation that was called but what vmap made of it. So in bfloat16

- attention becomes products and `_safe_softmax`, inside which autocast (on CUDA) asks for a float32 softmax of bfloat16
  scores: its gradient is then float32 where bfloat16 was announced, which CUDA refuses;
- x Wᵀ + b becomes a product in bfloat16 and a sum with b in float32, so that everything after it is float32, twice as
  much to move as alone;
- LayerNorm becomes the norm without weights, a product and a sum.

Here each says its own types, those it has alone on CUDA. In float32 and float64 nothing is cast.

Legend: N seeds (the axis vmap hides), B batch, h heads, n tokens that ask, m tokens, d width of a head, w width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpwm.model.encoder import Block


def spell_out(net: nn.Module, compiled: bool = False) -> nn.Module:
    """`net` itself, its layers exchanged for those below; `compiled`: for torch.compile, which would miss our rule."""
    attend: Callable[..., Tensor] = plain_attention if compiled else _Attention.apply
    for module in net.modules():
        if type(module) is nn.Linear:
            module.__class__ = _Linear
        elif type(module) is nn.LayerNorm:
            module.__class__ = _LayerNorm
        elif isinstance(module, Block):
            module.attend = attend  # type: ignore[method-assign]
    return net


class _Linear(nn.Linear):
    """x Wᵀ + b, (…, w) -> (…, w'), in the type of the product. One matrix per seed, so that N of them are one bmm."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.reshape(-1, x.shape[-1]) @ self.weight.t()
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], y.shape[-1])


class _LayerNorm(nn.LayerNorm):
    """In float32, as autocast has it on CUDA. The norm is without weights, which differ from seed to seed."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(_wide(x), self.normalized_shape, eps=self.eps)
        if self.weight is None:
            return y
        return y * self.weight if self.bias is None else torch.addcmul(self.bias, y, self.weight)


def plain_attention(q_Bhnd: Tensor, k_Bhmd: Tensor, v_Bhmd: Tensor) -> Tensor:
    """softmax(q kᵀ/√d) v, the softmax in float32."""
    scores = (q_Bhnd * q_Bhnd.shape[-1] ** -0.5) @ k_Bhmd.transpose(-1, -2)
    return _wide(scores).softmax(dim=-1).to(v_Bhmd.dtype) @ v_Bhmd


class _Attention(torch.autograd.Function):
    """Attention has no weights: the N seeds of B are N·B, and the fused kernel is called once, with its own gradient.

    Under vmap only `vmap` is called, and what it computes is differentiated as usual; so there is no `backward`.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain_attention(q, k, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], *qkv: Tensor) -> tuple[Tensor, int]:
        q, k, v = (t.movedim(at, 0).flatten(0, 1) for t, at in zip(qkv, in_dims, strict=True))
        return F.scaled_dot_product_attention(q, k, v).unflatten(0, (info.batch_size, -1)), 0


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
