"""Rollouts for planning: the same codes as `WorldModel.rollout`, with what no candidate changes done beforehand.

A planner scores thousands of candidates with fixed weights. So weights are cast once, maps that follow each other
without a non-linearity are multiplied together once, and the whole plan's actions are embedded in one product.

Legend: B environments, S candidates, H blocks, A action size, C context frames, D latent width, k history,
h heads, d width of a head, n new tokens.
"""

from collections.abc import Callable
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpwm.core.compiled import in_parts
from lpwm.model.layers import BatchNorm
from lpwm.model.link import Link, identity, reprelu

LARGE = 2**20  # multiplications; smaller products are not worth oneDNN's preparations
Affine = tuple[Tensor, Tensor | None]  # weight (out, in), bias (out,)
KeysValues = list[tuple[Tensor, Tensor]]  # per token, each (B, 1 or S, h, d)
Joined = list[Tensor]  # keys and values next to each other, of several tokens each: (B, 1 or S, n, 2hd)


class Rollout(Protocol):
    def rollout(
        self, z_BCD: Tensor, actions_BSHA: Tensor, past_BPA: Tensor | None = None, last_only: bool = False
    ) -> Tensor: ...


@torch.no_grad()
def freeze(model: Any, dtype: torch.dtype) -> Rollout | None:
    """A copy of the dynamics for planning in `dtype`, or None where the predictor offers none. A predictor offers one
    with a method `freeze(model, dtype)` of its own class. An inherited one is not used: a subclass that changes
    `forward` would be planned with its parent's dynamics."""
    if "freeze" not in type(model.predictor).__dict__:
        return None
    return model.predictor.freeze(model, dtype)


def _forward_only(link: Link) -> Link:
    """RepReLU differs from relu in its gradient alone, and planning by search takes none."""
    return torch.relu if link is reprelu else link


def affine(layer: nn.Linear) -> Affine:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def after(outer: Affine, inner: Affine) -> Affine:
    """outer ∘ inner as one affine map."""
    (W, c), (V, b) = outer, inner
    moved = c if b is None else W @ b if c is None else W @ b + c
    return W @ V, moved


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear on rows: a strided batch would otherwise become many small products with copies of the weight."""
    rows = x.reshape(-1, x.shape[-1])
    if x.is_cpu and x.dtype == torch.float32 and len(rows) * weight.numel() >= LARGE and prefers_onednn():
        out = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    else:
        out = F.linear(rows, weight, bias)
    return out.view(*x.shape[:-1], -1)


@cache
def prefers_onednn() -> bool:
    """Whether large float32 products are oneDNN's: on AMD's processors with AVX-512, where those of MKL, torch's own
    choice, take twice as long (bench/results/products_2cores.json). Sums may differ in their last digit."""
    able = torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    cpuinfo = Path("/proc/cpuinfo")
    return able and cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()


def cast(pair: Affine, dtype: torch.dtype) -> Affine:
    return pair[0].to(dtype), None if pair[1] is None else pair[1].to(dtype)


class ActionMap:
    """The action encoder, and a linear map after it if there is one: a -> W₂ silu(W₁ a + b₁) + b₂, or W a + b. Maps
    that follow each other directly are one. The input is padded to a multiple of 8, which tensor cores want."""

    def __init__(self, embed: nn.Module, dtype: torch.dtype, then: Affine | None = None) -> None:
        maps: list[Affine] = [affine(m) for m in embed.modules() if isinstance(m, nn.Linear)]
        first = maps[0] if len(maps) == 1 else after(maps[1], maps[0])
        last = None if len(maps) == 1 else maps[-1]
        if then is not None:
            first, last = (after(then, first), None) if last is None else (first, after(then, last))
        width = first[0].shape[1]
        self.pad = -width % 8 if first[0].is_cuda else 0
        self.first = cast((F.pad(first[0], (0, self.pad)), first[1]), dtype)
        self.last = None if last is None else cast(last, dtype)
        self.dtype = dtype

    def __call__(self, actions: Tensor) -> Tensor:
        a = actions.to(self.dtype)
        h = _linear(F.pad(a, (0, self.pad)) if self.pad else a, *self.first)
        return h if self.last is None else _linear(_silu(h), *self.last)


def _silu(x: Tensor) -> Tensor:
    return F.silu(x, inplace=not x.is_cuda)  # in place saves a pass on the CPU; a compiler fuses it


class FrozenLTI:
    """u_t = Σ_i A_i z_{t−i} + (B∘E)(a_t) + b, for MLP∘LTI followed by W relu(u) + c. A code is multiplied once, by all
    the lags that a later step of the plan reads: z [A_0 … A_{k−1}]ᵀ. Codes of the real history are multiplied once for
    all candidates of an environment."""

    def __init__(self, model: Any, dtype: torch.dtype, out: nn.Linear | None = None) -> None:
        p = model.predictor
        self.dtype, self.link, self.history = dtype, _forward_only(model.link), p.lags
        self.stacked = torch.cat([A.weight.detach().to(dtype) for A in p.A])  # (kD, D)
        self.actions = ActionMap(model.embed_action, dtype, (p.B.weight.detach(), p.A[0].bias.detach()))
        self.out = None if out is None else cast(affine(out), dtype)

    def rollout(
        self, z_BCD: Tensor, actions_BSHA: Tensor, past_BPA: Tensor | None = None, last_only: bool = False
    ) -> Tensor:
        sums = list(self.actions(actions_BSHA.transpose(1, 2)).unbind(1))  # u_0 … u_{H−1} so far, each (B, S, D)
        z_BCD = z_BCD[:, -self.history :].to(self.dtype)
        for time, frame in enumerate(z_BCD.unbind(1), start=1 - z_BCD.shape[1]):
            self._spread(frame.unsqueeze(1), time, sums)
        out = []
        for t, u in enumerate(sums):  # sums[t] is complete by now
            if self.out is not None:
                u = _linear(torch.relu(u), *self.out)
            out.append(self.link(u))
            self._spread(out[-1], t + 1, sums)
        return out[-1] if last_only else torch.stack(out, dim=2)

    def _spread(self, z: Tensor, time: int, sums: list[Tensor]) -> None:
        """Add A_i z_time to u_{time+i} for every lag i that the plan still reads."""
        D, first, end = z.shape[-1], max(0, -time), min(self.history, len(sums) - time)
        if first >= end:
            return
        parts = _linear(z, self.stacked[first * D : end * D]).chunk(end - first, dim=-1)
        for i, part in enumerate(parts, start=first):
            sums[time + i] = sums[time + i] + part


class _Block:
    """One AdaLN block's weights. The modulation's bias holds the 1 of (1 + scale)."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        W, b = affine(block.modulation)
        assert b is not None
        shift1, scale1, gate1, shift2, scale2, gate2 = b.chunk(6)
        bias = torch.cat((shift1, 1 + scale1, gate1, shift2, 1 + scale2, gate2))
        self.modulation = cast((W, bias), dtype)
        self.heads, self.eps = block.heads, block.plain.eps
        self.norm1, self.norm2 = norm(block.norm1, dtype), norm(block.norm2, dtype)
        self.qkv = block.qkv.weight.detach().to(dtype)
        self.out, self.up, self.down = (cast(affine(m), dtype) for m in (block.out, block.up, block.down))


def _through(block: _Block, x: Tensor, m: Tensor, past: Joined, last_only: bool) -> tuple[Tensor, Tensor]:
    """New tokens x (B, s, n, D), modulation m (B, s, n, 6D), earlier keys and values; see AdaLNBlock."""
    D, inner = (x.shape[-1],), block.qkv.shape[0] // 3
    shift1, scale1, gate1, shift2, scale2, gate2 = m.chunk(6, dim=-1)
    y = block.norm1(F.layer_norm(x, D, eps=block.eps) * scale1 + shift1)
    if last_only:  # the others only offer keys and values
        kv = _linear(y, block.qkv[inner:])
        q = _linear(y[:, :, -1:], block.qkv[:inner])
        x = x[:, :, -1:]
        gate1, shift2, scale2, gate2 = (t[:, :, -1:] for t in (gate1, shift2, scale2, gate2))
    else:
        q, kv = _linear(y, block.qkv).split((inner, 2 * inner), dim=-1)
    heads = (block.heads, -1)
    seen: KeysValues = []
    for both in (*past, kv):
        ks, vs = (t.unflatten(-1, heads).unbind(2) for t in both.chunk(2, dim=-1))
        seen += zip(ks, vs, strict=True)
    queries = q.unflatten(-1, heads).unbind(2)
    first = len(seen) - len(queries)
    a = [_attend(q, seen[: first + i + 1]).flatten(-2).unsqueeze(2) for i, q in enumerate(queries)]
    x = x + gate1 * _linear(torch.cat(a, dim=2) if len(a) > 1 else a[0], *block.out)
    y = block.norm2(F.layer_norm(x, D, eps=block.eps) * scale2 + shift2)
    return x + gate2 * _linear(F.gelu(_linear(y, *block.up)), *block.down), kv


def norm(layer: nn.LayerNorm, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """LayerNorm with its weights cast."""
    weight, bias = layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)
    return partial(F.layer_norm, normalized_shape=layer.normalized_shape, weight=weight, bias=bias, eps=layer.eps)


def _attend(q: Tensor, seen: KeysValues) -> Tensor:
    """softmax_j(q·k_j/√d) v_j, one query (B, s, h, d) over a handful of keys, token by token. As sums over pairs:
    nothing is copied, shared histories broadcast, and a compiler makes one kernel of it."""
    if len(seen) == 1:
        return seen[0][1]
    high = torch.promote_types(q.dtype, torch.float32)
    scores = [(q * k).sum(-1, keepdim=True, dtype=high) * q.shape[-1] ** -0.5 for k, _ in seen]
    top = reduce(torch.maximum, scores)
    weights = [(s - top).exp() for s in scores]
    total = reduce(torch.add, weights)
    return reduce(torch.add, ((w / total).to(q.dtype) * v for w, (_, v) in zip(weights, seen, strict=True)))


class FrozenAdaLN:
    """The transformer rungs. Every token's modulation is computed once, for all blocks and the whole plan. While the
    window grows only the new token is computed; when it slides, every token has a new position and is computed anew,
    the last block for the last token alone. Real history goes first: `context`, once for all candidates of a plan."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        p = model.predictor
        self.dtype, self.link, self.history = dtype, _forward_only(model.link), p.lags
        self.actions = ActionMap(model.embed_action, dtype)
        self.position = p.position.detach().to(dtype)
        self.blocks = [_Block(block, dtype) for block in p.blocks]
        self.norm = norm(p.norm, dtype)
        up, inner, _, down = p.head
        first = affine(up)
        self.head_norm: Callable[[Tensor], Tensor] = identity
        if isinstance(inner, BatchNorm):  # fixed statistics: one more affine map
            scale = inner.weight * torch.rsqrt(inner.running_var + inner.eps)
            first = after((torch.diag(scale), inner.bias - inner.running_mean * scale), first)
        else:
            self.head_norm = norm(inner, dtype)
        self.up, self.down = cast(first, dtype), cast(affine(down), dtype)

    @in_parts
    def context(self, z_BCD: Tensor, past_BPA: Tensor | None) -> Tensor | None:
        """Keys and values that real history offers, (B, blocks, N, 2hd): of its p tokens as a window sees them that
        starts at the first one, then of the p − 1 others as one sees them that starts at the second, and so on."""
        z_BCD = z_BCD[:, -self.history :].to(self.dtype)
        p = z_BCD.shape[1] - 1
        if past_BPA is None or not p:
            return None
        real = self._modulations(past_BPA[:, None, past_BPA.shape[1] - p :])
        none: list[Joined] = [[] for _ in self.blocks]
        windows = [self._run([z_BCD[:, None, low:p]], [m[:, :, low:] for m in real], 0, none)[1] for low in range(p)]
        return torch.cat([torch.cat([kv for (kv,) in blocks], dim=1) for blocks in windows], dim=2)

    @in_parts
    def rollout(
        self,
        z_BCD: Tensor,
        actions_BSHA: Tensor,
        past_BPA: Tensor | None = None,
        last_only: bool = False,
        context: Tensor | None = None,
    ) -> Tensor:
        """`context`: of this history, where it is at hand."""
        k, H = self.history, actions_BSHA.shape[2]
        context = self.context(z_BCD, past_BPA) if context is None else context
        z_BCD = z_BCD[:, -k:].to(self.dtype)
        p = z_BCD.shape[1] - 1  # tokens of real history, shared by all candidates
        mine = self._modulations(actions_BSHA)  # per block (B, S, H, 6D)
        tokens = [z_BCD[:, None, p:]]
        out: list[Tensor] = []
        past: list[Joined] = []
        for t in range(H):
            low = max(0, p + t + 1 - k)  # the window's oldest token, real ones counted first
            fresh = t == 0 or low > 0  # nothing computed before is of use
            begin = max(0, low - p) if fresh else t
            if fresh:
                past = [[] for _ in self.blocks]
                if context is not None and low < p:
                    at = sum(p - earlier for earlier in range(low))
                    past = [[kv] for kv in context[:, :, at : at + p - low].split(1, dim=1)]
            ms = [m[:, :, begin : t + 1] for m in mine]
            x, past = self._run(tokens[begin : t + 1], ms, p + begin - low, past)
            tokens.append(self._code(x))
            out.append(tokens[-1])
        return out[-1][:, :, 0] if last_only else torch.cat(out, dim=2)

    def _modulations(self, actions: Tensor) -> list[Tensor]:
        e = _silu(self.actions(actions))
        return [_linear(e, *block.modulation) for block in self.blocks]

    def _code(self, x: Tensor) -> Tensor:
        return self.link(_linear(F.gelu(self.head_norm(_linear(self.norm(x), *self.up))), *self.down))

    @in_parts
    def _run(self, tokens: list[Tensor], ms: list[Tensor], at: int, past: list[Joined]) -> tuple[Tensor, list[Joined]]:
        """Tokens (B, s, n, D) at positions at, at+1, …; the last one's output, and all keys and values."""
        n = ms[0].shape[2]
        x = _placed(tokens, self.position[at : at + n])
        seen: list[Joined] = []
        for i, block in enumerate(self.blocks):
            x, kv = _through(block, x, ms[i], past[i], n > 1 and i == len(self.blocks) - 1)
            seen.append([*past[i], kv])
        return x, seen


def _placed(tokens: list[Tensor], position: Tensor) -> Tensor:
    """(B, 1 or S, 1, D) each -> (B, S, n, D), at their positions."""
    S = max(t.shape[1] for t in tokens)
    return (torch.cat([t.expand(-1, S, -1, -1) for t in tokens], dim=2) if len(tokens) > 1 else tokens[0]) + position
