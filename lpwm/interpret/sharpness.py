"""How sharply supports change at the borders of the zones, as one number with its controls.

Legend: n cells a side, M = n² cells, K zones, D units, P copies of the partition with moved borders.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.interpret.results import Bools, Control, Floats, Ints, Sharpness, ZoneSharpness
from lpwm.interpret.supports import weighted_jaccard
from lpwm.stats import Interval

PAIRS = 200_000_000  # of cells, in all resamples of one kind together: seconds


@threadpool_limits.wrap(limits=1)
def sharpness(
    active_MD: Bools, zones_nn: Ints, *, resamples: int = 200, level: float = 0.95, seed: int = 0
) -> Sharpness:
    """For a reference cell r of zone Z:

        within(r) = mean of J(r, c) over the other cells c of Z      across(r) = mean of J(r, c) over all c outside Z

    and the sharpness is the mean over all M reference cells of within(r) − across(r), in [−1, 1]; 1: one support a
    zone, nothing shared. It is positive for *any* code in which near positions share units. How much of it that is:

    translated   the same with all borders moved by whole cells, up to half a zone's side each way (`translations`):
                 for a code that knows no zones close to the true one, from below, so it has no p
    matched      Σ_d w_d (mean J of same-zone pairs − mean J of other-zone pairs, both at displacement d) / Σ_d w_d,
                 w_d = n_same·n_other/(n_same + n_other): 0 for every code whose overlap is a function of the
                 displacement alone, 1 for one support a zone. `matched_translated` is its control.

    The interval resamples the D units with replacement. Fine grids are resampled less often, as `copies` says.
    """
    zones_M = zones_nn.reshape(-1)
    M = len(zones_M)
    if active_MD.shape[0] != M:
        raise UserError(f"{active_MD.shape[0]} supports for a grid of {M} cells: give one for each cell.")
    names, counts = np.unique(zones_M, return_counts=True)
    if len(names) < 2 or counts.min() < 2:
        raise UserError("sharpness compares zones of at least two cells each: use a finer grid.")
    J = weighted_jaccard(active_MD, active_MD, np.ones(active_MD.shape[1]))
    within_M, across_M = _within_across(J, zones_M)
    value = float((within_M - across_M).mean())
    resamples = max(20, min(resamples, PAIRS // M**2))
    draw = np.random.default_rng(rng.seed_of("sharpness", seed))
    shuffled = np.stack([draw.permutation(zones_M) for _ in range(resamples)])
    shifted = translations(zones_nn, limit=resamples)
    matcher = _Matched(J, zones_nn.shape)
    true_matched = matcher(zones_M)
    D = active_MD.shape[1]
    weights = draw.multinomial(D, np.full(D, 1 / D), size=resamples)
    values = [_value(weighted_jaccard(active_MD, active_MD, w), zones_M) for w in weights]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Sharpness(
        sharpness=Interval(value, low, high, level, "units of one checkpoint"),
        within=float(within_M.mean()),
        across=float(across_M.mean()),
        zones=tuple(_zone(int(k), zones_M == k, within_M, across_M) for k in names),
        shuffled=_control([_value(J, labels) for labels in shuffled], level, value),
        translated=_control([_value(J, labels) for labels in shifted], level),
        matched=true_matched,
        matched_translated=_control([matcher(labels) for labels in shifted], level, true_matched),
    )


def _within_across(J_MM: NDArray[Any], zones_M: Ints) -> tuple[Floats, Floats]:
    """Both means for every reference cell, (M,) each. The cell itself (J = 1) is not of its zone here."""
    _, label, counts = np.unique(zones_M, return_inverse=True, return_counts=True)
    sums_MK = J_MM @ np.eye(len(counts), dtype=J_MM.dtype)[label]
    size_M = counts[label]
    own = np.take_along_axis(sums_MK, label[:, None], 1)[:, 0]
    return (own - 1) / (size_M - 1), (sums_MK.sum(1) - own) / (len(label) - size_M)


def _value(J_MM: NDArray[Any], zones_M: Ints) -> float:
    within, across = _within_across(J_MM, zones_M)
    return float((within - across).mean())


def _zone(zone: int, cells_M: Bools, within_M: Floats, across_M: Floats) -> ZoneSharpness:
    within, across = float(within_M[cells_M].mean()), float(across_M[cells_M].mean())
    return ZoneSharpness(zone, int(cells_M.sum()), within, across, within - across)


def translations(zones_nn: Ints, limit: int = 200) -> Ints:
    """The partition with its borders moved by (i, j) cells, |i|, |j| ≤ half a zone's side, (0, 0) left out: (P, M).
    Zones at the wall grow or shrink by as much; nothing wraps around. At most `limit` copies, evenly chosen."""
    n = len(zones_nn)
    half = int(n / len(np.unique(zones_nn)) ** 0.5 / 2)
    steps = range(-half, half + 1)
    shifts = [(i, j) for i in steps for j in steps if (i, j) != (0, 0)]
    if len(shifts) > limit:
        shifts = [shifts[k] for k in np.linspace(0, len(shifts) - 1, limit).round().astype(int)]
    at = np.arange(n)
    moved = [zones_nn[np.ix_(np.clip(at - i, 0, n - 1), np.clip(at - j, 0, n - 1))].reshape(-1) for i, j in shifts]
    return np.stack([labels for labels in moved if np.unique(labels, return_counts=True)[1].min() > 1])


class _Matched:
    """The matched contrast of one Jaccard matrix, for any labels: pairs are grouped by displacement once."""

    def __init__(self, J_MM: NDArray[Any], shape: tuple[int, ...]) -> None:
        rows, cols = (np.arange(shape[0] * shape[1]) // shape[1], np.arange(shape[0] * shape[1]) % shape[1])
        self.a, self.b = np.triu_indices(len(rows), k=1)  # a before b, so the row displacement is ≥ 0
        self.key = (rows[self.b] - rows[self.a]) * (2 * shape[1]) + (cols[self.b] - cols[self.a]) + shape[1]
        self.J = J_MM[self.a, self.b]
        self.n = np.bincount(self.key)
        self.total = np.bincount(self.key, self.J)

    def __call__(self, zones_M: Ints) -> float:
        same = zones_M[self.a] == zones_M[self.b]
        key = self.key[same]
        n_same = np.bincount(key, minlength=len(self.n))
        total_same = np.bincount(key, self.J[same], minlength=len(self.n))
        n_other = self.n - n_same
        use = (n_same > 0) & (n_other > 0)
        n_same, n_other = n_same[use], n_other[use]
        gap = total_same[use] / n_same - (self.total[use] - total_same[use]) / n_other
        weight = n_same * n_other / (n_same + n_other)
        return float((weight * gap).sum() / weight.sum()) if use.any() else 0.0


def _control(values: list[float], level: float, true: float | None = None) -> Control:
    x = np.array(values)
    low, high = np.quantile(x, [(1 - level) / 2, (1 + level) / 2]).tolist()
    # Rounding must not make an equal copy look smaller.
    p = None if true is None else (1 + int((x >= true - 1e-9).sum())) / (1 + len(x))
    return Control(float(x.mean()), low, high, len(x), p)
