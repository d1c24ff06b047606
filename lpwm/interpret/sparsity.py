"""How sparse the codes are, against the regularizer's target (the paper's table of active fractions).

active fraction   share of z > 0 over held-out frames and units
target            P(y > 0) of the target
at least          E[z]²/E[z²]: by Cauchy and Schwarz no code with these two moments can have fewer units on.
                  RDMReg with uniform slices fixes little more than the moments, so the same ratio of the target
                  bounds what it can be held to
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.data import EpisodeData
from lpwm.evaluate.table import columns
from lpwm.interpret import results
from lpwm.interpret.compare import number
from lpwm.interpret.config import ProbeConfig
from lpwm.interpret.probes import accuracy, bootstrap
from lpwm.interpret.results import Estimate, Sparsity, Target, WorldInfo, clipped, rounded
from lpwm.interpret.study import made
from lpwm.interpret.supports import Episode, held_out_episodes, need_support
from lpwm.model.predictors import in_order, title_of
from lpwm.stats import t_interval
from lpwm.train import Loaded
from lpwm.train.monitors import effective_dimension

FRAMES = 3000


def sparsity(loaded: Loaded, data: EpisodeData | None = None, frames: int = FRAMES, seed: int = 0) -> Sparsity:
    """The activity of one sparse run on its held-out trajectories."""
    need_support(loaded)
    episodes = held_out_episodes(loaded, loaded.episodes() if data is None else data, frames, seed, least=1)
    predictor, objective, target = loaded.config.model.predictor, loaded.config.objective, None
    if objective.regularizer == "rdmreg":  # the others have no target for the activity
        y = objective.rdmreg.target(rectify=True)
        target = Target(y.p, y.mu, objective.rdmreg.axis_fraction, y.activity, y.mean**2 / y.second_moment)
    return Sparsity(
        **made(loaded),
        world=WorldInfo(loaded.spec.name, dict(loaded.spec.options)),
        rung=predictor.rung,
        history=predictor.history,
        target=target,
        settings=results.SampleSettings(frames, seed),
        **numbers(episodes, seed),
    )


def numbers(episodes: Sequence[Episode], seed: int = 0) -> dict[str, Any]:
    """Active fraction with its interval over trajectories, units one by one, dimension, and the moments' bound."""
    z_ND = np.concatenate([e.z_TD for e in episodes])
    active = np.concatenate([e.active_TD() for e in episodes])
    tally = np.array([[e.z_TD.size, (e.z_TD > 0).sum()] for e in episodes], dtype=np.float64)
    activity = active.mean(0)
    square = float(np.square(z_ND, dtype=np.float64).mean())
    fraction = Estimate(float(active.mean()))
    if len(episodes) > 1:
        fraction = Estimate.of(bootstrap(tally, accuracy, ProbeConfig(seed=seed), ("active fraction",)))
    return {
        "active_fraction": fraction,
        "at_least": float(z_ND.mean(dtype=np.float64) ** 2 / square) if square > 0 else 0.0,
        "activity": rounded(activity, 5),
        "dead_units": int((activity == 0).sum()),
        "always_on_units": int((activity == 1).sum()),
        "units_on": tuple(np.quantile(active.sum(1), [0, 0.25, 0.5, 0.75, 1]).tolist()),
        "effective_dimension": float(effective_dimension(torch.from_numpy(z_ND))),
        "frames": len(z_ND),
        "trajectories": len(episodes),
    }


@dataclass(frozen=True)
class Cell(Estimate):
    """Runs of one rung and width: a t interval over several, one run's own else."""

    at_least: float = 0.0
    dead_units: float = 0.0
    effective_dimension: float = 0.0
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    rung: str
    title: str
    cells: tuple[Cell | None, ...]  # one per width


@dataclass(frozen=True)
class Group:
    """One world and target."""

    title: str
    target: Target | None
    widths: tuple[int, ...]
    rows: tuple[Row, ...]


def arrange(runs: Sequence[Sparsity]) -> tuple[Group, ...]:
    """The paper's table: one row per rung, from the richest, one column per width D. Runs that differ in their seed
    alone share a cell; worlds and targets make groups. Rungs that the paper does not have come last, by their names."""
    if not runs:
        raise UserError("there is nothing to arrange: give at least one run.")
    groups: dict[str, list[Sparsity]] = {}
    seen = set()
    for r in runs:
        if r.run.hash in seen:
            raise UserError(f"the run {r.run.hash} is given twice: name each once.")
        seen.add(r.run.hash)
        groups.setdefault(_group(r), []).append(r)
    return tuple(_arrange(title, group) for title, group in groups.items())


def _arrange(title: str, group: Sequence[Sparsity]) -> Group:
    widths, rows = sorted({r.run.latent for r in group}), []
    for rung in in_order(r.rung for r in group):
        cells = tuple(_cell([r for r in group if (r.rung, r.run.latent) == (rung, D)]) for D in widths)
        rows.append(Row(rung, title_of(rung), cells))
    return Group(title, group[0].target, tuple(widths), tuple(rows))


def _group(r: Sparsity) -> str:
    if r.target is None:
        return f"{r.world.title}, no target"
    axis = f", {100 * r.target.axis_fraction:g} % coordinate slices" if r.target.axis_fraction else ""
    return f"{r.world.title}, p = {r.target.p:g}, μ = {r.target.mu:g}{axis}"


def _cell(group: Sequence[Sparsity]) -> Cell | None:
    if not group:
        return None
    values = [r.active_fraction.estimate for r in group]
    whole = Estimate.of(clipped(t_interval(values), 0.0)) if len(values) > 1 else group[0].active_fraction
    least, dead, dimension = np.mean([[r.at_least, r.dead_units, r.effective_dimension] for r in group], axis=0)
    runs = tuple(r.run.hash for r in group)
    return Cell(**vars(whole), at_least=least, dead_units=dead, effective_dimension=dimension, runs=runs)


BLOCKS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("", number),
    ("at least", lambda c: f"{c.at_least:.3f}"),
    ("dead units", lambda c: f"{c.dead_units:g}"),
    ("eff. dimension", lambda c: f"{c.effective_dimension:.1f}"),
)


def table(groups: Sequence[Group], width: int = 80) -> str:
    """The arrangement as text."""
    made = []
    for group in groups:
        rows: list[list[str]] = []
        for block, text in BLOCKS:
            rows += [[block]] if block else []
            for row in group.rows:
                name = f"  {row.title}" if block else row.title
                rows.append([name, *("–" if c is None else text(c) for c in row.cells)])
        t, title = group.target, f"active fraction, {group.title}"
        if t:
            title += f"\nthe target's is {t.active_fraction:.3f}, its moments allow at least {t.at_least:.3f}"
        made.append(columns(["", *(f"D = {D}" for D in group.widths)], rows, width, title))
    return "\n\n".join(made)
