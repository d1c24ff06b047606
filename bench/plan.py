"""A CEM plan for 50 environments on one GPU, next to a plain loop of the same model in the same run.

    python bench/plan.py [--json OUT] [--rungs deep-adaln mlp-lti] [--profile]

The paper's budget (300 samples, 30 elites, 30 iterations, 5 steps), D = 384, bf16, random weights. "plain" is what
one writes first: autocast around the training-time windows, eager. "ours" is `CEM().solve(problem, compile=True)`:
frozen bf16 weights, one compiled iteration, the whole search one CUDA graph. Plans are compared by the float32
model: what a plan costs after the fast search, after the eager float32 search with the same noise, and after the
latter with other noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from lpwm.core.rng import fold, generator
from lpwm.model import ModelConfig, PredictorConfig, WorldModel
from lpwm.optim import initialize
from lpwm.plan import CEM, CEMConfig, LatentProblem
from lpwm.plan.cem import refit
from lpwm.plan.solver import noise, take

BARS = {"deep-adaln": 1.5, "mlp-lti": 0.03}  # seconds
ENVIRONMENTS, HORIZON, ACTION, LATENT = 50, 5, 10, 384


def make(rung: str, device: str, autocast: torch.dtype | None, latent: int) -> LatentProblem:
    """Random weights with open gates, action embeddings of unit size, and goals that some plan reaches."""
    model = WorldModel(ModelConfig(latent=latent, predictor=PredictorConfig(rung=rung)), ACTION).eval()
    initialize(model, 0)
    g = generator("bench plan", rung)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=g))
        last = model.embed_action[-1]
        spread = model.embed_action(torch.randn(1000, ACTION, generator=g)).std()
        last.weight.div_(spread)
        last.bias.div_(spread)
        z = torch.relu(torch.randn(ENVIRONMENTS, 1, latent, generator=g))
        goal = model.rollout(z, torch.randn(ENVIRONMENTS, 1, HORIZON, ACTION, generator=g), last_only=True)
    return LatentProblem(model.to(device), z.to(device), goal[:, 0].to(device), None, HORIZON, autocast=autocast)


@torch.no_grad()
def plain(problem: LatentProblem, config: CEMConfig, iterations: int) -> None:
    mean = torch.zeros(problem.batch, HORIZON, ACTION, device=problem.device)
    std, key = torch.ones_like(mean), fold(0, problem.env_ids)
    for i in range(iterations):
        actions = mean[:, None] + std[:, None] * noise(
            problem, key, torch.tensor(i, device=problem.device), config.samples
        )
        with torch.autocast(problem.device.type, torch.bfloat16):
            z = problem.model.rollout(problem.z_BCD, actions, last_only=True, cached=False)
        cost = (z.float() - problem.z_goal_BD[:, None]).square().mean(-1)
        best, index = cost.topk(config.elites, dim=1, largest=False)
        mean, std, _ = refit(take(actions, index), best, mean, std)


def seconds(f, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        f()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times


def kernels(f, top: int = 14) -> list[dict]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as p:
        f()
        torch.cuda.synchronize()
    rows = [
        {"kernel": e.key[:100], "ms": e.device_time_total / 1000, "calls": e.count}
        for e in p.key_averages()
        if e.device_time_total > 0
    ]
    return sorted(rows, key=lambda r: -r["ms"])[:top]


def measure(rung: str, config: CEMConfig, latent: int, with_profile: bool) -> dict:
    problem = make(rung, "cuda", torch.bfloat16, latent)
    exact = make(rung, "cuda", None, latent)
    solver = CEM(config)
    plain(problem, config, 1)
    few = 3
    plain_s = statistics.median(seconds(lambda: plain(problem, config, few), 2)) * config.iterations / few
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    fast = solver.solve(problem, seed=0, compile=True)
    first_s = time.perf_counter() - begin
    times = seconds(lambda: solver.solve(problem, seed=0, compile=True), 7)
    row = {
        "rung": rung,
        "ours_s": statistics.median(times),
        "all_s": times,
        "bar_s": BARS[rung],
        "plain_eager_s": plain_s,
        "first_call_s": first_s,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
    }
    with torch.no_grad():
        reference, other = (CEM(config).solve(exact, seed=s) for s in (0, 1))
        value = lambda plan: exact.value(plan.actions_BHA[:, None])[:, 0]  # noqa: E731
        start = exact.value(torch.zeros_like(fast.actions_BHA)[:, None])[:, 0]
        row |= {
            "cost_of_zero_actions": float(start.mean()),
            "cost_fast": float(value(fast).mean()),
            "cost_float32": float(value(reference).mean()),
            "cost_float32_other_noise": float(value(other).mean()),
            "difference_over_noise": float((value(fast) - value(reference)).abs().mean())
            / max(1e-30, float((value(other) - value(reference)).abs().mean())),
        }
    few_rows = solver.solve(problem.select(slice(3, 10)), seed=0, compile=True)
    row["part_equals_whole"] = bool(torch.equal(few_rows.actions_BHA, fast.actions_BHA[3:10]))
    eager = CEM(config).solve(problem.select(slice(0, 8)), seed=0)  # bf16 without compiler and graph
    row["cost_fast_first_8"], row["cost_eager_bf16_first_8"] = (
        float(exact.select(slice(0, 8)).value(p.actions_BHA[:8, None]).detach().mean()) for p in (fast, eager)
    )
    if with_profile:
        row["kernels"] = kernels(lambda: solver.solve(problem, seed=0, compile=True))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rungs", nargs="*", default=list(BARS), choices=list(BARS))
    parser.add_argument("--latent", type=int, default=LATENT)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that torch can use.")
    config, rows = CEMConfig(), []
    for rung in args.rungs:
        rows.append(measure(rung, config, args.latent, args.profile))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "kernels"}), flush=True)
        for k in rows[-1].get("kernels", []):
            print(f"   {k['ms']:9.3f} ms {k['calls']:6.0f}×  {k['kernel']}")
        if args.json:
            results = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
            args.json.write_text(json.dumps(results, indent=1))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for r in rows:
        print(
            f"{r['rung']:<12} ours {r['ours_s']:.4f} s   bar {r['bar_s']} s   plain eager {r['plain_eager_s']:.2f} s   "
            f"first call {r['first_call_s']:.0f} s   {r['peak_GiB']:.1f} GiB   cost {r['cost_fast']:.5f} "
            f"(float32 {r['cost_float32']:.5f}, other noise {r['cost_float32_other_noise']:.5f})"
        )


if __name__ == "__main__":
    main()
