"""Drawing a Gaussian dot on a fixed background, for Piecewise and TwoRoom.

The native frame blends a color c over the background b with alpha α,

    pixel = ⌊b·(1 − α) + c·α⌋,   α = exp(−d²/2r²) / max over the pixel grid,   d² = dx² + dy²,

all in float32 and in this order: on a white ground the floor turns the last bit of α into a whole gray level,
so the exponential of the sum may not be replaced by a product of exponentials. What may be left out is the
rest of the frame: where α ≤ 2⁻²⁵ the background comes through untouched, and that is everywhere beyond
√(50 r² ln 2) of the dot. `ExactDots` therefore works in a window.

Other sizes are drawn directly rather than by shrinking native frames (twelve times the pixels at 64²):
pixel i of s covers 224/s native pixels, and averaging a Gaussian over that box is, to second order, a
Gaussian of variance r² + ((224/s)² − 1)/12. That one is separable. The background is the exact area average,
and the result is rounded to nearest. On open ground that is within 3 levels of the area-resized native frame,
and within 12 where the flank of the dot falls on a pixel that is part wall; 0.1 on average.

N frames, C = 3 colors, H = W = side, K = side of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from numpy.lib.stride_tricks import sliding_window_view
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
        if self.ground.device.type == "cpu":  # every window of the ground as a view, (row, column, plane, K, K)
            views = sliding_window_view(self.ground.numpy(), (self.window, self.window), axis=(1, 2))
            self.windows = views.transpose(1, 2, 0, 3, 4)

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
        (self._paste_host if on_host(xy_N2) else self._paste)(out, alpha, corner, span)

    def _blend(self, ground_NPKK: Tensor, alpha_NKK: Tensor) -> Tensor:
        """⌊b·(1 − α) + c·α⌋ for each plane; a color of 0 adds nothing."""
        value = ground_NPKK * (1.0 - alpha_NKK).unsqueeze(1)
        for plane in range(value.shape[1]):
            if self.color[plane]:
                value[:, plane] += alpha_NKK * float(self.color[plane])
        return value.to(torch.uint8)

    def _paste(self, out: Tensor, alpha: Tensor, corner: Tensor, span: Tensor) -> None:
        """Blend into each frame's window with a gather and a scatter: a graph of fixed shapes, for devices."""
        where = (span[:, 1, :, None] * self.side + span[:, 0, None, :]).flatten(1)  # (N, K·K)
        value = self._blend(self.ground.flatten(1)[:, where].transpose(0, 1), alpha.flatten(1))
        for color, plane in enumerate(self.planes):
            out[:, color].view(len(out), -1).scatter_(1, where, value[:, plane])

    def _paste_host(self, out: Tensor, alpha: Tensor, corner: Tensor, span: Tensor) -> None:
        """The same on a CPU, where copying rows between strided windows is several times faster."""
        x, y = corner.T.numpy()
        value = self._blend(torch.from_numpy(self.windows[y, x]), alpha).numpy()
        frame, k = out.numpy(), self.window
        for i, (left, top) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
            area = frame[i, :, top : top + k, left : left + k]
            area[0], area[1:] = value[i, 0], value[i, 1:]

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
