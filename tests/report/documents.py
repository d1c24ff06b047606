"""Runs, evaluations, studies and episodes made up by hand, with known answers."""

import math
from dataclasses import replace

import numpy as np

from lpwm.core.config import to_dict
from lpwm.core.json import from_json, to_json
from lpwm.evaluate.results import Evaluation
from lpwm.interpret import Packed, Study
from lpwm.recipes import recipe
from lpwm.report.data import Gathered, Log, Replay, RunFile

N, UNITS, STEPS, EPISODES = 8, 20, 30, 4
METHODS = ("lpwm", "lewm")


def run(method="lpwm", seed=0, name=None, code=None, log=True, error=(0.1, 0.2, 0.4), **model):
    """A `RunFile`."""
    config = to_dict(recipe(f"tiny/{method}"))
    config["train"]["seed"] = seed
    config["model"] |= model
    steady = {"copy_error": 0.3, "active_fraction": 0.4, "effective_dimension": 5.0, "support_instability": 0.1}
    train = [{"kind": "train", "step": s, "loss": 1 / s, "relative_error": 0.5 / s, **steady} for s in range(1, 41)]
    val = [{"kind": "val", "step": 40, "error_depth": list(error), "copy_error_depth": [0.3, 0.6, 0.9]}]
    record = {
        "name": name or f"tiny/{method}",
        "hash": code or {"lpwm": "aaaaaaaaaaaa", "lewm": "bbbbbbbbbbbb"}[method][:11] + str(seed),
        "data": "d" * 32,
        "version": "0.1.0",
        "config": config,
    }
    return replace(from_json(RunFile, record), log=Log.from_json([*train, *val] if log else []))


def interval(rate):
    return {"rate": rate, "low": max(0.0, rate - 0.1), "high": min(1.0, rate + 0.1), "level": 0.95, "unit": "episodes"}


def row(name, rate, control=False):
    one = {
        **{m: interval(r) for m, r in (("terminal", rate), ("latched", min(1.0, rate + 0.05)))},
        "steps_to_success": [[[12, -1, 20, -1]]],
        "success": {},
        "rate_per_seed": {},
        "final_distance": [],
    }
    rest = {"planner": {}, "mean_latent_distance": {}, "wall_s": 1.0}
    return {"name": name, "control": control, "seeds": [0], "planner_seeds": [0], "budgets": {"50": one}, **rest}


def cell(goals, horizon, receding, shift=0.0):
    rows = [
        row("tiny-lewm", 0.3 + shift),
        row("tiny-lpwm", 0.6 + shift),
        row("do nothing", 0.0, True),
        row("random actions", 0.05, True),
        row("oracle", 0.9, True),
    ]
    text = "tiny-lewm − tiny-lpwm: -30.0 % [-40.0, -20.0], p = 0.010"
    gap = dict.fromkeys(("difference", "low", "high", "level", "p", "p_holm", "smallest_detectable", "power"), 0.1)
    gap |= {"a": "tiny-lewm", "b": "tiny-lpwm", "seeds": 1, "episodes": EPISODES, "method": "", "verdict": ""}
    compared = {"rates": [], "differences": [gap], "text": [text]}
    return {
        "goals": goals,
        "horizon": horizon,
        "receding": receding,
        "rows": rows,
        "groups": {},
        "comparisons": {m: {"50": compared} for m in ("latched", "terminal")},
    }


def evaluation(horizons=(5,), goals=("dataset", "random"), runs=None):
    """An `Evaluation`, from JSON without its settings' defaults, as an older version may have written it."""
    runs = runs or [run(m) for m in METHODS]
    curve = {"edges": [0, 10, 25, 50, 180], "relative": [0.2, 0.5, 0.8, 1.0], "sd": [0.05] * 4, "spearman": 0.9}
    curve |= {"pairs": [9] * 4, "far": 1.0}
    settings = {"warm": True, "episodes": EPISODES, "solver": "cem", "test": "step"}
    about = {"seed": 0, "path": "", "frameskip": 5, "images": [28], "step": 40, "vote": None, "weights": "w"}
    about |= {"normalization": {"mean": [0.0], "std": [1.0]}}
    record = {
        "commit": None,
        "source": None,
        "threads": 1,
        "predicted_s": None,
        "wall_s": 1.0,
        "kind": "lpwm evaluation",
        "versions": {"lpwm": "0.1.0", "torch": "2.13", "numpy": "2", "python": "3.11"},
        "device": "cpu",
        "holdout": 0.1,
        "world": {"name": "piecewise", "options": {"g": 2}},
        "settings": settings | {"horizons": list(horizons), "seed": 0, "planner_seeds": 1},
        "runs": [
            {"name": f"{r.name.replace('/', '-')}-{r.hash}", "method": r.name.replace("/", "-"), "run_hash": r.hash}
            | about
            for r in runs
        ],
        "episode_sets": {
            g: {"kind": g, "digest": f"digest-{g}", "source": "", "seed": 0, "ids": [], "start": [], "goal": []}
            for g in goals
        },
        "cells": [
            cell(g, h, r, -0.02 * h + 0.1 * (g == "dataset"))
            for g in goals
            for h in horizons
            for r in dict.fromkeys((1, h))
        ],
        "curves": {f"{r.name.replace('/', '-')}-{r.hash}": curve for r in runs},
    }
    return Evaluation.from_json(record)


def packed(active):
    return to_json(Packed.of(active))


def zones():
    side = np.arange(N) * 2 // N
    return side[:, None] * 2 + side[None, :]


def supports(sparse, seed=0):
    """(N, N, UNITS): of a sparse code five units a zone and a few at random; of a dense one half of them anywhere."""
    rng = np.random.default_rng(seed)
    if not sparse:
        return rng.random((N, N, UNITS)) < 0.5
    active = (np.arange(UNITS) // 5 == zones()[..., None]) & (rng.random((N, N, UNITS)) < 0.9)
    active |= rng.random((N, N, UNITS)) < 0.05
    active[0, 0] = active[7, 7] = False  # two empty supports, which are equal
    return active


def score(value):
    near = {"low": value - 0.02, "high": value + 0.02, "level": 0.95, "unit": "trajectories"}
    shuffled = {"estimate": 0.26, **near}
    return {"estimate": value, **near, "converged": True, "shuffled": shuffled, "tally": [[1, 2]]}


def study(method="lpwm", visible=False):
    """A `Study`, from JSON as 0.1.0 wrote it."""
    sparse = method == "lpwm"
    control = {"mean": 0.1, "low": 0.05, "high": 0.15, "p": 0.01, "copies": 15}
    names, active = ("code", "support", "magnitudes"), supports(sparse, seed=visible)
    about = {"seed": 0, "step": 40, "link": "reprelu", "latent": UNITS}
    interval = {"estimate": 0.4, "low": 0.3, "high": 0.5, "level": 0.95, "unit": "units of one checkpoint"}
    record = {
        "kind": "lpwm interpretation",
        "layout": 1,
        "lpwm": "0.1.0",
        "run": {"name": f"tiny-{method}", "hash": run(method).hash, "method": method, "sparse": sparse, **about},
        "world": {"name": "piecewise", "options": {"g": 2, "visible": visible}, "trained_visible": False},
        "settings": {"resolution": N, "visible": visible},
        "grid": {
            "resolution": N,
            "x": [float(i) for i in range(N)],
            "y": [float(i) for i in range(N)],
            "zones": zones().tolist(),
            "supports": packed(active),
            "references": [],
        },
        "sharpness": {
            "sharpness": interval,
            "within": 0.7,
            "across": 0.3,
            "zones": [],
            "shuffled": control,
            "translated": control,
            "matched": 0.2,
            "matched_translated": control,
        },
        "probes": {
            "zone": {n: score(0.9) for n in (*names, "position")},
            "position": {n: score(0.8) for n in names},
            "position_given_support": score(0.5),
            "majority": 0.3,
            "frames": 100,
            "trajectories": [1, 2, 3],
        },
        "supports": {
            "kind": "support",
            "active_fraction": 0.3,
            "activity": [0.3] * UNITS,
            "dead_units": 0,
            "always_on_units": 0,
            "distinct": 9,
            "frames": 100,
            "instability": interval,
            "instability_between": 0.5,
            "unit_order": list(range(UNITS))[::-1],
        },
        "raster": {
            "episode": 3,
            "steps": list(range(16)),
            "supports": packed(active.reshape(-1, UNITS)[:16]),
            "zones": [0] * 8 + [1] * 8,
            "positions": [],
            "instability": [0.1] * 15,
        },
    }
    return Study.from_json(record)


def episodes(name, goals="random", control=False, horizon=5, receding=1):
    """A `Replay`: straight walks to the goal; episode e starts at x = 30 + 10 e."""
    t = np.linspace(0, 1, STEPS + 1)
    paths = [[[round(30 + 10 * e + 100 * s, 2), 60.0] for s in t] for e in range(EPISODES)]
    goal = [[130.0 + 10 * e, 60.0] for e in range(EPISODES)]
    distance = [[round(math.dist(p, g), 2) for p in path] for path, g in zip(paths, goal, strict=True)]
    record = {
        "world": {"name": "piecewise", "options": {"g": 2, "scale": 2.0, "visible": False}},
        "goals": goals,
        "horizon": horizon,
        "receding": receding,
        "name": name,
        "control": control,
        "seed": "control" if control else 0,
        "frameskip": 5,
        "ids": [f"{goals}-{e}" for e in range(EPISODES)],
        "goal": goal,
        "path": paths,
        "distance": distance,
        "success": ["".join("1" if d < 16 else "0" for d in row[1:]) for row in distance],
        "latent": None if control else [[1 - k / 6 for k in range(7)] for _ in range(EPISODES)],
        "predicted": None if control else [[0.9 - k / 7 for k in range(6)] for _ in range(EPISODES)],
    }
    return from_json(Replay, record)


def everything():
    """All that a page can show of zones."""
    runs = [run(m) for m in METHODS]
    found = [evaluation(), evaluation(horizons=(1, 2, 5), goals=("random",))]
    replay = [
        episodes(n, g, n == "oracle") for g in ("random", "dataset") for n in ("tiny-lewm", "tiny-lpwm", "oracle")
    ]
    studies = [study("lpwm"), study("lewm"), study("lpwm", True)]
    return Gathered(runs, found, studies, replay)
