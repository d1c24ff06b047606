"""What is measured on played episodes. S training seeds, P planner seeds, E episodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpwm.core.errors import UserError, require
from lpwm.evaluate.config import STATES
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.goals import EpisodeSet
from lpwm.evaluate.results import MEASURES, Cell, Compared, Curve, Group, Outcome, Rate, Row
from lpwm.stats import Result, comparison_table, success_interval
from lpwm.worlds.base import World

Records = tuple[tuple[Record, ...], ...]  # [s][p]: what training seed s did with planner seed p


@dataclass(frozen=True, eq=False)
class Played:
    """The episodes of an evaluation: records[i][row name] are those of its cell i."""

    world: Any
    sets: Mapping[str, EpisodeSet]
    records: tuple[Mapping[str, Records], ...]


def measured_row(name: str, control: bool, played: Records, budgets: Sequence[int], **more: Any) -> Row:
    """more: the fields of the row that are not measured."""

    def each(of: Any) -> tuple[tuple[tuple[Any, ...], ...], ...]:
        return tuple(tuple(tuple(of(r).tolist()) for r in line) for line in played)

    def rate(success: np.ndarray) -> Rate:
        return Rate.of(success_interval(Result.of(name, success, episodes=played[0][0].ids, control=control)))

    outcomes = {}
    for budget in budgets:
        success = {m: np.array([[getattr(r, m)(budget) for r in line] for line in played]) for m in MEASURES}
        outcomes[str(budget)] = Outcome(
            **{m: rate(x) for m, x in success.items()},
            success={m: each(lambda r, m=m, b=budget: getattr(r, m)(b).astype(int)) for m in MEASURES},
            rate_per_seed={m: tuple(x.mean((1, 2)).tolist()) for m, x in success.items()},
            steps_to_success=each(lambda r, b=budget: r.steps_to_success(b)),
            final_distance=each(lambda r, b=budget: r.final_distance(b)),
        )
    latent = {trace: each(lambda r, t=trace: r.traces[t].mean(0)) for trace in played[0][0].traces}
    wall_s = sum(r.wall_s for line in played for r in line)
    return Row(name=name, control=control, budgets=outcomes, mean_latent_distance=latent, wall_s=wall_s, **more)


def measured_cell(
    kind: str, horizon: int, receding: int, rows: tuple[Row, ...], ids: Sequence[str], groups: Mapping[str, np.ndarray]
) -> Cell:
    """ids: of the episodes. groups: those to report apart, (E,) bool each."""
    budgets = rows[0].budgets
    apart = {name: _group(rows, ids, only) for name, only in groups.items()}
    compared = {m: {b: _compared(rows, m, int(b), ids) for b in budgets} for m in MEASURES}
    return Cell(kind, horizon, receding, rows, apart, compared)


def _group(rows: Sequence[Row], ids: Sequence[str], only: np.ndarray) -> Group:
    kept = [e for e, k in zip(ids, only, strict=True) if k]

    def rate(row: Row, measure: str, budget: str) -> Rate:
        return Rate.of(success_interval(row.result(measure, int(budget), ids).only(episodes=kept)))

    rates = {row.name: {b: {m: rate(row, m, b) for m in MEASURES} for b in row.budgets} for row in rows if kept}
    return Group(len(kept), rates)


def _compared(rows: Sequence[Row], measure: str, budget: int, ids: Sequence[str]) -> Compared:
    """Methods and controls through `comparison_table`; where that cannot be, why."""
    try:
        table = comparison_table([row.result(measure, budget, ids) for row in rows])
    except UserError as error:
        return Compared(refused=str(error))
    return Compared(table.rates, table.rows, tuple(c.text() for c in table.comparisons))


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
    """`see` maps states (N, S) to codes (N, D). Pairs of random states, at most PER_BIN in each bin of distance. The
    inner borders of the bins are EDGES × the success radius, or, in a world whose success is no distance or whose
    states are never that close (PushT's) or never that far, the 1, 5, 20 and 50 % quantiles of the distances."""
    require("states", states, 8)
    state_NS = world.sample_goal(states, (seed, "curve")).to(device)
    z_ND = see(state_NS).float()
    i, j = torch.triu_indices(states, states, 1, device=state_NS.device)
    true = world.distance(state_NS[i], state_NS[j]).double()
    # In rows, because all pairs of wide codes would not fit.
    latent = torch.cat([(z_ND[n : n + 1] - z_ND[n + 1 :]).square().mean(1).sqrt() for n in range(states - 1)])
    inner = [e * world.spec.success_within for e in EDGES]
    if inner[0] <= 0 or not bool((true < inner[0]).any() and (true >= inner[-1]).any()):
        some = true[:: max(1, len(true) // 100_000)]
        inner = torch.quantile(some, true.new_tensor([0.01, 0.05, 0.2, 0.5])).tolist()
    return _binned(true.cpu().numpy(), latent.double().cpu().numpy(), inner)


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


def _ranks(x: np.ndarray) -> np.ndarray:  # from 1 on; equal values share their mean
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[place]


def _weighted_spearman(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    a, b = map(_ranks, (x, y))
    w = w / w.sum()
    a, b = a - (w * a).sum(), b - (w * b).sum()
    scale = np.sqrt((w * a * a).sum() * (w * b * b).sum())
    return float((w * a * b).sum() / scale) if scale > 0 else float("nan")
