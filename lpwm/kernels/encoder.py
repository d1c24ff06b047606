"""Whether the encoder's kernels serve: on which tensors, and whether they are right on this device. And patches.

The kernels (`attention`, `norm`, `last`, `mlp`, `pointwise`) and the products
of `blas` serve training in bfloat16 on CUDA, compiled, where `usable` has tried them; everything else (CPU, float32,
eager, long sequences, other GPUs) uses torch's own functions, to which they are equal up to rounding.
`lpwm.kernels.stack` makes one operator of them; cutting frames into patches is one here.
"""

from __future__ import annotations

import functools
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm.core.rng import generator
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

HEAD_DIM = 64
ROWS = 304  # of a trial: no whole tiles, and a multiple of 16 as in a run, so that the same kernel is compiled
MOST_TOKENS = 320  # beyond this, keys and values of a head leave too little shared memory for two programs


def kernels_serve(frames: Tensor) -> bool:
    """Whether frames are on the path that the kernels are made for: uint8, compiled, on CUDA, in bfloat16."""
    return (
        torch.compiler.is_compiling()
        and frames.is_cuda
        and frames.dtype == torch.uint8
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
    )


@functools.cache
def usable(tokens: int, width: int, heads: int, head_dim: int, mlp: int, patch: int, device: torch.device) -> bool:
    """Whether the kernels run on this device for these sizes and agree with torch there: tried, once.

    Devices differ in shared memory and compilers err; a step that is wrong, or does not start, must not be the price of
    a fast one. The kernels compiled for the trial are those of the run.
    """
    fits = head_dim == HEAD_DIM and tokens <= MOST_TOKENS and patch % 2 == 0
    if kernels is None or device.type != "cuda" or not fits:
        return False
    try:
        with torch.enable_grad():
            errors = [
                *_attention_errors(tokens, heads, device),
                *_gelu_errors(width, mlp, device),
                *_norm_errors(width, device),
                *_last_errors(tokens, width, heads, device),
                *_blas_errors(width, mlp, device),
                _cut_error(patch, device),
            ]
    except Exception as error:
        warnings.warn(f"the encoder's kernels do not run here ({error}); torch's are used.", stacklevel=2)
        return False
    right = all(error < 0.02 for error in errors)  # bfloat16 rounds to 0.004; NaN is not below anything
    if not right:
        told = ", ".join(f"{error:.2g}" for error in errors)
        warnings.warn(f"the encoder's kernels are off here (by {told}); torch's are used.", stacklevel=2)
    return right


def _far(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().float(), want.detach().float()
    return float((got - want).norm() / want.norm())


def _noise(*shape: int, device: torch.device, key: str) -> Tensor:
    return torch.randn(shape, generator=generator("kernels", key)).to(device, torch.bfloat16)


def _attention_errors(tokens: int, heads: int, device: torch.device) -> list[float]:
    """Of the output and of both gradients, against float32."""
    width = heads * HEAD_DIM
    x = _noise(4, tokens, 3 * width, device=device, key="qkv")
    g = _noise(4, tokens, width, device=device, key="gradient")
    wide = x.float().requires_grad_()
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in wide.chunk(3, dim=-1))
    weight = (q @ k.transpose(-1, -2) * HEAD_DIM**-0.5).softmax(dim=-1)
    want = (weight @ v).transpose(1, 2).flatten(-2)
    got, lse = kernels.attention_forward(x, heads)
    dx, sums = kernels.attention_backward(g, x, got, lse, heads)
    (slope,) = torch.autograd.grad(want, wide, g.float())
    return [_far(got, want), _far(dx, slope), _far(sums.sum(0), slope.sum((0, 1)))]


def _gelu_errors(width: int, mlp: int, device: torch.device) -> list[float]:
    """Of the GELU, alone or in the products before and after it, as the settings of this width have it."""
    chosen = kernels_settings.of(width)
    x = _noise(ROWS, mlp, device=device, key="hidden")
    g = _noise(ROWS, mlp, device=device, key="slope")
    wide = x.float().requires_grad_()
    got, want = kernels_pointwise.gelu_forward(x, tiles=chosen.gelu), F.gelu(wide)
    dx, sums = kernels_pointwise.gelu_backward(g, x, tiles=chosen.gelu)
    (slope,) = torch.autograd.grad(want, wide, g.float())
    errors = [_far(got, want), _far(dx, slope), _far(sums.sum(0), slope.sum(0))]
    return errors + _product_errors(chosen, width, mlp, device)


def _product_errors(chosen: kernels_settings.Settings, width: int, mlp: int, device: torch.device) -> list[float]:
    first, second, kept = kernels_settings.fused(chosen, lambda p: kernels_mlp.serves(p, width, mlp, device))
    if first is None and second is None:
        return []
    x, g = (_noise(ROWS, width, device=device, key=key) for key in ("stream", "slope"))
    up = _noise(mlp, width, device=device, key="up") * width**-0.5
    down = _noise(width, mlp, device=device, key="down") * width**-0.5
    bias = _noise(mlp, device=device, key="bias")
    u = (x.float() @ up.float().t() + bias.float()).requires_grad_()
    want = F.gelu(u)
    (derivative,) = torch.autograd.grad(want.sum(), u, retain_graph=True)
    (slope,) = torch.autograd.grad(want, u, g.float() @ down.float())
    hidden = (derivative if kept else u.detach()).to(x.dtype)
    out, active, errors = torch.empty_like(hidden), torch.empty_like(hidden), []
    if first is not None:
        kernels_mlp.up(x, up, bias, out, active, first, kept)
        errors += [_far(out, derivative if kept else u), _far(active, want)]
    if second is not None:
        sums = torch.empty(kernels_mlp.pieces(ROWS, second), mlp, device=device)
        kernels_mlp.down_backward(g, down, hidden, out, sums, second, kept)
        errors += [_far(out, slope), _far(sums.sum(0), slope.sum(0))]
    return errors


def _norm_errors(width: int, device: torch.device) -> list[float]:
    chosen = kernels_settings.of(width)
    r, g, c = (_noise(ROWS, width, device=device, key=key) for key in ("stream", "slope", "biases"))
    shift = c[0].float()
    x = (r.float() + shift).requires_grad_()
    want = F.layer_norm(x, (width,), eps=1e-6)
    (slope,) = torch.autograd.grad(want, x, g.float())
    got, one, total = torch.empty_like(r), torch.empty_like(x[:, 0]), torch.zeros_like(r)
    sums = torch.empty(kernels_norm.pieces(ROWS, chosen.norm_backward), width, device=device)
    kernels_norm.norm_forward(r, shift, 1e-6, got, one.detach(), chosen.norm_forward)
    y = want.detach().to(r.dtype)
    kernels_norm.norm_backward(g, y, one.detach(), total, total, sums, chosen.norm_backward)
    errors = [_far(got, want), _far(total, slope), _far(sums.sum(0), slope.sum(0))]
    first = x.detach().view(16, -1, width)[:, 0] - shift  # of 16 frames
    r.view(16, -1, width)[:, 0] = float("nan")
    kernels_norm.norm_forward(r, shift, 1e-6, got, one.detach(), chosen.norm_forward, first)
    return [*errors, _far(got, want)]


def _last_errors(tokens: int, width: int, heads: int, device: torch.device) -> list[float]:
    """Of what the last block hears, and of its gradients."""
    chosen, scale = kernels_settings.of(width), HEAD_DIM**-0.5
    r, c = (_noise(*shape, width, device=device, key=key) for shape, key in (((4, tokens), "stream"), ((1,), "biases")))
    asked, g = (_noise(heads, 4, width, device=device, key=key) for key in ("asked", "slope"))
    wide = [t.float().requires_grad_() for t in (r, c[0], asked)]
    x = F.layer_norm(wide[0] + wide[1], (width,), eps=1e-6)
    want = (torch.einsum("hbw,bnw->hbn", wide[2], x) * scale).softmax(-1)
    want = torch.einsum("hbn,bnw->hbw", want, x)
    slopes = torch.autograd.grad(want, wide, g.float())
    heard, lse = kernels_last.hear(r, wide[1].detach(), asked, scale, 1e-6, chosen.last)
    sums, total = torch.empty(4, width, device=device), torch.empty(1, width, device=device)
    d_r, d_asked = kernels_last.hear_backward(
        g, r, wide[1].detach(), asked, heard, lse, scale, 1e-6, sums, chosen.last_backward
    )
    kernels_norm.totals(sums[None], total)
    got = d_r, total[0], d_asked
    return [_far(heard, want), *(_far(a, b) for a, b in zip(got, slopes, strict=True))]


def _blas_errors(width: int, mlp: int, device: torch.device) -> list[float]:
    """Of products with a bias, added to what is there, neither, and for a few rows added to float32."""
    x, bias = _noise(ROWS, width, device=device, key="stream"), _noise(mlp, device=device, key="bias")
    weight = _noise(mlp, width, device=device, key="up")
    hidden, out = torch.empty_like(bias).expand(ROWS, mlp).contiguous(), torch.empty_like(x)
    wide = x.float() @ weight.float().t() + bias.float()
    product(x, weight.t(), hidden, bias)
    errors = [_far(hidden, wide)]
    product(hidden, weight, out)
    errors.append(_far(out, hidden.float() @ weight.float()))
    want = out.float() + hidden.float() @ weight.float()
    product(hidden, weight, out, grows=True)
    errors.append(_far(out, want))
    total, rows = want.view(16, -1, width)[:, 0].contiguous(), hidden.view(16, -1, mlp)[:, 0]
    want = total + rows.float() @ weight.float()
    product(rows, weight, total, grows=True)
    return [*errors, _far(total, want)]


def _cut_error(patch: int, device: torch.device) -> float:
    side = 4 * patch
    frames = (torch.arange(2 * 3 * side * side, device=device) % 251).to(torch.uint8).view(2, 3, side, side)
    scale, shift = torch.tensor([[0.01, 0.02, 0.03], [0.5, -1.0, 0.2]], device=device).view(2, 3, 1, 1)
    cut = frames.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 1, 4, 5)
    want = (cut * scale + shift).flatten(1, 2).flatten(2)
    got = patches(frames, scale, shift, patch)
    return _far(got, F.pad(want, (0, got.shape[-1] - want.shape[-1], 1, 0)))


@torch.library.custom_op("lpwm::patches", mutates_args=(), device_types="cuda")
def patches(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    """uint8 (b, 3, s, s) -> bfloat16 (b, 1 + (s/p)², P), scaled and shifted by channel. It has no gradient.

    Row 0, where the class token will be, is 0. P is 3·p² rounded up to a multiple of 8, and what is more is 0.
    """
    return kernels_pointwise.patches(frames.contiguous(), scale, shift, patch)


@patches.register_fake
def _(frames: Tensor, scale: Tensor, shift: Tensor, patch: int) -> Tensor:
    b, _, _, side = frames.shape
    wide = -(-3 * patch * patch // 8) * 8
    return frames.new_empty(b, 1 + (side // patch) ** 2, wide, dtype=torch.bfloat16)
