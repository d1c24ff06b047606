"""How sparse the codes came out, against what the target asked for (the paper's table of active fractions).

    active fraction   share of z > 0 over held-out frames and units
    asked             P(y > 0) of the target
    at least          E[z]²/E[z²]: by Cauchy and Schwarz no code with these two moments can have fewer units on.
                      RDMReg with uniform slices fixes little more than the moments, so the same ratio of the target
                      bounds what it can be held to

A reading is a JSON-ready dictionary (kind "lpwm sparsity"); `arrange` puts several into rung × D.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.core.provenance import device_name, origin
from lpwm.core.version import __version__
from lpwm.data import EpisodeData
from lpwm.interpret.codes import Episode, held_out_episodes, need_support
from lpwm.interpret.probes import ProbeConfig, accuracy, bootstrap
from lpwm.interpret.study import describe
from lpwm.interpret.supports import Floats
from lpwm.model.predictors import in_order, title_of
from lpwm.stats import t_interval
from lpwm.train import Loaded
from lpwm.train.monitors import effective_dimension

KIND = "lpwm sparsity"
FRAMES = 3000

# The paper's active fractions on PushT (validation, tuned cells, μ = 0), to stand beside ours.
PAPER_WIDTHS = (384, 768, 1536, 2048, 4096)
PAPER: dict[str, tuple[float, ...]] = {
    "deep-adaln": (0.34, 0.44, 0.49, 0.42, 0.48),
    "shallow-adaln": (0.33, 0.37, 0.39, 0.46, 0.49),
    "mlp-ltv": (0.37, 0.54, 0.49, 0.51, 0.47),
    "mlp-lti": (0.28, 0.53, 0.54, 0.46, 0.43),
    "lti": (0.41, 0.41, 0.41, 0.43, 0.44),
    "lti1": (0.63, 0.63, 0.60, 0.61, 0.56),
}


def sparsity(loaded: Loaded, data: EpisodeData | None = None, frames: int = FRAMES, seed: int = 0) -> dict[str, Any]:
    """The reading of one sparse run on its held-out trajectories."""
    need_support(loaded)
    episodes = held_out_episodes(loaded, loaded.episodes() if data is None else data, frames, seed, least=1)
    model = loaded.config.model
    return {
        "kind": KIND,
        "lpwm": __version__,
        **origin(),
        "device": device_name(next(loaded.model.parameters()).device),
        "run": describe(loaded),
        "world": {"name": loaded.spec.name, "options": dict(loaded.spec.options)},
        "rung": model.predictor.rung,
        "history": model.predictor.history,
        "target": asked(loaded),
        "settings": {"frames": frames, "seed": seed},
        **numbers(episodes, seed),
    }


def asked(loaded: Loaded) -> dict[str, Any] | None:
    """What the target asks for; None where the regularizer has no target for the activity."""
    objective = loaded.config.objective
    if objective.regularizer != "rdmreg":
        return None
    target = objective.rdmreg.target(rectify=True)
    return {
        "p": target.p,
        "mu": target.mu,
        "axis_fraction": objective.rdmreg.axis_fraction,
        "active_fraction": target.activity,
        "at_least": target.mean**2 / target.second_moment,
    }


def numbers(episodes: Sequence[Episode], seed: int = 0) -> dict[str, Any]:
    """Active fraction with its interval over trajectories, units one by one, dimension, and the moments' bound."""
    z_ND = np.concatenate([e.z_TD for e in episodes])
    active = np.concatenate([e.active_TD() for e in episodes])
    tally = np.array([[e.z_TD.size, (e.z_TD > 0).sum()] for e in episodes], dtype=np.float64)
    activity = active.mean(0)
    square = float(np.square(z_ND, dtype=np.float64).mean())
    fraction: dict[str, Any] = {"estimate": float(active.mean())}
    if len(episodes) > 1:
        fraction = dataclasses.asdict(bootstrap(tally, accuracy, ProbeConfig(seed=seed), ("active fraction",)))
    return {
        "active_fraction": fraction,
        "at_least": float(z_ND.mean(dtype=np.float64) ** 2 / square) if square > 0 else 0.0,
        "activity": np.round(activity, 5).tolist(),
        "dead_units": int((activity == 0).sum()),
        "always_on_units": int((activity == 1).sum()),
        "units_on": _quartiles(active.sum(1)),
        "effective_dimension": float(effective_dimension(torch.from_numpy(z_ND))),
        "frames": len(z_ND),
        "trajectories": len(episodes),
    }


def _quartiles(count_N: Any) -> list[float]:
    """Units on in a frame: least, quartiles, most."""
    found: Floats = np.quantile(count_N, [0, 0.25, 0.5, 0.75, 1])
    return found.tolist()


def check_readings(readings: Sequence[dict[str, Any]]) -> None:
    if not readings:
        raise UserError("there is nothing to arrange: give at least one run.")
    seen = [r["run"]["hash"] for r in readings]
    twice = {h for h in seen if seen.count(h) > 1}
    if twice:
        raise UserError(f"the run {min(twice)} is given twice: name each once.")


def arrange(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The paper's table: a row a rung, from the richest, a column a width D; runs that differ in their seed alone
    share a cell, with a t interval over them. Worlds, targets and other settings are told apart in groups."""
    check_readings(readings)
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in readings:
        groups.setdefault(_group(r), []).append(r)
    out = []
    for title, group in groups.items():
        widths = sorted({r["run"]["latent"] for r in group})
        rows = []
        for rung in in_order(r["rung"] for r in group):
            found = [[r for r in group if (r["rung"], r["run"]["latent"]) == (rung, D)] for D in widths]
            row = {"rung": rung, "title": title_of(rung), "cells": [_cell(c) for c in found]}
            rows.append(row | ({"paper": _paper(rung, widths)} if _is_paper(group[0]) else {}))
        out.append({"title": title, "target": group[0]["target"], "widths": widths, "rows": rows})
    return {"kind": "lpwm sparsity table", "groups": out}


def _group(r: dict[str, Any]) -> str:
    t = r["target"]
    options = ", ".join(f"{k}={v}" for k, v in sorted(r["world"]["options"].items()))
    world = f"{r['world']['name']} ({options})" if options else r["world"]["name"]
    if t is None:
        return f"{world}, no target"
    axis = f", {100 * t['axis_fraction']:g} % coordinate slices" if t["axis_fraction"] else ""
    return f"{world}, p = {t['p']:g}, μ = {t['mu']:g}{axis}"


def _is_paper(r: dict[str, Any]) -> bool:
    """Whether the paper's table is about this world and target."""
    t = r["target"]
    return bool(t) and r["world"]["name"] == "pusht" and (t["p"], t["mu"]) == (1.0, 0.0)


def _paper(rung: str, widths: Sequence[int]) -> list[float | None]:
    known = dict(zip(PAPER_WIDTHS, PAPER[rung], strict=True))
    return [known.get(D) for D in widths]


def _cell(group: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not group:
        return None
    values = [r["active_fraction"]["estimate"] for r in group]
    interval = dataclasses.asdict(t_interval(values)) if len(values) > 1 else group[0]["active_fraction"]
    mean = {
        what: float(np.mean([r[what] for r in group])) for what in ("at_least", "dead_units", "effective_dimension")
    }
    return {**interval, **mean, "runs": [r["run"]["hash"] for r in group]}


def table(arranged: dict[str, Any]) -> str:
    """The arrangement as text."""
    blocks = []
    for group in arranged["groups"]:
        t = group["target"]
        want = (
            f"; the target asks for {t['active_fraction']:.3f}, its moments for at least {t['at_least']:.3f}"
            if t
            else ""
        )
        lines = [f"active fraction, {group['title']}{want}"]
        cells = [["", *(f"D = {D}" for D in group["widths"])]]
        for what in ("active", "at least", "dead units", "eff. dimension"):
            if what != "active":
                cells.append([what, *("" for _ in group["widths"])])
            for row in group["rows"]:
                indent = "" if what == "active" else "  "
                cells.append([indent + row["title"], *(_text(c, what) for c in row["cells"])])
                if what == "active" and "paper" in row:
                    cells.append(["  the paper's", *("–" if v is None else f"{v:.2f}" for v in row["paper"])])
        wide = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        lines += ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in cells]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _text(cell: dict[str, Any] | None, what: str) -> str:
    if cell is None:
        return "–"
    if what == "active":
        bounds = f" [{cell['low']:.3f}, {cell['high']:.3f}]" if "low" in cell else ""
        return f"{cell['estimate']:.3f}{bounds}"
    if what == "at least":
        return f"{cell['at_least']:.3f}"
    return f"{cell['dead_units']:g}" if what == "dead units" else f"{cell['effective_dimension']:.1f}"
