"""The two upper rungs: a causal transformer over the history, modulated by the actions (AdaLN-zero).

Legend: B environments, S samples, K positions, D latent width, h heads, d width of a head, L blocks.
Token j is z_j plus the position's embedding; it is modulated by its own action embedding e_j.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpwm.core.compiled import in_parts
from lpwm.model.config import PredictorConfig
from lpwm.model.frozen import FrozenAdaLN
from lpwm.model.layers import TwoLayer, linear, short_attention

KV = tuple[Tensor, Tensor]  # keys and values


class AdaLNBlock(nn.Module):
    """x += gate·Attn(LN_affine(modulate(LN_plain(x)))), then the same with the MLP."""

    def __init__(self, c: PredictorConfig, latent: int) -> None:
        super().__init__()
        inner = c.heads * c.head_dim
        self.heads, self.dropout = c.heads, c.dropout
        self.plain = nn.LayerNorm(latent, elementwise_affine=False)
        self.modulation = linear(latent, 6 * latent)
        self.norm1 = nn.LayerNorm(latent)
        self.qkv = linear(latent, 3 * inner, bias=False)
        self.out = linear(inner, latent)
        self.norm2 = nn.LayerNorm(latent)
        self.up = linear(latent, c.mlp)
        self.down = linear(c.mlp, latent)

    @torch.no_grad()
    def deliberate_init(self) -> None:
        """AdaLN-zero: every gate is closed at the start, so a block is the identity."""
        self.modulation.weight.zero_()
        self.modulation.bias.zero_()

    def modulate(self, e: Tensor) -> Tensor:
        return self.modulation(F.silu(e))

    def forward(self, x: Tensor, m: Tensor, past: KV | None, last_only: bool) -> tuple[Tensor, KV]:
        """New tokens x (B, S, N, D) with modulation m (B, S, N, 6D) after `past` keys and values. Returns the tokens
        (only the last with `last_only`) and the keys and values of all of them."""
        shift1, scale1, gate1, shift2, scale2, gate2 = m.chunk(6, dim=-1)
        y = self.norm1(self.plain(x) * (1 + scale1) + shift1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(y).chunk(3, dim=-1))
        if past is not None:
            shape = torch.broadcast_shapes(past[0].shape[:2], k.shape[:2])
            k, v = (
                torch.cat((p.expand(*shape, -1, -1, -1), t.expand(*shape, -1, -1, -1)), dim=2)
                for p, t in zip(past, (k, v), strict=True)
            )
        n, total = x.shape[2], k.shape[2]
        if last_only:
            q, x, n = q[:, :, -1:], x[:, :, -1:], 1
            gate1, shift2, scale2, gate2 = (t[:, :, -1:] for t in (gate1, shift2, scale2, gate2))
        drop = self.dropout if self.training else 0.0
        mask = None
        if n > 1:
            mask = torch.ones(n, total, dtype=torch.bool, device=x.device).triu(total - n + 1)
        a = self.out(short_attention(q, k, v, mask, drop).flatten(-2))
        x = x + gate1 * F.dropout(a, drop, training=drop > 0)
        y = self.norm2(self.plain(x) * (1 + scale2) + shift2)
        y = self.down(F.dropout(F.gelu(self.up(y)), drop, training=drop > 0))
        return x + gate2 * F.dropout(y, drop, training=drop > 0), (k, v)


def _through(block: AdaLNBlock, x: Tensor, e: Tensor) -> Tensor:
    return block(x, block.modulate(e), None, last_only=False)[0]


@dataclass
class Window:
    """What a rollout has seen: the last tokens with their modulations, and keys and values while they are valid.
    Positions are learned, so when the window slides every token changes place and must be computed anew; while it
    grows, only the new token is. Tokens of real history are shared by all samples (S = 1 there)."""

    z: list[Tensor] = field(default_factory=list)  # each (B, 1 or S, D)
    m: list[list[Tensor]] = field(default_factory=list)  # per token, per block (B, 1 or S, 6D)
    kv: list[KV] | None = None  # per block


class AdaLN(nn.Module):
    """L blocks, a final norm and a two-layer head."""

    mup: ClassVar = {"position": "embedding"}

    def __init__(self, c: PredictorConfig, latent: int, depth: int) -> None:
        super().__init__()
        self.lags, self.position_std = c.history, c.position_std
        self.position = nn.Parameter(torch.empty(c.history, latent))
        self.blocks: Any = nn.ModuleList(AdaLNBlock(c, latent) for _ in range(depth))
        self.norm = nn.LayerNorm(latent)
        self.head = TwoLayer(latent, c.head_hidden, latent, c.head_norm)
        nn.init.normal_(self.position, std=c.position_std)

    @in_parts
    def forward(self, z_BKD: Tensor, e_BKD: Tensor) -> Tensor:
        assert z_BKD.shape[-2] <= self.lags, "a window is at most the history long"
        x = (z_BKD + self.position[: z_BKD.shape[-2]]).unsqueeze(1)
        e = e_BKD.unsqueeze(1)
        for block in self.blocks:
            x = _through(block, x, e)
        return self._code(x.squeeze(1))

    def _code(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))

    def start(self) -> Window:
        return Window()

    @in_parts
    def step(self, cache: Window, z: Tensor, e: Tensor, keep: int | None = None) -> tuple[Tensor, Window]:
        """One more token: z (B, 1 or S, D), e (B, 1 or S, D) -> u (B, 1 or S, D)."""
        zs = [*cache.z, z][-self.lags :]
        ms = [*cache.m, [block.modulate(e) for block in self.blocks]][-self.lags :]
        if len(cache.z) < self.lags:  # growing: only the new token
            x, kv = self._run(zs[-1:], ms[-1:], len(zs) - 1, cache.kv)
        else:  # sliding: everything moves one place; shared history first, once for all samples
            shared = sum(1 for t, m in zip(zs, ms, strict=True) if t.shape[1] == m[0].shape[1] == 1)
            shared = min(shared, len(zs) - 1) if z.shape[1] > 1 or e.shape[1] > 1 else 0
            kv = None
            if shared:
                _, kv = self._run(zs[:shared], ms[:shared], 0, None)
            x, kv = self._run(zs[shared:], ms[shared:], shared, kv)
        u = self._code(x[:, :, -1])
        grown = len(zs) < self.lags  # keys and values are of use only while the next token has a free place
        return u, Window(zs, ms, kv if grown else None)

    def freeze(self, model: Any, dtype: torch.dtype) -> FrozenAdaLN:
        return FrozenAdaLN(model, dtype)

    @in_parts
    def _run(self, zs: list[Tensor], ms: list[list[Tensor]], at: int, kv: list[KV] | None) -> tuple[Tensor, list[KV]]:
        """Tokens `zs` at positions at, at+1, … after the tokens whose keys and values are given."""
        samples = max(t.shape[1] for t in (*zs, *(m[0] for m in ms)))
        x = torch.stack([t.expand(-1, samples, -1) for t in zs], dim=2)
        x = x + self.position[at : at + len(zs)].to(x.dtype)
        new = []
        for i, block in enumerate(self.blocks):
            m = torch.stack([t[i].expand(-1, samples, -1) for t in ms], dim=2)
            x, keys = block(x, m, kv[i] if kv else None, len(zs) > 1 and i == len(self.blocks) - 1)
            new.append(keys)
        return x, new


def deep(config: PredictorConfig, latent: int) -> AdaLN:
    return AdaLN(config, latent, depth=6)


def shallow(config: PredictorConfig, latent: int) -> AdaLN:
    return AdaLN(config, latent, depth=1)
