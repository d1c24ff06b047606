"""Every number of the first page once more, from the JSON alone: NumPy, and nothing of lpwm or of results/tool.

    python results/recompute.py [FOLDER]

Which files and rows stand behind a claim is written down here by hand, the formulas are written out here, and t
quantiles are integrated. Each number is compared with the one in claims.json to 5e-5; the exit status is 1 where
one differs, or where claims.json has a number that is not computed here.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

SMALL, PUSHT, CUBE = "piecewise-2x2-small-", "pusht-small-mlp-lti-", "cube-112-"
REPLICATION = ("piecewise-small-replication.json",)
BOTH = (*REPLICATION, "piecewise-small-along-0.json")  # the same models on other goals
GOALS, DATASET = ("piecewise-small-random-goals.json",), ("piecewise-small-dataset-goals.json",)
HORIZONS, PROBES = "piecewise-small-table-horizons.json", "piecewise-small-table-probes.json"
CLOSED = ("pusht-small-replication-closed.json",)
PATH = ("piecewise-small-along-1.json",)  # the same models and goals under the path cost
# Eight pairs at the recipe's cell, which is LeWM's own, and LpWM at its own, on the same goals under both costs.
PAIRS = {c: (f"piecewise-small-pairs-{c}.json",) for c in ("end", "path")}
OWN = {c: (f"piecewise-small-own-{c}.json",) for c in ("end", "path")}
# Of the nineteenth round: all methods at their own cells, and LpWM at the recipe's.
TABLE = {(g, c): (f"piecewise-small-table-{g}-{c}.json",) for g in ("2x2", "3x3") for c in ("end", "path")}
RECIPE = {c: (f"piecewise-small-recipe-3x3-{c}.json",) for c in ("end", "path")}
# Of the twentieth: sixteen pairs and 1,000 goals, R=5 alone.
MOST = {(g, c): (f"piecewise-small-thousand-{g}-{c}.json",) for g in ("2x2", "3x3") for c in ("end", "path")}
WALL, LTI1 = {c: (f"wall-small-closed-{c}.json",) for c in ("end", "path")}, "wall-small-lti1-"
MEASURES = (("terminal", ""), ("latched", " reached"))  # what is judged, and what stands next to it
TOLERANCE = 5e-5
Numbers = tuple[float, float, float]  # estimate and the bounds of its 95 % interval


# Quantiles ----------------------------------------------------------------------------------------------------


def t_quantile(df: float) -> float:
    """x with P(T ≤ x) = 0.975, by Simpson's rule in θ = atan(t/√df), where the density is c·cos(θ)^(df − 1)."""
    if df == math.inf:
        return 1.959963984540054
    log_c = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi)

    def above_half(theta: float, n: int = 4000) -> float:
        at = np.linspace(0.0, theta, n + 1)
        weights = np.where(np.arange(n + 1) % 2, 4.0, 2.0)
        weights[[0, -1]] = 1.0
        return float(np.exp(log_c) * (weights * np.cos(at) ** (df - 1)).sum() * theta / n / 3)

    low, high = 0.0, math.pi / 2 - 1e-9
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if above_half(middle) < 0.475 else (low, middle)
    return math.sqrt(df) * math.tan(low)


# Intervals ----------------------------------------------------------------------------------------------------


def crossed(x: np.ndarray) -> tuple[float, float]:
    """Variance of the mean of x (seeds × episodes), both sampled, and its degrees of freedom."""
    S, E = x.shape
    m, s, e = x.mean(), x.mean(1), x.mean(0)
    ms_s, ms_e = E * ((s - m) ** 2).sum() / (S - 1), S * ((e - m) ** 2).sum() / (E - 1)
    ms_r = ((x - s[:, None] - e[None] + m) ** 2).sum() / ((S - 1) * (E - 1))
    floored, extra = ms_r - ms_s > 1e-9 * (ms_r + ms_s), ms_e - ms_r > 1e-9 * (ms_e + ms_r)
    total = max(ms_s, ms_r) + (ms_e - ms_r if extra else 0.0)
    if floored:
        df = E - 1.0 if extra else (S - 1.0) * (E - 1)
    elif extra:
        df = total**2 / (ms_s**2 / (S - 1) + ms_e**2 / (E - 1) + ms_r**2 / ((S - 1) * (E - 1)))
    else:
        df = S - 1.0
    return total / (S * E), max(df, 1.0)


def difference(d: np.ndarray) -> Numbers:
    """Of paired successes d = a − b, seeds × episodes; one seed: over its episodes."""
    S, E = d.shape
    if S > 1:
        variance, df = crossed(d)
    else:
        variance, df = float(d.var(ddof=1)) / E, E - 1.0
    half = t_quantile(df) * (math.sqrt(variance) if variance > 1e-24 else 1 / (E + 2))
    return float(d.mean()), float(d.mean()) - half, float(d.mean()) + half


def level(x: np.ndarray, planner_seeds: int) -> Numbers:
    """Wilson's interval with the effective number of trials r(1 − r)/V, and t for z."""
    S, E = x.shape
    variance, df = crossed(x)
    r = float(x.mean())
    n = float(E) if r in (0.0, 1.0) else min(r * (1 - r) / max(variance, 1e-300), float(S * planner_seeds * E))
    q = t_quantile(df)
    center, scale = r + q * q / (2 * n), 1 + q * q / n
    half = q * math.sqrt(r * (1 - r) / n + q * q / (4 * n * n))
    low, high = (center - half) / scale, (center + half) / scale
    return r, 0.0 if r == 0 else max(low, 0.0), 1.0 if r == 1 else min(high, 1.0)


def over_seeds(values: list[float], own: list[float]) -> Numbers:
    """t over checkpoints, plus the error over trajectories, which all of them share."""
    x = np.array(values)
    se = math.sqrt(x.var(ddof=1) / len(x) + (np.square(own).mean() if own else 0.0))
    half = t_quantile(len(x) - 1.0) * se
    return float(x.mean()), float(x.mean()) - half, float(x.mean()) + half


# Files --------------------------------------------------------------------------------------------------------


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, dict[str, Any]()

    def __call__(self, name: str) -> Any:
        if name not in self.cache:
            self.cache[name] = json.loads((self.folder / name).read_text())
        return self.cache[name]

    def success(
        self, names: tuple[str, ...], row: str, goals: str, H: int, R: int, budget: int, measure: str
    ) -> np.ndarray:
        """(seeds in their order, planner seeds, episodes of all files)."""
        parts = []
        for name in names:
            cells = [c for c in self(name)["cells"] if (c["goals"], c["horizon"], c["receding"]) == (goals, H, R)]
            rows = [r for c in cells for r in c["rows"] if r["name"] == row]
            assert len(rows) == 1, (name, row, goals, H, R)
            values = np.array(rows[0]["budgets"][str(budget)]["success"][measure], dtype=float)
            parts.append(values[np.argsort(rows[0]["seeds"])])
        return np.concatenate(parts, axis=2)

    def probe(self, method: str, what: str, kind: str) -> dict[int, tuple[float, float]]:
        """seed -> accuracy or R², and its standard error."""
        out = {}
        for study in self(PROBES)["studies"]:
            if study["run"]["recipe"] == f"piecewise-2x2-small/{method}":
                value = study["probes"][what][kind]
                out[study["run"]["seed"]] = (
                    value["estimate"],
                    (value["high"] - value["low"]) / (2 * t_quantile(math.inf)),
                )
        return dict(sorted(out.items()))


def planned(files: Files) -> dict[str, Numbers]:
    def one(m: str, where: tuple[str, ...], row: str, R: int, goals: str = "random", budget: int = 50) -> np.ndarray:
        return files.success(where, row, goals, 5, R, budget, m)

    out: dict[str, Numbers] = {}

    def both(name: str, a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
        for m, end in MEASURES:
            x, y = (one(m, *side).mean(1) for side in (a, b))
            out[name + end] = difference(x - y)

    def alone(name: str, *side: Any) -> None:
        for m, end in MEASURES:
            x = one(m, *side)
            out[name + end] = level(x.mean(1), x.shape[1])

    pusht, third = ("dataset", 250), SMALL.replace("2x2", "3x3")
    both("pusht-mlp-lti", (CLOSED, PUSHT + "lpwm", 5, *pusht), (CLOSED, PUSHT + "lewm", 5, *pusht))
    for cost, end in (("end", ""), ("path", "-path")):
        wall = {m: (WALL[cost], LTI1 + m, 5, "dataset", 250) for m in ("lpwm", "lewm")}
        both(f"wall-lti1{end}", wall["lpwm"], wall["lewm"])
        for m, side in wall.items():
            alone(f"wall-lti1-{m}{end}", *side)
        for R in (1, 5):
            name = f"piecewise-2x2-r{R}-ahead{end}"
            sides = (OWN[cost], PAIRS[cost]) if R == 1 else (MOST["2x2", cost],) * 2
            if name == "piecewise-2x2-r1-ahead":  # most episodes: those of the table, and H=5 of the horizons
                sides = ((*TABLE["2x2", "end"], HORIZONS),) * 2
            both(name, (sides[0], SMALL + "lpwm", R), (sides[1], SMALL + "lewm", R))
        for m in ("lpwm", "lewm"):
            name = f"piecewise-2x2-replan-{m}{end}"
            both(name, (PAIRS[cost], SMALL + m, 1), (PAIRS[cost], SMALL + m, 5))
            alone(f"piecewise-2x2-r5-{m}{end}", PAIRS[cost] if m == "lpwm" else MOST["2x2", cost], SMALL + m, 5)
        for g, prefix in (("2x2", SMALL), ("3x3", third)):
            table = TABLE[g, cost]
            both(f"piecewise-{g}-r5-tj{end}", (table, prefix + "lpwm-tj", 5), (table, prefix + "lpwm", 5))
        alone(f"piecewise-2x2-r1-lpwm-tj{end}", *((TABLE["2x2", cost] if end else GOALS), SMALL + "lpwm-tj", 1))
        alone(f"piecewise-2x2-r5-lpwm-tj{end}", *((TABLE["2x2", cost] if end else GOALS), SMALL + "lpwm-tj", 5))
        table, recipe = TABLE["3x3", cost], RECIPE[cost]
        for m, where in (("lpwm", recipe), ("lewm", table)):
            both(f"piecewise-3x3-replan-{m}{end}", (where, third + m, 1), (where, third + m, 5))
        for R, own in ((1, table), (5, MOST["3x3", cost])):
            both(f"piecewise-3x3-r{R}-ahead{end}", (own, third + "lpwm", R), (own, third + "lewm", R))
            for m, where in (("lpwm", recipe), ("lewm", own), ("lpwm-tj", table)):
                alone(f"piecewise-3x3-r{R}-{m}{end}", where, third + m, R)
    for m in ("mu1", "mu2"):
        alone(f"wall-lti1-lpwm-{m}", (f"wall-small-{m}-closed-end.json",), f"{LTI1}lpwm-{m}", 5, "dataset", 250)
    for m in ("lpwm", "lewm"):
        alone(f"piecewise-2x2-r1-{m}", BOTH, SMALL + m, 1)
        alone(f"piecewise-2x2-r1-{m}-path", PATH, SMALL + m, 1)
    for m in ("lpwm", "lpwm-tj", "lewm"):
        alone(f"dataset-piecewise-2x2-{m}", DATASET, SMALL + m, 5, "dataset")
        alone(f"dataset-piecewise-3x3-{m}", ("piecewise-small-table-3x3-dataset.json",), third + m, 5, "dataset")
    cube = ("cube-112-dataset-goals.json",)
    both("cube-planning", (cube, CUBE + "lpwm-tj0.1", 5, "dataset"), (cube, CUBE + "lpwm", 5, "dataset"))
    return out


def along_horizons(files: Files) -> dict[str, Numbers]:
    depths = sorted({c["horizon"] for c in files(HORIZONS)["cells"]})
    gaps = []
    for H in depths:
        a, b = (files.success((HORIZONS,), SMALL + m, "random", H, 1, 50, "terminal").mean(1) for m in ("lpwm", "lewm"))
        gaps.append(a - b)
    gap = np.stack(gaps)  # (horizons, seeds, episodes)
    h = np.array(depths, dtype=float)
    slope = ((h - h.mean())[:, None, None] * gap).sum(0) / ((h - h.mean()) ** 2).sum()
    return {"horizon-ahead": difference(gap.mean(0)), "horizon-gap": difference(slope)}


def studied(files: Files) -> dict[str, Numbers]:
    def apart(a: dict[int, tuple[float, float]], b: dict[int, tuple[float, float]]) -> Numbers:
        seeds = sorted(a.keys() & b.keys())
        return over_seeds([a[s][0] - b[s][0] for s in seeds], [math.hypot(a[s][1], b[s][1]) for s in seeds])

    zone, code = files.probe("lpwm", "zone", "support"), files.probe("lpwm", "zone", "code")
    out = {
        "probe-zone": over_seeds([v for v, _ in zone.values()], [e for _, e in zone.values()]),
        "probe-zone-code": apart(zone, code),
        "probe-zone-signs": apart(zone, files.probe("lewm", "zone", "support")),
        "probe-position": apart(files.probe("lpwm", "position", "code"), files.probe("lpwm", "position", "support")),
    }
    active = [r["monitors"]["active_fraction"] for r in files(CLOSED[0])["runs"] if r["method"] == PUSHT + "lpwm"]
    out["active-mlp-lti-384"] = over_seeds(active, [])
    for reading in files("cube-112-contact.json")["readings"]:
        for what, value in reading["correlations"].items():
            known = (value["estimate"], value["low"], value["high"])
            out[f"cube-{what}-tj{reading['tj_weight']:g}"] = known
    return out


def counted(files: Files) -> dict[str, str]:
    """What is no interval: how many seeds, as claims.json begins to say it."""
    chances = [
        s["sharpness"]["matched_translated"]["p"]
        for s in files(PROBES)["studies"]
        if s["run"]["recipe"] == "piecewise-2x2-small/lpwm"
    ]
    runs = files("piecewise-small-relu.json")["runs"]
    good = [
        not r.get("events")
        and r["monitors"]["effective_dimension"] >= 2
        and r["monitors"]["relative_error"] < min(0.5, r["monitors"]["copy_error"])
        for r in runs
    ]
    few = sum(p < 0.05 for p in chances)
    return {"borders": f"{few} of {len(chances)} seeds", "relu": f"{sum(good)} of {len(runs)} seeds"}


# Against claims.json --------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent)
    files = Files(parser.parse_args(argv).folder)
    numbers, counts = {**planned(files), **along_horizons(files), **studied(files)}, counted(files)
    wrong = []
    for claim in files("claims.json")["claims"]:
        if not claim["lines"]:
            continue
        name, line = claim["id"], claim["lines"][0]
        if name in counts:
            agrees = line["ours"].startswith(counts[name])
            print(f"{name:<32} {counts[name]:<28} {'agrees' if agrees else 'DIFFERS'}")
        elif name in numbers:
            pairs = list(zip(numbers[name], (line[k] for k in ("estimate", "low", "high")), strict=True))
            if line["reached"] is not None:
                pairs += zip(numbers[f"{name} reached"], line["reached"], strict=True)
            agrees = all(abs(a - b) < TOLERANCE for a, b in pairs)
            print(f"{name:<32} {' '.join(f'{a:8.4f}' for a, _ in pairs):<56} {'agrees' if agrees else 'DIFFERS'}")
        else:
            agrees = False
            print(f"{name:<32} NOT COMPUTED HERE")
        wrong += [] if agrees else [name]
    print(f"{len(wrong)} differ: {', '.join(wrong)}" if wrong else "all agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
