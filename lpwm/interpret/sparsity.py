"""How sparse the codes are, against the regularizer's target (the paper's table of active fractions).

active fraction   share of z > 0 over held-out frames and units
target            P(y > 0) of the target
at least          E[z]²/E[z²]: by Cauchy and Schwarz no code with these two moments can have fewer units on.
                  RDMReg with uniform slices fixes little more than the moments, so the same ratio of the target
                  bounds what it can be held to
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.data import EpisodeData
from lpwm.interpret.codes import Episode, held_out_episodes, need_support
from lpwm.interpret.compare import columns, number
from lpwm.interpret.config import ProbeConfig
from lpwm.interpret.probes import accuracy, bootstrap
from lpwm.interpret.results import (
    Activity,
    Brief,
    Estimate,
    SampleSettings,
    Sparsity,
    Target,
    WorldInfo,
    clipped,
    rounded,
    values_of,
)
from lpwm.interpret.study import made
from lpwm.model.predictors import in_order, title_of
from lpwm.stats import t_interval
from lpwm.train import Loaded
from lpwm.train.monitors import effective_dimension

FRAMES = 3000

# The paper's active fractions on PushT (validation, tuned cells, μ = 0).
PAPER_WIDTHS = (384, 768, 1536, 2048, 4096)
PAPER: dict[str, tuple[float, ...]] = {
    "deep-adaln": (0.34, 0.44, 0.49, 0.42, 0.48),
    "shallow-adaln": (0.33, 0.37, 0.39, 0.46, 0.49),
    "mlp-ltv": (0.37, 0.54, 0.49, 0.51, 0.47),
    "mlp-lti": (0.28, 0.53, 0.54, 0.46, 0.43),
    "lti": (0.41, 0.41, 0.41, 0.43, 0.44),
    "lti1": (0.63, 0.63, 0.60, 0.61, 0.56),
}


def sparsity(loaded: Loaded, data: EpisodeData | None = None, frames: int = FRAMES, seed: int = 0) -> Sparsity:
    """The activity of one sparse run on its held-out trajectories."""
    need_support(loaded)
    episodes = held_out_episodes(loaded, loaded.episodes() if data is None else data, frames, seed, least=1)
    predictor = loaded.config.model.predictor
    return Sparsity(
        **made(loaded),
        world=WorldInfo(loaded.spec.name, dict(loaded.spec.options)),
        rung=predictor.rung,
        history=predictor.history,
        target=target_of(loaded),
        settings=SampleSettings(frames, seed),
        **values_of(numbers(episodes, seed)),
    )


def target_of(loaded: Loaded) -> Target | None:
    """None where the regularizer has no target for the activity."""
    objective = loaded.config.objective
    if objective.regularizer != "rdmreg":
        return None
    target = objective.rdmreg.target(rectify=True)
    least = target.mean**2 / target.second_moment
    return Target(target.p, target.mu, objective.rdmreg.axis_fraction, target.activity, least)


def numbers(episodes: Sequence[Episode], seed: int = 0) -> Activity:
    """Active fraction with its interval over trajectories, units one by one, dimension, and the moments' bound."""
    z_ND = np.concatenate([e.z_TD for e in episodes])
    active = np.concatenate([e.active_TD() for e in episodes])
    tally = np.array([[e.z_TD.size, (e.z_TD > 0).sum()] for e in episodes], dtype=np.float64)
    activity = active.mean(0)
    square = float(np.square(z_ND, dtype=np.float64).mean())
    fraction = Estimate(float(active.mean()))
    if len(episodes) > 1:
        fraction = Estimate.of(bootstrap(tally, accuracy, ProbeConfig(seed=seed), ("active fraction",)))
    return Activity(
        active_fraction=fraction,
        at_least=float(z_ND.mean(dtype=np.float64) ** 2 / square) if square > 0 else 0.0,
        activity=rounded(activity, 5),
        dead_units=int((activity == 0).sum()),
        always_on_units=int((activity == 1).sum()),
        units_on=tuple(np.quantile(active.sum(1), [0, 0.25, 0.5, 0.75, 1]).tolist()),
        effective_dimension=float(effective_dimension(torch.from_numpy(z_ND))),
        frames=len(z_ND),
        trajectories=len(episodes),
    )


# The paper's arrangement --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(Estimate):
    """Runs of one rung and width: a t interval over several, one run's own else."""

    at_least: float = 0.0
    dead_units: float = 0.0
    effective_dimension: float = 0.0
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row(Brief):
    rung: str
    title: str
    cells: tuple[Cell | None, ...]  # one per width
    paper: tuple[float | None, ...] | None  # the paper's, where it has this world and target


@dataclass(frozen=True)
class Group:
    """One world and target."""

    title: str
    target: Target | None
    widths: tuple[int, ...]
    rows: tuple[Row, ...]


def arrange(results: Sequence[Sparsity]) -> tuple[Group, ...]:
    """The paper's table: a row a rung, from the richest, a column a width D. Runs that differ in their seed alone
    share a cell; worlds and targets make groups. Rungs that the paper does not have come last, by their names."""
    if not results:
        raise UserError("there is nothing to arrange: give at least one run.")
    hashes = [r.run.hash for r in results]
    twice = {h for h in hashes if hashes.count(h) > 1}
    if twice:
        raise UserError(f"the run {min(twice)} is given twice: name each once.")
    groups: dict[str, list[Sparsity]] = {}
    for r in results:
        groups.setdefault(_group(r), []).append(r)
    return tuple(_arrange(title, group) for title, group in groups.items())


def _arrange(title: str, group: Sequence[Sparsity]) -> Group:
    widths, target, rows = sorted({r.run.latent for r in group}), group[0].target, []
    of_paper = group[0].world.name == "pusht" and target is not None and (target.p, target.mu) == (1.0, 0.0)
    for rung in in_order(r.rung for r in group):
        cells = tuple(_cell([r for r in group if (r.rung, r.run.latent) == (rung, D)]) for D in widths)
        known = dict(zip(PAPER_WIDTHS, PAPER.get(rung, ()), strict=False)) if of_paper else None
        paper = tuple(known.get(D) for D in widths) if known else None
        rows.append(Row(rung, title_of(rung), cells, paper))
    return Group(title, target, tuple(widths), tuple(rows))


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
    return Cell(**values_of(whole), at_least=least, dead_units=dead, effective_dimension=dimension, runs=runs)


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
                if row.paper is not None and not block:
                    rows.append(["  the paper's", *("–" if v is None else f"{v:.2f}" for v in row.paper)])
        t, title = group.target, f"active fraction, {group.title}"
        if t:
            title += f"\nthe target's is {t.active_fraction:.3f}, its moments allow at least {t.at_least:.3f}"
        made.append(columns(["", *(f"D = {D}" for D in group.widths)], rows, width, title))
    return "\n\n".join(made)
