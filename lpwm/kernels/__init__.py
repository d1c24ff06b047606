"""Triton kernels for training on CUDA, behind one door. Where they do not serve, torch's own functions are used.

The encoder's operator (`stack`) serves training in bfloat16, compiled, on a Hopper GPU or later, where
`encoder_available` has tried it; rows of a batch are ranked (`order`) on any GPU. Both need Triton.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.kernels import settings, stack, trial

try:
    from lpwm.kernels import mlp, order
    from lpwm.kernels.order import match_rows, sort_rows
except ImportError:  # no Triton
    mlp = order = None  # type: ignore[assignment]

MOST_TOKENS = 320  # beyond this, keys and values of a head leave too little shared memory for two programs


def encoder_serves(frames: Tensor) -> bool:
    """Whether frames are on the path that the kernels are made for: uint8, compiled, on CUDA, in bfloat16."""
    return (
        torch.compiler.is_compiling()
        and frames.is_cuda
        and frames.dtype == torch.uint8
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
    )


@functools.cache
def encoder_available(
    tokens: int, width: int, heads: int, head_dim: int, mlp_width: int, patch: int, device: torch.device
) -> bool:
    """Whether the encoder's operator runs on this device for these sizes and agrees with torch there: tried, once."""
    if mlp is None or device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    tiles = settings.of(width)
    covered = all(mlp.fits(product, width, mlp_width) for product in (tiles.up, tiles.down))
    if head_dim != stack.HEAD_DIM or tokens > MOST_TOKENS or patch % 2 or not covered:
        return False
    try:
        errors = trial.errors(tokens, width, heads, mlp_width, patch, device)
    except Exception as error:
        warnings.warn(f"the encoder's kernels do not run here ({error}); torch's are used.", stacklevel=2)
        return False
    right = all(error < 0.02 for error in errors)  # bfloat16 gives up to 0.01; NaN is not below anything
    if not right:
        listed = ", ".join(f"{error:.2g}" for error in errors)
        warnings.warn(f"the encoder's kernels are off here (by {listed}); torch's are used.", stacklevel=2)
    return right


def encode(
    frames: Tensor, scale: Tensor, shift: Tensor, patch: int, embed: Any, begin: Tensor, blocks: Sequence[Any]
) -> tuple[Tensor, Tensor]:
    """Frames (b, 3, s, s) -> token 0 of the stream before the last of the ViT's blocks (b, w), and its attention there
    (b, h·d). `embed` is the layer of patches, `begin` (n, w) what is added to it: positions, class token and bias."""
    *first, last = blocks
    patches = stack.cut_patches(frames, scale, shift, patch)
    padded = F.pad(embed.weight, (0, patches.shape[-1] - embed.in_features))
    weights = stack.fold(padded, begin, first, last, patches.dtype)
    token, attended, *_ = stack.operator(patches, *weights, last.heads, last.norm1.eps)
    return token + weights.c[-1], attended


def ranks_rows(x: Tensor) -> bool:
    """Whether `match_rows` and `sort_rows` serve: rows on CUDA, short enough to beat torch's sort."""
    return order is not None and x.is_cuda and x.shape[-1] <= order.MOST
