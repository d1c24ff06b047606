"""A Vision Transformer that reads one frame: o_t -> CLS features, then the projector to the latent width. Legend: B
frames, N tokens (1 + patches), W width, P pixels of a patch (3·p²)."""

from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from lpwm import kernels
from lpwm.core.errors import UserError
from lpwm.model.config import EncoderConfig, ProjectorConfig
from lpwm.model.layers import TwoLayer, linear

# How uint8 pixels become numbers: (x/255 − mean)/std. The ladder pipeline centers, the support pipeline
# uses the statistics of ImageNet; "white" makes a white background 0, for dots on it (see recipes.small). "data" takes
# the statistics of the training frames (lpwm.data.pixels), saved with the weights; until it has them it is "half".
PIXELS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "white": ((1.0, 1.0, 1.0), (0.5, 0.5, 0.5)),
    "data": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


class Block(nn.Module):
    """Pre-norm transformer block: x += Attn(LN(x)); x += MLP(LN(x))."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        inner = c.heads * c.head_dim
        self.heads = c.heads
        self.norm1 = nn.LayerNorm(c.width, eps=1e-6)
        self.qkv = linear(c.width, 3 * inner)
        self.out = linear(inner, c.width)
        self.norm2 = nn.LayerNorm(c.width, eps=1e-6)
        self.up = linear(c.width, c.mlp)
        self.down = linear(c.mlp, c.width)

    def forward(self, x: Tensor, cls_only: bool = False) -> Tensor:
        y = self.norm1(x)
        if cls_only and x.device.type == "cpu":
            return self.after_attention(x[:, :1], self._attend_once(y))
        # Split before the heads are moved: the gradients of q, k and v are then put together in one copy, not two.
        q, k, v = (t.transpose(1, 2) for t in self.qkv(y).unflatten(-1, (3, self.heads, -1)).unbind(dim=2))
        if cls_only:  # the last block: only token 0 is used, so it is the only query
            q, x = q[:, :, :1], x[:, :1]
        return self.after_attention(x, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the block, given the stream (…, W) and its attention (…, h·d)."""
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def _attend_once(self, y_BNW: Tensor) -> Tensor:
        """Attention of token 0 alone, (B, 1, h·d), without keys and values: with one query it is cheaper to carry it
        back through the keys' weights and the average forward through the values', ⟨q, K y⟩ = ⟨Kᵀq, y⟩ and Σ a_n V y_n
        = V Σ a_n y_n. A fourth of the time for 17 tokens of width 64 on a CPU."""
        weight, bias, inner = self.qkv.weight, self.qkv.bias, self.out.in_features
        _, key_hdW, value_hdW = weight.unflatten(0, (3, self.heads, -1)).unbind(0)
        query_bias, key_bias, value_bias = bias.unflatten(0, (3, self.heads, -1)).unbind(0)
        q_Bhd = F.linear(y_BNW[:, 0], weight[:inner], query_bias.flatten())
        q_Bhd = q_Bhd.unflatten(-1, (self.heads, -1)) * (inner // self.heads) ** -0.5
        direction_BhW = torch.einsum("bhd,hdw->bhw", q_Bhd, key_hdW)
        score_BhN = direction_BhW @ y_BNW.transpose(1, 2) + (q_Bhd * key_bias).sum(-1, keepdim=True)
        mean_BhW = score_BhN.softmax(dim=-1) @ y_BNW
        return (torch.einsum("bhw,hdw->bhd", mean_BhW, value_hdW) + value_bias).flatten(1).unsqueeze(1)


class ViT(nn.Module):
    """uint8 (or float 0–255) frames (B, 3, H, H) -> features of the CLS token (B, W)."""

    scale: Tensor
    shift: Tensor
    by_kernels = False
    mup: ClassVar = {"cls": "embedding", "position": "embedding"}

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = (c.image_size // c.patch) ** 2 + 1
        self.embed = linear(3 * c.patch**2, c.width, problem=True)
        self.cls = nn.Parameter(torch.empty(c.width))
        self.position = nn.Parameter(torch.empty(self.tokens, c.width))
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.width, eps=1e-6)
        learned = c.pixels == "data"  # then saved with the weights
        for name in ("scale", "shift"):
            self.register_buffer(name, torch.empty(3, 1, 1), persistent=learned)
        if self.cls.is_meta:  # sizes alone are wanted; arithmetic there imports torch's compiler, which takes a second
            return
        self.measure_pixels(*(torch.tensor(v) for v in PIXELS[c.pixels]))
        for p in (self.cls, self.position):
            nn.init.normal_(p, std=0.02)

    def measure_pixels(self, mean: Tensor, std: Tensor) -> None:
        """Pixels are (x/255 − mean)/std from now on, with one mean and one std per channel."""
        self.scale.copy_((1 / (255 * std)).view(3, 1, 1))
        self.shift.copy_((-mean / std).view(3, 1, 1))

    def use_kernels(self) -> bool:
        """Train with the operator of `lpwm.kernels`, if it serves here; the same function up to rounding."""
        c = self.config
        sizes = (self.tokens, c.width, c.heads, c.head_dim, c.mlp, c.patch)
        self.by_kernels = kernels.encoder_available(*sizes, self.cls.device)
        return self.by_kernels

    def forward(self, frames: Tensor) -> Tensor:
        c = self.config
        if frames.shape[-3:] != (3, c.image_size, c.image_size):
            raise UserError(
                f"the encoder reads frames of shape (3, {c.image_size}, {c.image_size}), not "
                f"{tuple(frames.shape[-3:])}: render or resize them to {c.image_size} pixels."
            )
        *first, last = cast(list[Block], list(self.blocks))
        if first and self.by_kernels and kernels.encoder_serves(frames):
            x = self._by_kernels(frames, last)
        else:
            # The stream is as wide as the parameters, also in bfloat16: token 0 differs little from frame to frame.
            x = self.embed(self._patches(frames))
            x = torch.cat((self.cls.expand(x.shape[0], 1, -1), x), dim=1) + self.position
            for block in first:
                x = block(x)
            x = last(x, cls_only=True)[:, 0]
        return self.norm(x)

    def _patches(self, frames: Tensor) -> Tensor:
        """(B, N − 1, P)"""
        p = self.config.patch
        x = torch.addcmul(self.shift, frames.to(self.scale.dtype), self.scale)
        return rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=p, q=p)

    def _by_kernels(self, frames: Tensor, last: Block) -> Tensor:
        """Token 0 at the end."""
        begin = self.position + torch.cat((self.cls[None], self.embed.bias.expand(self.tokens - 1, -1)))
        patch, blocks = self.config.patch, list(self.blocks)
        return last.after_attention(*kernels.encode(frames, self.scale, self.shift, patch, self.embed, begin, blocks))


class Encoder(nn.Module):
    """project(ViT(o) [+ E·proprio]): the code before the link. The projector is computed in the precision of its
    parameters, also under autocast: at first features differ from frame to frame by about what bfloat16 rounds, and
    training would lag (docs/performance.md)."""

    def __init__(self, vit: EncoderConfig, projector: ProjectorConfig, latent: int, proprio: int = 0) -> None:
        super().__init__()
        self.vit = ViT(vit)
        self.proprio = linear(proprio, vit.width, problem=True) if proprio else None
        self.project = TwoLayer(vit.width, projector.hidden, latent, projector.norm)

    def forward(self, frames: Tensor, proprio: Tensor | None = None) -> Tensor:
        features = self.vit(frames)
        if self.proprio is not None:
            if proprio is None:
                raise UserError("this model was built with proprioception: give `proprio` with the frames.")
            features = features + self.proprio(proprio.to(features.dtype))
        with torch.autocast(features.device.type, enabled=False):
            return self.project(features.to(self.project[0].weight.dtype))
