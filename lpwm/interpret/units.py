"""What each unit answers to: an atlas over two factors, and held-out frames sorted by zone.

Legend: N frames, D units, U of them shown, n bins a side, K zones.
"""

import base64
from collections.abc import Mapping

import numpy as np

from lpwm.core import rng
from lpwm.interpret.results import Floats, Ints, Units, rounded

SIDES = (6, 16)  # bins a side, at least and at most
SHOWN = 96  # units, at most: more are not told apart on a page
FRAMES = 160  # of the raster


def atlas(
    z_ND: Floats, values: Mapping[str, Floats], x: str, y: str, zone_N: Ints | None = None, seed: int = 0
) -> Units:
    """values: factors by name, (N,) each; x and y: those of the plane. zone_N: None where the world has no zones."""
    size_ND, x_N, y_N = np.abs(z_ND), values[x], values[y]
    n = int(np.clip(np.sqrt(len(z_ND) / 8), *SIDES))  # about eight frames a bin
    plane = [np.quantile(v, (0.01, 0.99)) for v in (x_N, y_N)]
    share = ((v - low) / max(high - low, 1e-12) for v, (low, high) in zip((x_N, y_N), plane, strict=True))
    column_N, row_N = (np.clip((s * n).astype(np.int64), 0, n - 1) for s in share)
    cell_N = row_N * n + column_N
    counts = np.bincount(cell_N, minlength=n * n)
    zones = (row_N >= n // 2) * 2 + (column_N >= n // 2) if zone_N is None else zone_N
    by_zone_KD = np.stack([size_ND[zones == k].mean(0) for k in np.unique(zones)])
    best_D, most_D = by_zone_KD.argmax(0), by_zone_KD.max(0)
    order = np.lexsort((-most_D, np.where(most_D > 0, best_D, len(by_zone_KD))))
    order = order[np.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().astype(int)]
    sums = np.zeros((n * n, len(order)))
    np.add.at(sums, cell_N, size_ND[:, order])
    maps_UC = (sums / np.maximum(counts, 1)[:, None]).T
    shown_F = _by_zone(zones, seed)
    largest = float(np.quantile(size_ND, 0.995)) or 1.0
    return Units(
        x=x,
        y=y,
        low=(float(plane[0][0]), float(plane[1][0])),
        high=(float(plane[0][1]), float(plane[1][1])),
        side=n,
        numbers=tuple(order.tolist()),
        prefers=tuple(np.unique(zones)[best_D[order]].tolist()),
        on=rounded((size_ND[:, order] > 0.05 * largest).mean(0), 4),
        maps=_bytes(maps_UC, float(np.quantile(maps_UC, 0.995))),
        empty=tuple(np.flatnonzero(counts == 0).tolist()),
        frames=_bytes(size_ND[shown_F][:, order], largest),
        zones=tuple(zones[shown_F].tolist()),
        zoned=zone_N is not None,
    )


def _by_zone(zones_N: Ints, seed: int) -> Ints:
    """At most FRAMES frames, as many of each zone, sorted by zone."""
    kinds, draw = np.unique(zones_N), np.random.default_rng(rng.seed_of("atlas", seed))
    each = [draw.permutation(np.flatnonzero(zones_N == k))[: FRAMES // len(kinds)] for k in kinds]
    return np.concatenate([np.sort(rows) for rows in each])


def _bytes(values: Floats, largest: float) -> str:
    scaled = np.clip(values / max(largest, 1e-12), 0, 1) * 255
    return base64.b64encode(scaled.round().astype(np.uint8).tobytes()).decode("ascii")
