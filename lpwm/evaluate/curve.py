"""How far the planner's cost stays informative: latent distance against state distance.

A planner that minimizes ‖ẑ − z_goal‖ is guided only where that distance still grows with the true one. Where it has
saturated, all far goals look equally far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.evaluate.config import STATES
from lpwm.evaluate.results import Curve
from lpwm.worlds.base import World

# In units of the world's own success radius: 10, 25, 50 and 100 px in Piecewise, the same parts of other rooms.
EDGES = (0.625, 1.5625, 3.125, 6.25)
PER_BIN = 2000  # pairs


def distance_curve(
    see: Callable[[Tensor], Tensor],
    world: World,
    *,
    states: int = STATES,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Curve:
    """`see` maps states (N, S) to codes (N, D). Pairs of random states, at most PER_BIN in each bin of distance.

    The inner borders of the bins are EDGES × the success radius, or, in a world whose success is no distance or whose
    states (PushT's, in four dimensions) are never that close, the 1, 5, 20 and 50 % quantiles of the distances.
    """
    if states < 8:
        raise UserError(f"{states} states make no curve: give at least 8.")
    state_NS = world.sample_goal(states, (seed, "curve")).to(device)
    z_ND = see(state_NS).float()
    i, j = torch.triu_indices(states, states, 1, device=state_NS.device)
    true = world.distance(state_NS[i], state_NS[j]).double()
    # In rows, because all pairs of wide codes would not fit.
    latent = torch.cat([(z_ND[n : n + 1] - z_ND[n + 1 :]).square().mean(1).sqrt() for n in range(states - 1)])
    return _binned(true.cpu().numpy(), latent.double().cpu().numpy(), _inner(world, true))


def _inner(world: World, true: Tensor) -> list[float]:
    inner = [e * world.spec.success_within for e in EDGES]
    if inner[0] > 0 and bool((true < inner[0]).any()):
        return inner
    return torch.quantile(true[:: max(1, len(true) // 100_000)], true.new_tensor([0.01, 0.05, 0.2, 0.5])).tolist()


def _binned(true: np.ndarray, latent: np.ndarray, inner: list[float]) -> Curve:
    if not np.isfinite(latent).all():
        raise UserError("the encoder gives non-finite codes: check the checkpoint.")
    which = np.digitize(true, inner)
    chosen = [np.flatnonzero(which == b) for b in range(len(inner) + 1)]
    # Evenly spread over the list of pairs, so that no state dominates a bin.
    chosen = [c[np.linspace(0, len(c) - 1, PER_BIN).astype(int)] if len(c) > PER_BIN else c for c in chosen]
    if not len(chosen[-1]):
        raise UserError(f"no two of these states are {inner[-1]:g} apart: give more states.")
    far = float(latent[chosen[-1]].mean())
    if far <= 0:
        far = float("nan")  # a collapsed code: every distance is 0 and the curve says so
    used = np.concatenate(chosen)
    weight = np.concatenate([np.full(len(c), 1 / max(len(c), 1)) for c in chosen])
    return Curve(
        edges=(0.0, *inner, float(true.max())),
        relative=tuple(float(latent[c].mean()) / far if len(c) else float("nan") for c in chosen),
        sd=tuple(float(latent[c].std()) / far if len(c) else float("nan") for c in chosen),
        pairs=tuple(len(c) for c in chosen),
        far=far,
        spearman=_weighted_spearman(true[used], latent[used], weight),
    )


def _weighted_spearman(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    a, b = (stats.rankdata(v) for v in (x, y))
    w = w / w.sum()
    a, b = a - (w * a).sum(), b - (w * b).sum()
    scale = np.sqrt((w * a * a).sum() * (w * b * b).sum())
    return float((w * a * b).sum() / scale) if scale > 0 else float("nan")
