"""Runs, evaluations, studies and episodes made up by hand, with known answers."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
from PIL import Image

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.core.json import from_json, to_json
from lpwm.core.provenance import Record
from lpwm.evaluate.results import Evaluation
from lpwm.interpret import Packed, Study
from lpwm.interpret.decode import Imagination
from lpwm.interpret.units import atlas
from lpwm.recipes import recipe
from lpwm.report.gather import Gathered, Log, RunFile, Shown

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
    return replace(from_json(RunFile, record), log=logged([*train, *val] if log else []))


def logged(records):
    """The log of a run, from lines as they stand in its file."""
    return Log(tuple(filter(None, (Record.from_json(json.dumps(r)) for r in records))))


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
    gap = {"difference": -0.3, "low": -1.4, "high": -0.2, "level": 0.95, "p": 0.01, "p_holm": 0.01}
    gap |= {"smallest_detectable": 0.2, "power": 0.8, "a": "tiny-lewm", "b": "tiny-lpwm", "seeds": 1}
    gap |= {"episodes": EPISODES, "method": "", "verdict": "b ahead"}
    compared = {"rates": [], "differences": [gap], "text": []}
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
        },
    }
    return Study.from_json(record)


def sheet(rows, columns):
    """A picture of rows × columns frames of 8 pixels, each of its own color, in base64."""
    image = np.zeros((rows * 8, columns * 8, 3), np.uint8)
    for r in range(rows):
        for c in range(columns):
            image[8 * r : 8 * r + 8, 8 * c : 8 * c + 8] = (40 * r, 255 * c // max(columns - 1, 1), 128)
    packed = io.BytesIO()
    Image.fromarray(image).save(packed, "WEBP", lossless=True)
    return base64.b64encode(packed.getvalue()).decode()


def episodes(goals="random", horizon=5, receding=1):
    """`Shown` frames: straight walks to the goal, 100 away; a frame every second step, three methods."""
    steps, distance = list(range(0, STEPS + 1, 2)), [round(100 - 100 * t / STEPS, 2) for t in range(STEPS + 1)]
    success = "".join("1" if d < 16 else "0" for d in distance[1:])
    methods = []
    for name in ("tiny-lewm", "tiny-lpwm", "oracle"):
        control = name == "oracle"
        methods.append(
            {
                "name": name,
                "control": control,
                "seed": "control" if control else 0,
                "frameskip": 5,
                "camera": f"{name}.webp",
                "imagined": None if control else f"{name}-imagined.webp",
                "distance": [distance] * EPISODES,
                "success": [success] * EPISODES,
                "latent": None if control else [[1 - k / 6 for k in range(7)]] * EPISODES,
                "predicted": None if control else [[0.9 - k / 7 for k in range(6)]] * EPISODES,
            }
        )
    cell = {"goals": goals, "horizon": horizon, "receding": receding, "ids": [f"{goals}-{e}" for e in range(EPISODES)]}
    cell |= {"steps": steps, "goal": "goal.webp", "methods": methods}
    sheets = {"goal.webp": sheet(EPISODES, 1)}
    for m in methods:
        sheets[m["camera"]] = sheet(EPISODES, len(steps))
        sheets |= {m["imagined"]: sheet(EPISODES, 1 + STEPS // 5)} if m["imagined"] else {}
    return from_json(Shown, {"world": {"name": "pusht", "options": {}}, "cell": cell, "sheets": sheets})


def imagination(method="lpwm"):
    """An `Imagination` with its strips, and those as pictures."""
    one = run(method)
    about = {"name": f"tiny-{method}", "hash": one.hash, "method": method, "sparse": method == "lpwm", "seed": 0}
    record = {name: [e, 1.5 * e, 2 * e] for name, e in (("imagined", 0.01), ("decoded", 0.005), ("nearest", 0.02))}
    record |= {"copy": [0.02, 0.03, 0.04], "mean": [0.05] * 3, "side": 8, "clips": 9, "settings": {}}
    strips = [{"outcome": o, "file": f"{o}.webp", "error": 0.01, "copy": 0.03} for o in ("success", "failure")]
    record |= {"run": about | {"step": 40, "link": "reprelu", "latent": UNITS}, "world": {"name": "piecewise"}}
    return Imagination.from_json({"kind": Imagination.KIND, "strips": strips, **record})


def units():
    """`Units` of a made-up code: unit u is on in the frames of zone u % 4."""
    zone = np.repeat(np.arange(4), 30)
    place = np.random.default_rng(0).uniform(0, 1, (120, 2)) + np.stack((zone % 2, zone // 2), 1)
    z = (zone[:, None] == np.arange(UNITS) % 4) * 1.0
    return atlas(z, {"x": place[:, 0], "y": place[:, 1]}, "x", "y", zone)


def everything():
    """All that a page can show of zones."""
    runs = [run(m) for m in METHODS]
    evaluations = [evaluation(), evaluation(horizons=(1, 2, 5), goals=("random",))]
    studies = [*(replace(study(m), units=units()) for m in ("lpwm", "lewm")), study("lpwm", True)]
    strips = {f"{o}.webp": sheet(3, 4) for o in ("success", "failure")}
    return Gathered(runs, evaluations, studies, [episodes(), episodes("dataset")], [imagination()], strips)


EVIL = '"><img src=x onerror="window.ran=1"></script><script>window.ran=1</script>'


def leaves(data, path=()):
    """Where every string and number of a JSON value stands; of a list, in its first entry."""
    if isinstance(data, dict | list):
        for key, value in list(data.items() if isinstance(data, dict) else enumerate(data[:1])):
            yield from leaves(value, (*path, key))
    elif not isinstance(data, bool | None):
        yield path


def poisoned(one):
    """A result with EVIL in every field that a file may bring it in through: those that its reader accepts."""
    data, read = to_json(one), getattr(type(one), "from_json", None) or (lambda d: from_json(type(one), d))
    for path in list(leaves(data)):
        packed = path[-2:] == ("supports", "data") or path[-1] in ("maps", "frames") or "sheets" in path
        if packed:  # base64: the script stops there, and would show nothing else
            continue
        at = data
        for key in path[:-1]:
            at = at[key]
        before, at[path[-1]] = at[path[-1]], EVIL
        try:
            read(data)
        except UserError:
            at[path[-1]] = before
    return read(data)


def poisoned_page():
    """Everything that a page shows, with EVIL wherever files can bring it."""
    given = everything()
    names = ("evaluations", "studies", "episodes", "imagination")
    parts = {name: [poisoned(one) for one in getattr(given, name)] for name in names}
    runs = [poisoned(replace(run, log=Log())) for run in given.runs]
    runs[0] = replace(runs[0], hash=given.runs[0].hash, config=given.runs[0].config)  # found by its evaluations
    log = [{"kind": "event", "step": EVIL, "message": EVIL}, {"kind": "val", "step": EVIL, "error_depth": [EVIL, 0.1]}]
    log += [{"kind": "train", "step": 1, "loss": EVIL, "active_fraction": EVIL, "relative_error": 0.1}] * 2
    runs = [replace(run, log=logged(log)) for run in runs]
    return Gathered(runs, **parts, notes=[EVIL])
