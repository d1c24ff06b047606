"""Each method's own cell from a finished selection sweep, by the rule of results/protocol.md.

    python results/campaigns/choose.py SWEEP [more …] --out FILE.json

A cell is a choice of λ and η. The one with the most goals held at the end, averaged over training seeds and
evaluations (one for each planning cost), wins; within --margin of the best, the one that changes fewer of λ and η of
the recipe, then the lower held-out error at the last depth. Cells without all seeds are listed and not chosen. FILE
holds every run with its successes, so that the table can be made again.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

FIELDS = ("objective.lam", "optim.lr")


def value(config: dict[str, Any], field: str) -> float:
    room, _, name = field.partition(".")
    return float(config[room][name])


def read(sweep: Path) -> list[dict[str, Any]]:
    """What is kept of every finished cell of the ledger."""
    runs = []
    for path in sorted(sweep.glob("ledger/cells/*.json")):
        record = json.loads(path.read_text())
        if record["state"] != "done":
            continue
        cell, result = record["cell"], record["result"]
        evals = {
            name: {
                "goals": entry["count"],
                "held": round(entry["budgets"][budget]["terminal"]["rate"], 6),
                "reached": round(entry["budgets"][budget]["latched"]["rate"], 6),
                "success": {m: v["success"] for m, v in entry["budgets"][budget].items()},
            }
            for name, (entry,) in result["evals"].items()
            for budget in entry["budgets"]
        }
        keep = {k: result[k] for k in ("run", "step", "dead", "train", "held_out", "seconds")}
        where = {"recipe": cell["name"], "seed": cell["config"]["train"]["seed"]}
        runs.append({**where, **{f: value(cell["config"], f) for f in FIELDS}, **keep, "evals": evals})
    return runs


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per recipe and cell: means over its seeds."""
    cells = defaultdict(list)
    for run in runs:
        cells[run["recipe"], *(run[f] for f in FIELDS)].append(run)
    rows = []
    for (name, lam, lr), many in sorted(cells.items()):
        names = sorted(many[0]["evals"])
        row = {"recipe": name, "objective.lam": lam, "optim.lr": lr, "seeds": sorted(r["seed"] for r in many)}
        for kind in ("held", "reached"):
            row |= {f"{kind} {n}": _mean(r["evals"][n][kind] for r in many) for n in names}
        row["held"] = _mean(row[f"held {n}"] for n in names)
        row["error"] = _mean(r["held_out"]["error_depth"][-1] for r in many)
        row["active"] = _mean(r["train"]["active_fraction"] for r in many)
        row["dimension"] = _mean(r["train"]["effective_dimension"] for r in many)
        rows.append(row)
    return rows


def _mean(values: Any) -> float:
    known = list(values)
    return sum(known) / len(known)


def own(rows: list[dict[str, Any]], recipe: dict[str, float], margin: float) -> dict[str, Any]:
    """The cell of one method."""
    most = max(len(r["seeds"]) for r in rows)
    whole = [r for r in rows if len(r["seeds"]) == most]
    best = max(r["held"] for r in whole)
    near = [r for r in whole if r["held"] >= best - margin - 1e-9]
    return min(near, key=lambda r: (sum(r[f] != recipe[f] for f in FIELDS), r["error"]))


def main(argv: list[str] | None = None) -> None:
    from lpwm.core.config import to_dict
    from lpwm.recipes import recipe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--margin", type=float, default=0.02, help="of the share of goals held")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    runs = [run for sweep in args.sweeps for run in read(sweep)]
    rows = table(runs)
    shown = [k for k in rows[0] if k != "seeds"]
    print("| " + " | ".join((*shown, "seeds")) + " |\n|" + " --- |" * (len(shown) + 1))
    for row in rows:
        cells = (f"{row[k]:.3g}" if isinstance(row[k], float) else str(row[k]) for k in shown)
        print("| " + " | ".join((*cells, str(len(row["seeds"])))) + " |")
    chosen = {}
    for name in sorted({r["recipe"] for r in rows}):
        usual = {f: value(to_dict(recipe(name)), f) for f in FIELDS}
        mine = [r for r in rows if r["recipe"] == name]
        chosen[name] = own(mine, usual, args.margin)
        edges = [f for f in FIELDS if chosen[name][f] in (min(r[f] for r in mine), max(r[f] for r in mine))]
        print(f"{name}: {', '.join(f'{f} {chosen[name][f]:g}' for f in FIELDS)}; at the border: {edges or 'no'}")
    if args.out:
        args.out.write_text(json.dumps({"cells": rows, "chosen": chosen, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
