"""Training curves of run folders as one small JSON, for runs whose weights are not kept.

    python results/pack_curves.py OUT.json RUN…      (then python -m results.tool page draws it)

A run folder needs run.json, log.jsonl and training.json. Every tenth of a run is kept, and all held-out errors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tool.figures import CURVES as SHOWN
from tool.read import CURVES
from tool.runs import recipe_of

POINTS = 40  # of each curve


def curves(folder: Path) -> dict[str, Any]:
    made = json.loads((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    train = [r for r in rows if r["kind"] == "train"]
    kept = train[:: max(1, len(train) // POINTS)]
    config = made["config"]
    return {
        "run": folder.name,
        "recipe": recipe_of(folder.name.rsplit("-", 1)[0]),
        "hash": folder.name.rsplit("-", 1)[-1],
        "seed": config["train"]["seed"],
        "lam": config["objective"]["lam"],
        "lr": config["optim"]["lr"],
        "last_step": train[-1]["step"],
        "training": json.loads((folder / "training.json").read_text()),
        "curves": {"step": [r["step"] for r in kept]}
        | {k: [round(r[k], 5) for r in kept] for k in (*SHOWN, "loss", "action_sensitivity", "dead_units")},
        "held_out": [
            {k: r[k] for k in r if k in ("step", "error_depth", "copy_error_depth") or k.startswith("range_")}
            for r in rows
            if r["kind"] == "val"
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args()
    runs = sorted((curves(folder) for folder in args.runs), key=lambda r: (r["recipe"], r["seed"]))
    gpu = runs[0]["training"][0]["device"]
    args.out.write_text(json.dumps({"kind": CURVES, "gpu": gpu, "runs": runs}) + "\n")
    for r in runs:
        last = r["held_out"][-1]
        minutes = sum(t["seconds"] for t in r["training"]) / 60
        print(
            f"{r['recipe']} seed {r['seed']}: step {r['last_step']}, {minutes:.1f} min, held-out error "
            f"{last['error_depth'][0]:.4f}, copying {last['copy_error_depth'][0]:.4f}"
        )


if __name__ == "__main__":
    main()
