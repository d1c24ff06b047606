"""The training step on one GPU, beside a plain eager loop of the same model in the same run.

    python bench/train_step.py [--json OUT] [--cases pusht-deep pusht-mlp-lti piecewise-tiny] [--profile]

Frames are rendered on the device (Wall stands in for PushT: the same number of pixels). "plain" is what one writes
first: autocast, eager modules, a regulariser that sorts both sides, torch's AdamW. "ours" is lpwm.train.step as
`lpwm train` runs it. Parts are timed alone; the profile names the kernels that the step's time goes to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from lpwm import worlds
from lpwm.data import collect, read
from lpwm.data.clips import ResidentClips
from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig
from lpwm.model import VIT_TINY, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim import OptimConfig, build, initialise
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


def source(world_name: str, batch: int, frames: int, size: int, device: str) -> ResidentClips:
    world = worlds.make(world_name)
    with tempfile.TemporaryDirectory() as folder:
        collect(world, Path(folder) / "bench.h5", episodes=200, steps=40)
        data = read(Path(folder) / "bench.h5")
    return ResidentClips(data, world=world, frames=frames, batch=batch, size=size, device=device)


def setting(case: str, device: str):
    config, batch, slices, world, most = CASES[case]
    clips = source(world, batch, 4, config.encoder.image, device)
    model = WorldModel(config, 10)
    initialise(model, 0)
    objective = Objective(ObjectiveConfig(rdmreg=RDMRegConfig(slices=slices)), config.sparse)
    return model.to(device).train(), clips, objective, batch, most


def plain_step(model, clips, objective, batch, device):
    """The same update, written plainly."""
    optimiser = build(model, OptimConfig(lr=1e-4))
    target, slices = objective.regulariser.target, objective.config.rdmreg.slices

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
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def our_step(model, clips, objective, batch, device):
    optimiser = build(model, OptimConfig(lr=1e-4), fused=True, capturable=True)
    stepper = Stepper(
        model, objective, optimiser, batch, precision=torch.bfloat16, compiled=True, graphed=True
    )

    def step(i: int) -> None:
        clip = clips.batch(i)
        draw = objective.draw((0, i), batch, 4, model.config.latent, device)
        stepper(clip.pixels, clip.actions, draw, 1.0, i)

    return step, stepper


def milliseconds(f, repeats: int = 30, warm: int = 6) -> float:
    for i in range(warm):
        f(i)
    times = []
    for i in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        f(warm + i)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def profile(f, top: int = 25) -> list[dict]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA]) as p:
        for i in range(5):
            f(100 + i)
        torch.cuda.synchronize()
    rows = [
        {"kernel": e.key[:90], "ms": e.device_time_total / 5000, "calls": e.count / 5}
        for e in p.key_averages()
        if e.device_time_total > 0
    ]
    return sorted(rows, key=lambda r: -r["ms"])[:top]


def measure(case: str, with_profile: bool) -> dict:
    device = "cuda"
    model, clips, objective, batch, most = setting(case, device)
    torch.cuda.reset_peak_memory_stats()
    plain = milliseconds(plain_step(model, clips, objective, batch, device), repeats=15)
    plain_memory = torch.cuda.max_memory_allocated() / 2**30
    model, clips, objective, batch, most = setting(case, device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step, _ = our_step(model, clips, objective, batch, device)
    ours = milliseconds(step)
    row = {
        "case": case,
        "plain_ms": plain,
        "ours_ms": ours,
        "ratio": plain / ours,
        "most_ms": most,
        "clips_ms": milliseconds(clips.batch),
        "draw_ms": milliseconds(lambda i: objective.draw((0, i), batch, 4, model.config.latent, device)),
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
        "plain_peak_GiB": plain_memory,
    }
    if with_profile:
        row["kernels"] = profile(step)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that torch can use.")
    rows = []
    for case in args.cases:
        rows.append(measure(case, args.profile))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "kernels"}), flush=True)
        for k in rows[-1].get("kernels", []):
            print(f"   {k['ms']:8.3f} ms {k['calls']:6.0f}×  {k['kernel']}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for r in rows:
        print(
            f"{r['case']:<16} plain {r['plain_ms']:6.1f} ms   ours {r['ours_ms']:6.1f} ms   {r['ratio']:.2f}×   "
            f"bar {r['most_ms']:.0f}   clips {r['clips_ms']:.2f}  draw {r['draw_ms']:.2f}   {r['peak_GiB']:.1f} GiB"
        )
    if args.json:
        args.json.write_text(
            json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows})
        )


if __name__ == "__main__":
    main()
