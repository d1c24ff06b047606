"""The MLP's two products that have a GELU next to them, with the GELU in their epilogue.

Forwards gelu(u) and gelu'(u) of u = x Wᵀ + b; backwards du = (g V) ⊙ gelu'(u) and its sums over rows, for b.
So the widest tensors of a block are loaded and written once less each way. One program makes one tile, loaded and
stored through descriptors, which a Hopper GPU (or later) has.

Legend: m rows, K = w width of the stream, N = f width of the MLP. bfloat16 with float32 sums.
"""

import os
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr as C  # an annotation that Triton reads: no string
from triton.tools.tensor_descriptor import TensorDescriptor

from lpwm.kernels.settings import Product

# The GPU's own exponential and reciprocal (1 and 2 units in the last place), a quarter fewer instructions than with
# the care that Triton takes of the smallest numbers. The interpreter knows no assembly.
NATIVE = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") != "1")


@triton.jit
def _normal(x):
    """Φ(x) and exp(−x²/2): erfc(z) ≈ (a₁t + … + a₅t⁵) exp(−z²), t = 1/(1 + 0.3275911 z), z = |x|/√2. Abramowitz and
    Stegun 7.1.26: Φ is off by at most 7.5e-8, as much as float32 rounds."""
    below, over = x * x * -0.7213475204444817, 1.0 + 0.23164189 * tl.abs(x)
    if NATIVE:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [below], dtype=tl.float32, is_pure=True, pack=1
        )
        t = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [over], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        e = tl.exp2(below)
        t = 1.0 / over
    poly = 0.530702714 * t - 0.7265760135
    poly = (poly * t + 0.7107068705) * t - 0.142248368
    half = (poly * t + 0.127414796) * t * e
    return tl.where(x < 0, half, 1.0 - half), e


@triton.jit
def _mlp_up(x, w, bias, slope, active, kind, N: C, K: C, BM: C, BN: C, BK: C):
    """One tile; x, w, slope and active are descriptors (`kind`: of what type the last two are)."""
    at = tl.program_id(0) // (N // BN) * BM
    left = tl.program_id(0) % (N // BN) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(x.load([at, i]), w.load([left, i]).T, acc)
    acc += tl.load(bias + left + tl.arange(0, BN)).to(tl.float32)[None, :]
    phi, e = _normal(acc)
    slope.store([at, left], (phi + acc * e * 0.3989422804014327).to(kind.dtype.element_ty))
    active.store([at, left], (acc * phi).to(kind.dtype.element_ty))


@triton.jit
def _mlp_down(g, w, slope, out, sums, kind, N: C, K: C, BM: C, BN: C, BK: C):
    """One tile; g, w, slope and out are descriptors. Rows past the end are read as 0 and not written."""
    tile, left = tl.program_id(0) // (N // BN), tl.program_id(0) % (N // BN) * BN
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, K, BK):
        acc = tl.dot(g.load([tile * BM, i]), w.load([i, left]), acc)
    acc *= slope.load([tile * BM, left]).to(tl.float32)
    out.store([tile * BM, left], acc.to(kind.dtype.element_ty))
    tl.store(sums + tile * N + left + tl.arange(0, BN), tl.sum(acc, 0))


def fits(product: Product, w: int, f: int) -> bool:
    """Whether tiles cover the matrices: rows may leave a rest, columns may not."""
    return f % product.cols == 0 and w % product.depth == 0


def pieces(m: int, product: Product) -> int:
    """How many partial sums over rows the backward pass leaves."""
    return triton.cdiv(m, product.rows)


def _launch(
    x: Tensor, w: Tensor, block: list[int], slope: Tensor, out: Tensor, p: Product
) -> tuple[tuple[int], list[Any], dict[str, int]]:
    """The grid; descriptors of x, of w in tiles of `block`, of slope and of out; the sizes."""
    (m, k), f, narrow, wide = x.shape, slope.shape[1], [p.rows, p.depth], [p.rows, p.cols]
    tiles = ((x, narrow), (w, block), (slope, wide), (out, wide))
    described = [TensorDescriptor.from_tensor(t, shape) for t, shape in tiles]
    sizes = {"N": f, "K": k, "BM": p.rows, "BN": p.cols, "BK": p.depth}
    return (pieces(m, p) * (f // p.cols),), described, sizes | {"num_warps": p.warps, "num_stages": p.stages}


def up(x: Tensor, w: Tensor, bias: Tensor, slope: Tensor, active: Tensor, product: Product) -> None:
    """x (m, w), weights (f, w), bias (f) -> `slope` gelu'(u) and `active` gelu(u), both (m, f)."""
    grid, (a, b, first, second), sizes = _launch(x, w, [product.cols, product.depth], slope, active, product)
    _mlp_up[grid](a, b, bias, first, second, slope, **sizes)


def down_backward(grad: Tensor, w: Tensor, slope: Tensor, out: Tensor, sums: Tensor, product: Product) -> None:
    """grad (m, w), weights (w, f), `slope` of `up` -> the gradient of u (m, f) and its sums (pieces, f) float32."""
    grid, (a, b, first, second), sizes = _launch(grad, w, [product.depth, product.cols], slope, out, product)
    _mlp_down[grid](a, b, first, second, sums, out, **sizes)
