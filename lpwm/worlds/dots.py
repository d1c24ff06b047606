"""Drawing a Gaussian dot on a fixed background, for Piecewise and TwoRoom.

The native frame blends a color c over the background b with alpha α,

    pixel = ⌊b·(1 − α) + c·α⌋,   α = exp(−d²/2r²) / max over the pixel grid,   d² = dx² + dy²,

in float32 and in this order: on a white ground the floor turns the last bit of α into a whole gray level. Where
α ≤ 2⁻²⁵, beyond √(50 r² ln 2) of the dot, the background comes through untouched: `ExactDots` works in a window.

Other sizes are drawn directly: pixel i of s covers 224/s native pixels, and averaging a Gaussian over that box is, to
second order, a Gaussian of variance r² + ((224/s)² − 1)/12, which is separable. The background is the exact area
average. On open ground that is within 3 levels of the area-resized native frame; 0.1 on average.

N frames, C = 3 colors, H = W = side, K = side of the window.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lpwm.worlds.base import on_host

Draw = Callable[[Tensor, Tensor], None]  # positions, frames to fill

_CHUNK_VALUES = 3 * 2**17  # floats of one color plane in flight on a CPU: what its cache holds


class ExactDots:
    """The native frame, bit for bit: (N, 2) positions -> uint8 (N, 3, H, W)."""

    def __init__(self, background_CHW: Tensor, color: tuple[int, int, int], radius: float) -> None:
        side = background_CHW.shape[-1]
        self.side, self.color, self.radius = side, color, radius
        self.reach = math.ceil(radius * math.sqrt(50 * math.log(2)) + 0.5)
        self.window = min(side, 2 * self.reach + 2)
        self.background = background_CHW.to(torch.uint8)
        # On a gray ground the second and third colors are equal: two planes are enough.
        gray = bool((self.background == self.background[:1]).all()) and color[1] == color[2]
        self.planes = (0, 1, 1) if gray else (0, 1, 2)  # where each color finds its plane
        self.ground = self.background[: max(self.planes) + 1].to(torch.float32)  # (planes, H, W)
        self.offsets = torch.arange(self.window, device=background_CHW.device)

    def __call__(self, xy_N2: Tensor) -> Tensor:
        return _in_chunks(self._draw, xy_N2, self.window**2, (3, self.side, self.side))

    def _draw(self, xy_N2: Tensor, out: Tensor) -> None:
        corner = (xy_N2.floor().to(torch.int64) - self.reach).clamp(0, self.side - self.window)
        span = corner.unsqueeze(2) + self.offsets  # (N, 2, K): the columns and rows of the window
        off = span - xy_N2.unsqueeze(2)
        off = off * off
        alpha = self._alpha(off[:, 0, None, :] + off[:, 1, :, None])
        alpha /= self._peak(xy_N2)[:, None, None]
        out.copy_(self.background.expand_as(out))
        # Blend into each frame's window with a gather and a scatter: a graph of fixed shapes.
        where = (span[:, 1, :, None] * self.side + span[:, 0, None, :]).flatten(1)  # (N, K·K)
        alpha = alpha.flatten(1)
        value = self.ground.flatten(1)[:, where] * (1.0 - alpha)  # (planes, N, K·K)
        for color, plane in enumerate(self.planes):
            if self.color[color] and plane == color:
                value[plane] += alpha * float(self.color[color])
            out[:, color].view(len(out), -1).scatter_(1, where, value[plane].to(torch.uint8))

    def _alpha(self, dist2: Tensor) -> Tensor:
        return dist2.div_(-2.0 * self.radius * self.radius).exp_()

    def _peak(self, xy_N2: Tensor) -> Tensor:
        """The largest alpha over the grid: that of one of the four pixels around the dot."""
        low = xy_N2.floor()
        near = torch.stack((low, low + 1)).clamp(0, self.side - 1) - xy_N2  # (2, N, 2)
        near = near * near
        peak = self._alpha(near[:, None, :, 0] + near[None, :, :, 1]).amax((0, 1))
        return torch.where(peak > 0, peak, torch.ones_like(peak))


class SoftDots:
    """The same picture at any other size: (N, 2) positions in native pixels -> uint8 (N, 3, size, size)."""

    def __init__(self, background_CHW: Tensor, color: tuple[int, int, int], radius: float, size: int) -> None:
        self.native, self.size, self.radius = background_CHW.shape[-1], size, radius
        device = background_CHW.device
        ratio = self.native / size
        average = area_average(self.native, size).to(device)
        ground = average @ background_CHW.to(torch.float64) @ average.T
        self.gray = bool((ground == ground[:1]).all()) and color[1] == color[2]
        paint = torch.tensor(color, dtype=torch.float64, device=device).view(3, 1, 1)
        self.delta = (paint - ground).to(torch.float32)
        self.ground = (ground + 0.5).to(torch.float32)  # the half rounds to nearest when the floor is taken
        self.variance = radius**2 + max(0.0, ratio**2 - 1) / 12
        self.centers = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * ratio - 0.5

    def __call__(self, xy_N2: Tensor) -> Tensor:
        return _in_chunks(self._draw, xy_N2, self.size**2, (3, self.size, self.size))

    def _draw(self, xy_N2: Tensor, out: Tensor) -> None:
        off = xy_N2 - xy_N2.round().clamp(0, self.native - 1)  # native frames normalize by their nearest pixel
        peak = (off * off / (2 * self.radius**2) + 0.5 * math.log(self.radius**2 / self.variance)).unsqueeze(2)
        line = self.centers - xy_N2.unsqueeze(2)  # (N, 2, size)
        line = torch.exp(peak - line * line / (2 * self.variance))
        alpha = (line[:, 1, :, None] * line[:, 0, None, :]).clamp_(max=1.0)
        for c in range(3):
            if c == 2 and self.gray:
                out[:, 2] = out[:, 1]
            else:
                out[:, c] = torch.addcmul(self.ground[c], self.delta[c], alpha)


def area_average(native: int, size: int) -> Tensor:
    """(size, native) float64: row i averages the native pixels that pixel i of the smaller frame covers."""
    edges = torch.arange(size + 1, dtype=torch.float64) * (native / size)
    pixel = torch.arange(native, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)
    return overlap.clamp(min=0) * (size / native)


def _in_chunks(draw: Draw, xy: Tensor, values: int, shape: tuple[int, int, int]) -> Tensor:
    """All frames at once where memory is fast, a cache-full at a time on a CPU."""
    xy = xy.to(torch.float32)
    out = torch.empty((xy.shape[0], *shape), dtype=torch.uint8, device=xy.device)
    chunk = max(1, _CHUNK_VALUES // values if on_host(xy) else xy.shape[0])
    for i in range(0, xy.shape[0], chunk):
        draw(xy[i : i + chunk], out[i : i + chunk])
    return out
