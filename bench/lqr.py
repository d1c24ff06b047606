"""LQR against CEM on a trained linear model, in one run: cost reached and time.

    lpwm train piecewise-2x2-small/lewm --model.predictor.rung lti --model.action-encoder linear
    python bench/lqr.py RUN [--json OUT]

Fifty environments with random starts and goals, horizon 5, the paper's CEM. Both minimize the same cost: the squared
distance of the last predicted latent to the goal's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from lpwm import train as runs
from lpwm.plan import CEMConfig, LatentProblem, LQRConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--environments", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    it, n = runs.load(args.run), args.environments
    with torch.no_grad():
        z0, zg = (
            it.model.encode(it.world.render(s, it.image))
            for s in (it.world.sample_state(n, ("bench",)), it.world.sample_goal(n, ("bench",)))
        )
    problem = LatentProblem(it.model, z0[:, None], zg, horizon=5)
    rows = {}
    for name, solver in (("lqr", LQRConfig().build()), ("cem", CEMConfig().build())):
        solver.solve(problem.select(slice(0, 2)))  # warm
        start = time.perf_counter()
        plan = solver.solve(problem)
        rows[name] = {"seconds": time.perf_counter() - start, "cost": plan.costs_B.mean().item()}
        rows[name]["costs"] = plan.costs_B.tolist()
    better = sum(a <= b * (1 + 1e-4) for a, b in zip(rows["lqr"]["costs"], rows["cem"]["costs"], strict=True))
    share = rows["lqr"]["seconds"] / rows["cem"]["seconds"]
    for name, r in rows.items():
        print(f"{name}: {1000 * r['seconds']:8.1f} ms   mean cost {r['cost']:.5f}")
    print(f"LQR as good or better in {better} of {n} environments, in {100 * share:.2f} % of CEM's time")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "share": share, "as_good": better, "run": it.run_hash}))


if __name__ == "__main__":
    main()
