"""Pack training logs with labels into tests/golden/health_logs.json: what the check for dead runs is calibrated on.

    python results/pack_health_logs.py [LOG.jsonl …]

Read are the curves and campaigns in results/; further logs are those of small runs, named by what was done to them
(SMALL below): `piecewise-2x2-small` on 1,000 episodes, training seed 201, one log point in 25 steps, nothing stopped.
Those of Wall are of round 22, μ = −2. The small runs that the file has already are kept.

healthy   it predicts (in the end, an error below half of copying's) or, where it was planned with, plans
slow      it predicts or plans too little so far, and nothing shows that it cannot
dead      it cannot become a world model, or stopped being one

Left out, because nothing says what they are: PushT at 112² with the full encoder (cut off after 4 % of the steps that
its cells are made for), and one small run (pixels from one half, η = 5e-3) whose code fell to 1.4 dimensions and came
back to 2.3.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent
OUT = RESULTS.parent / "tests" / "golden" / "health_logs.json"
KEPT = (
    "loss",
    "relative_error",
    "copy_error",
    "code_rms",
    "code_std",
    "effective_dimension",
    "temporal_variation",
    "action_sensitivity",
    "gradient_norm",
)
SMALL = {
    "healthy-lpwm": ("healthy", "nothing was changed"),
    "healthy-lewm": ("healthy", "nothing was changed"),
    "no-regularizer": ("dead", "λ = 0: the codes shrink"),
    "no-regularizer-lewm": ("dead", "λ = 0: the codes shrink"),
    "lam0.1-r1": ("dead", "λ = 0.1, one step: one dimension"),
    "lam0.1-r3": ("dead", "λ = 0.1, three steps: codes of 0.03 that ignore the actions"),
    "half-lam0.5": ("dead", "λ = 0.5, pixels from one half: one dimension"),
    "shuffled-actions": ("dead", "actions of other clips of the batch: nothing to learn from them"),
    "rate0.3": ("dead", "η = 0.3: every code is 0"),
    "wall-mu2-741": ("dead", "Wall, μ = −2 with 64 units: all but one or two die out"),
    "wall-mu2-744": ("dead", "Wall, μ = −2 with 64 units: all die out"),
}
SLOW_FULL = {"imagenet-lam25-lr5e-05"}  # of both methods
SLOW_LEWM = {"data-lam25-lr5e-05"}


def piecewise() -> Iterator[dict[str, Any]]:
    for run in json.loads((RESULTS / "piecewise-64-training.json").read_text())["runs"]:
        yield log(f"{run['recipe']} seed {run['seed']}", "64²", 2, 4000, "healthy", "predicts", run["curves"])
    rounds = (("screen", 2000), ("6000", 6000), *((f"short-{seed}", 3000) for seed in (104, 105, 106)))
    for name, steps in rounds:
        for method in ("lpwm", "lewm"):
            file = json.loads((RESULTS / "campaigns" / f"piecewise-full-{name}-{method}.json").read_text())
            for cell, entry in file["cells"].items():
                if entry.get("finished"):
                    label, why = "healthy", "predicts"
                    if cell in SLOW_FULL or (method == "lewm" and cell in SLOW_LEWM):
                        label, why = "slow", "an error of about copying's, still falling"
                    if (name, method, cell) == ("6000", "lewm", "white-lam1-lr0.0002"):
                        label, why = "dead", "predicted (0.015), then broke between steps 3,100 and 3,150 for good"
                    called = f"piecewise-2x2/{method} {cell}{f' {name}' * name.startswith('short')}"
                    yield log(called, "224²", 2, steps, label, why, entry["train_log"])


def pusht() -> Iterator[dict[str, Any]]:
    """Healthy are those that reach at least a fifth of their goals; doing nothing reaches 2 to 6 %."""
    for curves, planned in (
        ("pusht-small", "pusht-small-open"),
        ("pusht-small-replication", "pusht-small-replication-closed"),
    ):
        file = json.loads((RESULTS / f"{planned}.json").read_text())
        reached = {}
        for row in file["cells"][0]["rows"]:
            for seed, rate in zip(
                row["seeds"], next(iter(row["budgets"].values()))["rate_per_seed"]["latched"], strict=True
            ):
                reached[row["name"].rpartition("-")[2], seed] = rate
        for run in json.loads((RESULTS / f"{curves}-training.json").read_text())["runs"]:
            method = run["recipe"].rpartition("/")[2]
            rate = reached[method, run["seed"]]
            label = "healthy" if rate >= 0.2 else "slow"
            why = f"reaches {100 * rate:.0f} % of its goals"
            yield log(f"{run['recipe']} seed {run['seed']}", "112²", 4, 12_000, label, why, run["curves"])


def small(paths: list[Path]) -> Iterator[dict[str, Any]]:
    made = {x["name"]: x for x in json.loads(OUT.read_text())["logs"] if x["size"] == "32²"}
    for path in paths:
        if path.stem in SMALL:
            records = [json.loads(line) for line in path.read_text().splitlines()]
            train = [r for r in records if r["kind"] == "train"]
            curves = {name: [r.get(name) for r in train] for name in ("step", *KEPT)}
            name = path.stem if path.stem.startswith("wall") else f"piecewise-2x2-small {path.stem}"
            made[name] = log(name, "32²", 2, train[-1]["step"], *SMALL[path.stem], curves)
    yield from made.values()


def log(name: str, size: str, freedom: int, steps: int, label: str, why: str, curves: dict[str, Any]) -> dict[str, Any]:
    """At most 60 points; NaN is null."""
    every = math.ceil(len(curves["step"]) / 60)
    keep = slice(every - 1, None, every)
    shown = {
        k: [None if x is None or not math.isfinite(x) else float(f"{x:.4g}") for x in curves[k][keep]]
        for k in KEPT
        if k in curves
    }
    about = {"name": name, "size": size, "degrees_of_freedom": freedom, "steps": steps, "label": label, "why": why}
    return {**about, "step": [int(s) for s in curves["step"][keep]], "monitors": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", type=Path, help="log.jsonl of small runs, named as in SMALL")
    logs = [*small(parser.parse_args().logs), *piecewise(), *pusht()]
    lines = ",\n".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in logs)
    OUT.write_text('{"kind":"lpwm labeled training logs","logs":[\n' + lines + "\n]}\n")
    for label in ("healthy", "slow", "dead"):
        print(label, sum(x["label"] == label for x in logs))


if __name__ == "__main__":
    main()
