"""RDMReg on the CPU, forward and backward, against the plain version that sorts both sides through autograd.

    python bench/rdmreg.py [--json PATH] [--threads 2] [--repeats 15]

Both are timed in turn, in one process, on the same codes; they agree to float32 rounding, which is checked.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from lpwm.core.rng import generator
from lpwm.losses.rdmreg import RDMReg, RDMRegConfig, RDMRegDraw
from lpwm.losses.slicing import draw_slices, project, sort_rows

B, T, D = 64, 4, 384
CONFIG = RDMRegConfig(slices=8192)


def numbers(regularizer: RDMReg, step: int) -> tuple[Tensor, Tensor]:
    """The random numbers of a step, as `RDMReg.draw` makes them: slices, then target samples."""
    g = generator("rdmreg", 0, step)
    return draw_slices(CONFIG.slices, D, 0.0, g), regularizer.target.sample((B, T, D), g)


def plain(z_BTD: Tensor, slices_PD: Tensor, y_BTD: Tensor) -> Tensor:
    """As one writes it first: (T, B, P), both sides sorted along the batch, gradient through the sort."""
    codes_TBP = z_BTD.transpose(0, 1) @ slices_PD.T
    target_TBP = y_BTD.transpose(0, 1) @ slices_PD.T
    return (codes_TBP.sort(dim=1).values - target_TBP.sort(dim=1).values).square().mean()


def in_turn(left: Callable[[int], None], right: Callable[[int], None], repeats: int) -> tuple[float, float]:
    """Median milliseconds of each, alternating so that a busy machine slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for step in range(repeats + 2):
        for body, spent in zip((left, right), times, strict=True):
            start = time.perf_counter()
            body(step)
            spent.append(1e3 * (time.perf_counter() - start))
    return median(times[0][2:]), median(times[1][2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    ours = RDMReg(CONFIG)
    z_BTD = torch.randn(B, T, D, generator=generator(1)).relu_().requires_grad_()
    slices_PD, y_BTD = numbers(ours, 0)

    reference = plain(z_BTD, slices_PD, y_BTD)
    (want,) = torch.autograd.grad(reference, z_BTD)
    value = ours(z_BTD, ours.draw((0, 0), (B, T, D)))
    (got,) = torch.autograd.grad(value, z_BTD)
    torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-9)

    def given(step: int) -> None:
        draw = RDMRegDraw(slices_PD, sort_rows(project(slices_PD, y_BTD)))
        ours(z_BTD, draw).backward()

    rows = {
        "draw, forward, backward": in_turn(
            lambda step: ours(z_BTD, ours.draw((0, step), (B, T, D))).backward(),
            lambda step: plain(z_BTD, *numbers(ours, step)).backward(),
            args.repeats,
        ),
        "the same, random numbers given": in_turn(
            given, lambda step: plain(z_BTD, slices_PD, y_BTD).backward(), args.repeats
        ),
    }
    print(f"RDMReg, {CONFIG.slices} slices on (B, T, D) = {(B, T, D)}, {args.threads} CPU threads, median ms")
    print(f"{'':32}{'lpwm':>9}{'plain':>9}{'ratio':>8}")
    for name, (fast, slow) in rows.items():
        print(f"{name:32}{fast:9.1f}{slow:9.1f}{slow / fast:7.1f}×")
    if args.json:
        result = {
            "shape": [B, T, D],
            "slices": CONFIG.slices,
            "threads": args.threads,
            "repeats": args.repeats,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "rows": {
                name: {"lpwm_ms": fast, "plain_ms": slow, "ratio": slow / fast} for name, (fast, slow) in rows.items()
            },
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
