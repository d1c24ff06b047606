"""The seeds of one cell as one stacked model, against the same seeds one after another, in one run.

    python bench/stacked_seeds.py [--device cuda] [--seeds 2 4 8] [--cases wall-lti1 small …] [--json OUT]

"alone" is `lpwm.train.step.Stepper` as `lpwm train` runs it (on CUDA compiled and captured as a graph); "stacked" is
`lpwm.sweep.stacked.StackedStepper` captured as a graph, and once more with its networks compiled. Clips, slices and
targets are drawn beforehand: what is timed is the update. Given is the time of one update of all N seeds, the median
of groups of ten, and the ratio alone/stacked (above 1: stacking pays). Dropout is 0, as stacks require.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.optim import build, initialise
from lpwm.recipes import ladder, small, tiny
from lpwm.run import RunConfig
from lpwm.sweep.stacked import StackedStepper, check_stackable
from lpwm.train.step import Stepper

CASES: dict[str, RunConfig] = {
    "wall-lti1": ladder("lti1"),
    "wall-mlp-lti": ladder("mlp-lti"),
    "small": small(),
    "tiny": tiny(),
}
ACTIONS = 10


def batches(config: RunConfig, seeds: int, device: str) -> tuple[Any, ...]:
    g = torch.Generator(device=device).manual_seed(0)
    B, T, side = config.train.batch, config.frames, config.model.encoder.image
    pixels = torch.randint(
        0, 256, (seeds, B, T, 3, side, side), generator=g, device=device, dtype=torch.uint8
    )
    actions = torch.randn(seeds, B, T - 1, ACTIONS, generator=g, device=device)
    objective = Objective(config.objective, config.model.sparse)
    draws = [objective.draw((s, 0), B, T, config.model.latent, device) for s in range(seeds)]
    return pixels, actions, draws, objective


def models_of(config: RunConfig, seeds: int, device: str) -> list[WorldModel]:
    out = []
    for seed in range(seeds):
        model = WorldModel(config.model, ACTIONS)
        initialise(model, seed)
        out.append(model.to(device).train())
    return out


def alone(config: RunConfig, seeds: int, device: str) -> Callable[[int], None]:
    pixels, actions, draws, objective = batches(config, seeds, device)
    cuda = device == "cuda"
    options = {"fused": True, "capturable": True} if cuda else {}
    steppers = [
        Stepper(m, objective, build(m, config.optim, **options), config.train.batch, clip=config.optim.clip,
                precision=torch.bfloat16 if cuda else torch.float32, compiled=cuda, graphed=cuda, kernels=cuda)
        for m in models_of(config, seeds, device)
    ]  # fmt: skip

    def step(i: int) -> None:
        for s, stepper in enumerate(steppers):
            stepper(pixels[s], actions[s], draws[s], 1.0, i)

    return step


def stacked(config: RunConfig, seeds: int, device: str, compiled: bool) -> Callable[[int], None]:
    pixels, actions, draws, objective = batches(config, seeds, device)
    cuda = device == "cuda"
    options = {"fused": True, "capturable": True} if cuda else {}
    models = models_of(config, seeds, device)
    stepper = StackedStepper(
        models, objective, [build(m, config.optim, **options) for m in models], config.optim.clip,
        torch.bfloat16 if cuda else torch.float32, compiled=compiled, graphed=cuda,
    )  # fmt: skip

    def step(i: int) -> None:
        stepper(pixels, actions, draws, 1.0)

    return step


def milliseconds(make: Callable[[], Callable[[int], None]], device: str, groups: int) -> float | str:
    """The median over groups of ten updates; what failed, in words, rather than a number."""
    try:
        step = make()
        for i in range(6):  # compile, capture, settle
            step(i)
        times = []
        for group in range(groups):
            _sync(device)
            began = time.perf_counter()
            for i in range(10):
                step(6 + 10 * group + i)
            _sync(device)
            times.append((time.perf_counter() - began) / 10)
        return 1000 * statistics.median(times)
    except Exception as error:  # a benchmark tells what does not work and goes on
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(
        f"{name}, torch {torch.__version__}\n{'case':<14} {'N':>2} {'alone ms':>10} {'stacked':>10} {'compiled':>10}"
    )
    for case in args.cases:
        config = CASES[case]
        config = replace(
            config, model=replace(config.model, predictor=replace(config.model.predictor, dropout=0.0))
        )
        check_stackable(config)
        for n in args.seeds:
            one = milliseconds(lambda c=config, n=n: alone(c, n, args.device), args.device, args.groups)
            many = milliseconds(
                lambda c=config, n=n: stacked(c, n, args.device, False), args.device, args.groups
            )
            compiled: float | str = "not tried"
            if args.device == "cuda":
                compiled = milliseconds(
                    lambda c=config, n=n: stacked(c, n, args.device, True), args.device, args.groups
                )
            row: dict[str, Any] = {"case": case, "seeds": n, "alone_ms": one, "stacked_ms": many,
                                   "stacked_compiled_ms": compiled}  # fmt: skip
            best = [v for v in (many, compiled) if isinstance(v, float)]
            row["ratio"] = one / min(best) if isinstance(one, float) and best else None
            rows.append(row)
            shown = [f"{v:10.2f}" if isinstance(v, float) else f"  {v}" for v in (one, many, compiled)]
            ratio = f"{row['ratio']:.2f}×" if row["ratio"] else "–"
            print(f"{case:<14} {n:>2} {' '.join(shown)}  alone/stacked {ratio}", flush=True)
    if args.json:
        found = {
            "device": name,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "rows": rows,
        }
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
