"""lpwm recipes: the named runs with their predicted cost."""

from __future__ import annotations

import json
from dataclasses import dataclass

import tyro

from lpwm.core.config import to_dict
from lpwm.recipes import RECIPES, recipe, recipes
from lpwm.train.progress import duration
from lpwm.train.run_config import RunConfig


@dataclass(frozen=True)
class Args:
    pattern: tyro.conf.Positional[str] = ""
    """Only names that match, variants included: 'wall/*', or '*' for all; without it, the main ones."""
    json: bool = False
    """Print configs and costs as JSON."""


def predicted(config: RunConfig) -> dict[str, float]:
    action = config.data.build_world().spec.action_dim * config.data.frameskip
    gpu, cpu = config.cost(action, half=True), config.cost(action, half=False)
    return {
        "parameters": gpu.parameters,
        "gflops_per_step": gpu.flops / 1e9,
        "gpu_gib": gpu.bytes(config.train.batch) / 2**30,
        "gpu_minutes": gpu.minutes(config.train.steps, "cuda"),
        "cpu_minutes": cpu.minutes(config.train.steps, "cpu"),
    }


def run(args: Args) -> int:
    names = recipes(args.pattern)
    configs = {name: recipe(name) for name in names}
    costs = {name: predicted(config) for name, config in configs.items()}
    if args.json:
        print(json.dumps({n: {"cost": costs[n], "config": to_dict(configs[n])} for n in names}, indent=2))
        return 0
    width = max(map(len, names))
    print(f"{'recipe':<{width}}  {'steps':>6} {'params':>7} {'H200':>8} {'2 cores':>9} {'memory':>8}   (estimates)")
    for name, r in costs.items():
        gpu, cpu = duration(60 * r["gpu_minutes"]), duration(60 * r["cpu_minutes"])
        print(
            f"{name:<{width}}  {configs[name].train.steps:>6} {r['parameters'] / 1e6:>6.1f}M {gpu:>8} {cpu:>9} "
            f"{r['gpu_gib']:>5.1f} GiB"
        )
    if any("small" in name or "tiny" in name for name in names):
        print("\nsmall and tiny: reduced frames, networks, data and steps; not the paper's settings")
    if not args.pattern:
        print(
            f"{len(RECIPES) - len(names)} variants: lpwm recipes '*'. A width is an option: pusht with --model.latent "
            "768 takes\nthe authors' λ and η for it."
        )
    return 0
