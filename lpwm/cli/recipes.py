"""lpwm recipes: the named runs with their predicted cost."""

import json
from dataclasses import dataclass
from functools import cache

import tyro

from lpwm.cli.terminal import say
from lpwm.core.config import to_dict
from lpwm.recipes import RECIPES, recipe, recipes
from lpwm.train.progress import duration
from lpwm.train.run_config import RunConfig


@dataclass(frozen=True)
class Args:
    pattern: tyro.conf.Positional[str] = ""
    """Only names that match, variants included: 'wall/*', or '*' for all; without it, the main ones."""
    json: bool = False  # Print configs and costs as JSON.


@cache
def predicted(config: RunConfig) -> dict[str, float]:
    """What training costs. Recordings (data.file) are counted with actions of two numbers."""
    action = (2 if config.data.file else config.data.build_world().spec.action_dim) * config.data.frameskip
    gpu, cpu = config.cost(action, half=True), config.cost(action, half=False)
    at_once = -(-config.train.batch // config.train.accumulate)
    return {
        "parameters": gpu.parameters,
        "gflops_per_step": gpu.flops / 1e9,
        "gpu_gib": gpu.bytes(at_once) / 2**30,
        "cpu_gib": cpu.bytes(at_once) / 2**30,
        "gpu_minutes": gpu.minutes(config.train.steps, "cuda"),
        "cpu_minutes": cpu.minutes(config.train.steps, "cpu"),
    }


def row(r: dict[str, float], steps: int) -> str:
    gpu, cpu = duration(60 * r["gpu_minutes"]), duration(60 * r["cpu_minutes"])
    return f"{steps:>6} {r['parameters'] / 1e6:>6.1f}M {gpu:>8} {cpu:>9} {r['gpu_gib']:>5.1f} GiB"


HEADS = f"{'steps':>6} {'params':>7} {'H200':>8} {'2 cores':>9} {'memory':>9}"


def run(args: Args) -> int:
    names = recipes(args.pattern)
    configs = {name: recipe(name) for name in names}
    costs = {name: predicted(config) for name, config in configs.items()}
    if args.json:
        say(json.dumps({n: {"cost": costs[n], "config": to_dict(configs[n])} for n in names}, indent=2))
        return 0
    width = max(map(len, names))
    say(f"{'recipe':<{width}}  {HEADS}")
    for name, cost in costs.items():
        say(f"{name:<{width}}  {row(cost, configs[name].train.steps)}")
    if any("small" in name or "tiny" in name for name in names):
        say("\nsmall, tiny: reduced frames, networks, data and steps; not the paper's settings.")
    if not args.pattern:
        say(f"Times and memory are estimates. {len(RECIPES) - len(names)} variants: lpwm recipes '*', or 'wall/*'.")
        say("A width is an option: pusht with --model.latent 768 takes the authors' λ and η for it.")
    return 0
