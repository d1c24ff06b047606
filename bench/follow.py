"""Whether training in bfloat16 follows training in float32: the same seeds, clips and slices.

    python bench/follow.py [--steps 500] [--seeds 8] [--json OUT]           (one GPU)
    python bench/follow.py --cpu --steps 100 --seeds 3                      (a smaller model; autocast on the CPU)

On a GPU bfloat16 is compiled, with the encoder's kernels, and replayed as `lpwm train` has it; float32 has torch's
operations. One seed says little: runs in float32 that differ in their seed alone end some 12 % apart. So logarithms
of the ratio of losses are averaged over seeds, in windows of steps, with Student's 95 % interval.

Training is chaotic: two runs in float32 part too when one begins a last digit away. `--nudged` makes those runs as
well, and says how far bfloat16 would be from float32 if its rounding did no more than that.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from train_step import source

from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.optim import OptimConfig, build, initialize
from lpwm.stats import t_interval
from lpwm.train.step import Stepper

LOW, FULL, NUDGED = "bfloat16", "float32", "float32 nudged"
WINDOWS = ((0, 0.02), (0.02, 0.08), (0.08, 0.14), (0.2, 0.3), (0.5, 0.6), (0.9, 1.0))  # shares of all steps


def models() -> dict[str, tuple[ModelConfig, int, int]]:
    """By device: the model, clips in a batch, slices."""
    common: dict[str, Any] = {"image": 64, "patch": 8, "pixels": "imagenet"}
    predictor = PredictorConfig(rung="mlp-lti")
    large, small = EncoderConfig(width=192, **common), EncoderConfig(width=96, depth=6, mlp=384, **common)
    return {
        "cuda": (ModelConfig(latent=192, encoder=large, predictor=predictor), 128, 1024),
        "cpu": (ModelConfig(latent=96, encoder=small, predictor=predictor), 48, 256),
    }


class Runs:
    """One model in one precision, trained anew for each seed without compiling or capturing again."""

    def __init__(self, name: str, device: str, kernels: bool) -> None:
        gpu, precision = device == "cuda", name.split()[0]
        self.device, self.nudged = device, name == NUDGED
        self.config, self.batch, slices = models()[device]
        self.clips = source("piecewise", self.batch, 4, self.config.encoder.image_size, device)
        self.model = WorldModel(self.config, 10).to(device).train()
        self.objective = Objective(ObjectiveConfig(rdmreg=RDMRegConfig(slices=slices)), self.config.sparse)
        self.optimizer = build(self.model, OptimConfig(lr=5e-4), fused=gpu, capturable=gpu)
        self.stepper = Stepper(
            self.model,
            self.objective,
            self.optimizer,
            self.batch,
            precision=getattr(torch, precision),
            graphed=gpu,
            compiled=gpu and precision == LOW,
            kernels=kernels,
        )
        self(0, 6)

    def __call__(self, seed: int, steps: int) -> list[float]:
        """The losses of a run."""
        initialize(self.model, seed)
        if self.nudged:
            nudge(self.model, seed)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        losses = torch.empty(steps, device=self.device)
        for i in range(steps):
            clip = self.clips.batch(i)
            draw = self.objective.draw((seed, i), (self.batch, 4, self.config.latent), self.device)
            losses[i] = self.stepper(clip.pixels, clip.actions, draw, 1.0, i)["loss"]
        return losses.tolist()


def nudge(model: torch.nn.Module, seed: int) -> None:
    """Every parameter by two to four units in its last place, up or down."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + (torch.randint(0, 2, p.shape, generator=g).to(p) - 0.5) * 2**-21)


def compare(curves: dict[str, list[list[float]]], name: str) -> list[dict[str, Any]]:
    """By windows of steps: the mean loss of each seed, and how far those of `name` are above those of float32."""
    low, full = curves[name], curves[FULL]
    steps, rows = len(full[0]), []
    for first, last in WINDOWS:
        window = slice(int(first * steps), max(int(last * steps), int(first * steps) + 1))
        a, b = ([statistics.mean(curve[window]) for curve in many] for many in (low, full))
        ratios = [math.log(x / y) for x, y in zip(a, b, strict=True)]
        row: dict[str, Any] = {"from": window.start, "to": window.stop, name: a, FULL: b}
        row["difference"] = math.expm1(statistics.mean(ratios))
        if len(ratios) > 1:
            interval = t_interval(ratios)
            row["interval"] = [math.expm1(interval.low), math.expm1(interval.high)]
        rows.append(row)
    return rows


def report(rows: list[dict[str, Any]], name: str) -> None:
    for row in rows:
        line = f"steps {row['from']:4} to {row['to']:4}: "
        line += ", ".join(f"{which} {statistics.mean(row[which]):.4f}" for which in (name, FULL))
        line += f", {100 * row['difference']:+.1f} %"
        if "interval" in row:
            line += " [{:+.1f}, {:+.1f}]".format(*(100 * x for x in row["interval"]))
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--no-kernels", action="store_true", help="without the encoder's own kernels")
    parser.add_argument("--nudged", action="store_true", help="also float32 from a start a last digit away")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.cpu and not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use: --cpu compares a smaller model on the CPU.")
    device = "cpu" if args.cpu else "cuda"
    results: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    results |= {"torch": torch.__version__, "steps": args.steps}
    names = (LOW, FULL, NUDGED) if args.nudged else (LOW, FULL)
    runs = {name: Runs(name, device, not args.no_kernels) for name in names}
    curves: dict[str, list[list[float]]] = {name: [] for name in runs}
    for seed in range(args.seeds):
        for name, run in runs.items():
            curves[name].append(run(seed, args.steps))
        results |= {"seeds": seed + 1, "windows": {name: compare(curves, name) for name in names if name != FULL}}
        results["curves_every_10"] = {name: [c[::10] for c in many] for name, many in curves.items()}
        if args.json:  # after every seed: an interrupted comparison keeps what it has
            args.json.write_text(json.dumps(results, indent=1))
        print(f"{seed + 1} of {args.seeds} seeds", flush=True)
    for name, rows in results["windows"].items():
        report(rows, name)


if __name__ == "__main__":
    main()
