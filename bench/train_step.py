"""The training step on one GPU, next to a plain eager loop of the same model in the same run.

    python bench/train_step.py [--json OUT] [--cases pusht-deep pusht-mlp-lti piecewise-tiny] [--profile]

Frames are rendered on the device (Wall stands in for PushT, the same number of pixels; --pusht draws the real ones).
"plain" is what one writes first: autocast, eager modules, a regularizer that sorts both sides, torch's AdamW. "ours" is
lpwm.train.step as `lpwm train` runs it. A step includes gathering and rendering its clips and drawing its slices.
Both loops run freely, as the training loop does between log points: as many steps as lie between two (50) are timed at
a time, of the plain loop ten, and the median of such groups is given. A log point (all monitors, moved to the host) is
timed next to it. `--profile` sums the kernels of a step by kind.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from pathlib import Path

import torch

from lpwm import worlds
from lpwm.data import collect, read
from lpwm.data.clips import ResidentClips
from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig
from lpwm.model import VIT_TINY, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim import OptimConfig, build, initialize
from lpwm.train.loop import Ahead, measure_step
from lpwm.train.step import Stepper

CASES = {
    # name: (model, batch, slices, world, most milliseconds)
    "pusht-deep": (ModelConfig(predictor=PredictorConfig(rung="deep-adaln")), 64, 8192, "wall", 18.0),
    "pusht-mlp-lti": (ModelConfig(predictor=PredictorConfig(rung="mlp-lti")), 64, 8192, "wall", 15.0),
    "piecewise-tiny": (
        ModelConfig(
            latent=192,
            encoder=VIT_TINY,
            projector=ProjectorConfig(norm="batch"),
            predictor=PredictorConfig(head_norm="batch", position_std=1.0),
            action_smooth=10,
        ),
        128,
        1024,
        "piecewise",
        22.0,
    ),
}


# What the kernels of a step do, by name; the first that matches.
KINDS = {
    "attention": r"_attention_|sdpa|flash|dot_do_o|convert_dq",
    "gelu": r"fused_gelu",
    "products with gelu": r"^_mlp_",
    "layer norm": r"layer_norm|^_norm_",
    "the last block's attention": r"^_last_",
    "matrix products": r"nvjet|gemm|cutlass|splitK",
    "optimizer": r"multi_tensor|[aA]dam",
    "sorting": r"[sS]ort|_by_rank",
}


def source(world_name: str, batch: int, frames: int, size: int, device: str) -> ResidentClips:
    world = worlds.make(world_name)
    with tempfile.TemporaryDirectory() as folder:
        collect(world, Path(folder) / "bench.h5", episodes=200, steps=100 if world_name == "pusht" else 40)
        data = read(Path(folder) / "bench.h5")
    return ResidentClips(
        data, world=world, clip_length=frames, batch=batch, image_size=size, device=device, compiled=True
    )


WORLD = ""  # --pusht: what stands where Wall stood in for it


def setting(case: str, device: str):
    config, batch, slices, world, most = CASES[case]
    if WORLD and world == "wall":
        world = WORLD
    clips = source(world, batch, 4, config.encoder.image_size, device)
    model = WorldModel(config, 10)
    initialize(model, 0)
    objective = Objective(ObjectiveConfig(rdmreg=RDMRegConfig(slices=slices)), config.sparse)
    return model.to(device).train(), clips, objective, batch, most


def plain_step(model, clips, objective, batch, device):
    """The same update, written plainly."""
    optimizer = build(model, OptimConfig(lr=1e-4))
    target, slices = objective.regularizer.target, objective.config.rdmreg.slices

    def step(i: int) -> None:
        clip = clips.batch(i)
        with torch.autocast(device, torch.bfloat16):
            z = model.encode(clip.pixels)
            zhat = model.predict(z[:, :3], clip.actions)
        g = torch.Generator(device=device).manual_seed(i)
        w = torch.nn.functional.normalize(torch.randn(z.shape[-1], slices, device=device, generator=g), dim=0)
        y = target.sample(z.shape, g)
        a, b = (z.float() @ w).sort(dim=0).values, (y @ w).sort(dim=0).values
        loss = (zhat.float() - z[:, 1:].float()).square().mean() + (a - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


KERNELS = True  # unless --no-kernels
LOG_EVERY = 50  # steps between log points, as `lpwm train` has it


def our_step(model, clips, objective, batch, device):
    optimizer = build(model, OptimConfig(lr=1e-4), fused=True, capturable=True)
    stepper = Stepper(
        model, objective, optimizer, batch, precision=torch.bfloat16, compiled=True, graphed=True, kernels=KERNELS
    )

    def make(i: int):
        return clips.batch(i), objective.draw((0, i), (batch, 4, model.config.latent), device)

    ahead = Ahead(make, device, 10**9)

    def step(i: int):
        clip, draw = ahead(i)
        out = stepper(clip.pixels, clip.actions, draw, 1.0, i)
        ahead.begin(i + 1)
        return clip, out

    return step, stepper


def milliseconds(f, groups: int = 7, warm: int = 6, size: int = LOG_EVERY) -> float:
    """Of one call, by the median over groups of calls between which nothing waits for the device."""
    for i in range(warm):
        f(i)
    times = []
    for group in range(groups):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for i in range(size):
            f(warm + group * size + i)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / size)
    return statistics.median(times)


def kernels(f, steps: int = 5) -> list[dict]:
    """Milliseconds and launches of each kernel in one call, the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA], acc_events=True) as p:
        for i in range(steps):
            f(100 + i)
        torch.cuda.synchronize()
    rows = [
        {"kernel": e.key[:90], "ms": e.device_time_total / (1000 * steps), "calls": e.count / steps}
        for e in p.key_averages()
        if e.device_time_total > 0
    ]
    return sorted(rows, key=lambda r: -r["ms"])


def shares(rows: list[dict]) -> dict[str, float]:
    """Milliseconds by kind."""
    total: dict[str, float] = {}
    for row in rows:
        kind = next((k for k, pattern in KINDS.items() if re.search(pattern, row["kernel"])), "the rest")
        total[kind] = total.get(kind, 0.0) + row["ms"]
    return dict(sorted(total.items(), key=lambda item: -item[1]))


class Prepared:
    """Our step of a case, compiled and captured: what happens once, and may happen next to other work."""

    def __init__(self, case: str, device: str = "cuda") -> None:
        self.case, self.device = case, device
        self.model, self.clips, self.objective, self.batch, self.most = setting(case, device)
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        self.step, self.stepper = our_step(self.model, self.clips, self.objective, self.batch, device)
        for i in range(4):
            self.step(i)
        torch.cuda.synchronize()
        self.first = time.perf_counter() - started
        self.peak = torch.cuda.max_memory_allocated() / 2**30


def log_point(prepared: Prepared, times: int = 10) -> float:
    """Milliseconds by which a step with a log point is longer than one without, the wait for the device included."""
    step, stepper = prepared.step, prepared.stepper

    def seconds(steps: range, log: bool) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in steps:
            clip, out = step(i)
            if log:
                measure_step(clip.actions, out, stepper)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(range(3), True)
    with_log, without = seconds(range(3, 3 + times), True), seconds(range(3 + times, 3 + 2 * times), False)
    return 1000 * (with_log - without) / times


def measure(prepared: Prepared, with_profile: bool) -> dict:
    ours, by_tens = milliseconds(prepared.step), milliseconds(prepared.step, size=10)
    log_ms = log_point(prepared)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model, clips, objective, batch, most = setting(prepared.case, prepared.device)
    plain = milliseconds(plain_step(model, clips, objective, batch, prepared.device), groups=3, size=10)
    row = {
        "case": prepared.case,
        "plain_ms": plain,
        "ours_ms": ours,
        "ours_ms_by_tens": by_tens,  # a large GPU that runs for longer meets its power limit
        "ratio": plain / ours,
        "most_ms": most,
        "first_four_steps_s": prepared.first,
        "log_point_ms": log_ms,
        "monitors_share": log_ms / (LOG_EVERY * ours),
        "peak_GiB": prepared.peak,
        "plain_peak_GiB": (torch.cuda.max_memory_allocated() - before) / 2**30,
    }
    if with_profile:
        every = kernels(prepared.step)
        draw = kernels(lambda i: objective.draw((0, i), (batch, 4, model.config.latent), prepared.device))
        row |= {
            "kernels_ms": sum(k["ms"] for k in every),
            "launches": sum(k["calls"] for k in every),
            "clips_ms": sum(k["ms"] for k in kernels(clips.batch)),
            "draw_ms": sum(k["ms"] for k in draw),
            "shares_ms": shares(every),
            "kernels": every[:60],
        }
    return row


def report(row: dict) -> None:
    line = f"{row['case']:<16} plain {row['plain_ms']:6.1f} ms   ours {row['ours_ms']:6.2f} ms   {row['ratio']:.2f}×"
    line += f"   bar {row['most_ms']:.0f}   {row['peak_GiB']:.1f} GiB (plain {row['plain_peak_GiB']:.1f})"
    line += f"   log point {row['log_point_ms']:.2f} ms, {100 * row['monitors_share']:.2f} % at one in {LOG_EVERY}"
    print(line + f"   first steps {row['first_four_steps_s']:.0f} s")
    if "shares_ms" in row:
        parts = ", ".join(f"{kind} {ms:.2f}" for kind, ms in row["shares_ms"].items())
        print(f"{'':<16} {row['launches']:.0f} launches, {row['kernels_ms']:.2f} ms: {parts};", end=" ")
        print(f"of which clips {row['clips_ms']:.2f}, draw {row['draw_ms']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-kernels", action="store_true", help="without the encoder's own kernels")
    parser.add_argument("--pusht", action="store_true", help="real PushT clips in the ladder's cases (pymunk)")
    args = parser.parse_args()
    global KERNELS, WORLD
    WORLD = "pusht" if args.pusht else ""
    KERNELS = not args.no_kernels
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that torch can use.")
    results = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for case in args.cases:
        row = measure(Prepared(case), args.profile)
        results["rows"].append(row)
        for k in row.get("kernels", [])[:25]:
            print(f"   {k['ms']:8.3f} ms {k['calls']:6.0f}×  {k['kernel']}")
        report(row)
    print(f"{results['gpu']}, torch {results['torch']}")
    for row in results["rows"]:
        report(row)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
