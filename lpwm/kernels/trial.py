"""How far the encoder's kernels are from torch on this device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.core.rng import generator
from lpwm.kernels import stack

FRAMES = 16  # rows are a multiple of 16, as in a run: the same kernels are compiled


def errors(
    tokens: int, width: int, heads: int, mlp: int, patch: int, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> list[float]:
    """Relative errors of the operator's outputs and of the gradient of every weight, and of patches."""
    return [*_operator(tokens, width, heads, mlp, device, dtype), _patches(patch, device)]


def _far(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().float(), want.detach().float()
    return float((got - want).norm() / want.norm())


def _noise(*shape: int, device: torch.device, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=generator("kernels", *shape)) * scale).to(device)


def _weights(tokens: int, w: int, i: int, f: int, device: torch.device, dtype: torch.dtype) -> stack.Folded:
    """Of one block and the last."""
    shapes: list[tuple[int, ...]] = [(w, w), (tokens, w), (1, 3 * i, w), (1, 3 * i), (1, w, i), (1, f, w)]
    shapes += [(1, f), (1, w, f), (3, w), (3 * i, w), (3 * i,)]
    made = {}
    for name, shape in zip(stack.Folded._fields, shapes, strict=True):
        scale = 0.5 if name == "c" or name.endswith(("begin", "bias")) else shape[-1] ** -0.5
        made[name] = _noise(*shape, device=device, scale=scale).to(torch.float32 if name == "c" else dtype)
    return stack.Folded(**made)


def _operator(tokens: int, width: int, heads: int, mlp: int, device: torch.device, dtype: torch.dtype) -> list[float]:
    b, inner = FRAMES, heads * stack.HEAD_DIM
    weights = _weights(tokens, width, inner, mlp, device, dtype)
    x = _noise(b, tokens, width, device=device).to(dtype)
    x[:, 0] = 0  # the class token
    grads = _noise(b, width, device=device), _noise(b, inner, device=device, scale=2.0).to(dtype)
    with torch.enable_grad():
        wide = stack.Folded(*(t.detach().float().requires_grad_() for t in weights))
        want = stack.reference(x.float(), wide, heads, 1e-6)
        slopes = torch.autograd.grad(want, wide, [g.float() for g in grads])
    *got, kept = stack.forward(x, weights, heads, 1e-6)
    d = stack.backward(*grads, x, kept, weights, heads, 1e-6)
    return [_far(a, b) for a, b in zip((*got, *d), (*want, *slopes), strict=True)]


def _patches(patch: int, device: torch.device) -> float:
    side = 4 * patch
    frames = (torch.arange(2 * 3 * side * side, device=device) % 251).to(torch.uint8).view(2, 3, side, side)
    scale, shift = torch.tensor([[0.01, 0.02, 0.03], [0.5, -1.0, 0.2]], device=device).view(2, 3, 1, 1)
    cut = frames.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 1, 4, 5)
    want = (cut * scale + shift).flatten(1, 2).flatten(2)
    got = stack.patches_kernel.cut(frames, scale, shift, patch)
    return _far(got, F.pad(want, (0, got.shape[-1] - want.shape[-1], 1, 0)))
