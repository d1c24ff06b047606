"""How long `Agent.act` takes for one environment.

    python bench/act_latency.py [--cases small pusht] [--calls 200] [--json OUT]

small   Piecewise's MLP∘LTI (D = 64, 32² frames) on a CPU, CEM with 100 samples and 10 iterations; the bar is 20 ms
pusht   PushT's Deep-AdaLN (D = 384, 224² frames) on CUDA, the paper's CEM (300 samples, 30 iterations), in bfloat16,
        captured as one graph; the bar is 60 ms

Weights are random. A plan is made every `frameskip` calls, which encode a frame and plan five blocks; the calls between
return what is planned. The bars are for calls that plan, at the median.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import lpwm
from lpwm.agent import Agent
from lpwm.data import ActionStats
from lpwm.optim import initialize
from lpwm.plan import MPCConfig

FRAMESKIP, RAW = 5, 2
CASES = {
    "small": ("piecewise-2x2-small/lpwm", "cpu", lpwm.CEMConfig(samples=100, elites=10, iterations=10), 20.0),
    "pusht": ("pusht/deep-adaln/lpwm", "cuda", lpwm.CEMConfig(), 60.0),
}


def make(name: str) -> Agent:
    recipe, device, solver, _ = CASES[name]
    model = lpwm.WorldModel(lpwm.recipe(recipe).model, RAW * FRAMESKIP)
    initialize(model, 0)
    fast = {"compile": True, "autocast": torch.bfloat16} if device == "cuda" else {}
    stats, bounds = ActionStats((0.0,) * RAW, (0.5,) * RAW), ((-1.0,) * RAW, (1.0,) * RAW)
    config = MPCConfig(horizon=5, receding=1, context=model.history)
    return Agent(model.eval().to(device), stats, FRAMESKIP, *bounds, solver=solver.build(), config=config, **fast)


def measure(name: str, calls: int) -> dict:
    agent = make(name)
    draw = np.random.default_rng(0)
    frames = draw.integers(0, 256, (16, agent.image_size, agent.image_size, 3), dtype=np.uint8)
    agent.reset(goal=frames[-1])
    begun = time.perf_counter()
    agent.act(frames[0])
    first = time.perf_counter() - begun
    for t in range(1, 4 * FRAMESKIP):  # until the context is as long as it gets, and everything is compiled
        agent.act(frames[t % 16])
    times = {"plan_ms": [], "between_ms": []}
    for t in range(calls):
        begun = time.perf_counter()
        agent.act(frames[t % 16])
        times["between_ms" if t % FRAMESKIP else "plan_ms"].append(1e3 * (time.perf_counter() - begun))
    row = {"case": name, "first_call_s": first, "bar_ms": CASES[name][3], "threads": torch.get_num_threads()}
    for kind, values in times.items():
        row |= {kind: float(np.median(values)), f"{kind}_p95": float(np.quantile(values, 0.95))}
    row["device"] = torch.cuda.get_device_name() if agent.device.type == "cuda" else "cpu"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    there = [name for name, case in CASES.items() if case[1] == "cpu" or torch.cuda.is_available()]
    parser.add_argument("--cases", nargs="*", default=there, choices=list(CASES))
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [measure(name, args.calls) for name in args.cases]
    for row in rows:
        told = (
            f"{row['plan_ms']:.1f} ms with a plan (95 %: {row['plan_ms_p95']:.1f}), {row['between_ms']:.2f} ms without"
        )
        print(f"{row['case']}: {told}; the bar is {row['bar_ms']:.0f} ms")
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
