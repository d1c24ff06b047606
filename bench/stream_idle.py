"""How long a GPU waits for streamed clips: the PushT-sized training step, from memory and from a file.

    python bench/stream_idle.py [--device cuda] [--workers 4 8 12] [--steps 100] [--json OUT]

The step is that of `pusht/mlp-lti` (64 clips × 4 frames at 224², D=384, 8192 slices, bf16), captured as a CUDA graph
(train.compile=graph), or with --compile compiled before (about a minute) and asking for clips faster. It gets its
inputs as in the training loop, one step early on a stream of their own, from ResidentClips and from StreamedClips with
several numbers of workers. The file holds random frames, which are stored as they are, or frames of Wall, which are
stored deflated.

CUDA events stand before and after each step on the stream it runs on, the first after it has waited for its clips.
With s_i and e_i what they say, of n steps,

    step = (e_n − e_1)/(n − 1)        idle share = Σ_{i>1} (s_i − e_{i−1}) / (e_n − e_1)

so what lies between the steps is idle time, whoever is to blame; the share with resident clips says how much of it
streaming does not cause. `wait_ms` is what the host spends waiting for the workers, per step, during the GPU's work.

A measurement that would begin after --limit seconds is left out and named, one that fails says why; JSON is written
after each. --toy is a dry run of the same code on a tiny model, with the host's clock where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpwm.data import EpisodeData, ResidentClips, StreamedClips, read, write
from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.optim import build, initialize
from lpwm.recipes import pusht, tiny
from lpwm.train import RunConfig
from lpwm.train.loop import Ahead
from lpwm.train.step import Stepper

BEGAN = time.perf_counter()
EPISODE, BANK, WARM = 101, 101, 6


def account(spans: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Milliseconds of a step, of its work, and the share of the time in which there was none, from (start, end)."""
    if len(spans) < 2:
        raise ValueError("two steps or more have a time between them")
    whole = spans[-1][1] - spans[0][1]
    gaps = [max(0.0, start - end) for (_, end), (start, _) in zip(spans[:-1], spans[1:], strict=True)]
    steps = len(spans) - 1
    return {
        "step_ms": whole / steps,
        "work_ms": (whole - sum(gaps)) / steps,
        "idle_share": sum(gaps) / whole,
        "longest_gap_ms": max(gaps),
    }


class Clock:
    """Marks on the device's own time line; on the CPU, where work is done when the call returns, the host's."""

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.marks = device.type == "cuda", []  # type: ignore[var-annotated]

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def spans(self) -> list[tuple[float, float]]:
        """(start, end) of each pair of marks, milliseconds since the first."""
        first = self.marks[0]
        if self.cuda:
            torch.cuda.synchronize()
            at = [first.elapsed_time(mark) for mark in self.marks]
        else:
            at = [1000 * (mark - first) for mark in self.marks]
        return list(zip(at[::2], at[1::2], strict=True))


def make_file(path: Path, kind: str, side: int, episodes: int) -> None:
    """Episodes of 101 frames of this side; random ones cost nothing to make and cannot be deflated."""
    g = np.random.default_rng(0)
    if kind == "wall":
        from lpwm import worlds

        world = worlds.make("wall")
        frames = world.render(world.sample_state(BANK, (0,)), side).permute(0, 2, 3, 1).contiguous().numpy()
    else:
        frames = g.integers(0, 256, (BANK, side, side, 3), np.uint8)

    def episode(i: int) -> dict[str, np.ndarray]:
        return {
            "pixels": np.roll(frames, (i, i), axis=(0, 1)),
            "state": g.normal(size=(EPISODE, 7)).astype(np.float32),
            "action": g.normal(size=(EPISODE, 2)).astype(np.float32),
        }

    write(path, (episode(i) for i in range(episodes)))


class Trainer:
    """One model and its captured step, fed from one source after another."""

    def __init__(self, config: RunConfig, device: torch.device, compiled: bool) -> None:
        self.config, self.device, cuda = config, device, device.type == "cuda"
        model = WorldModel(config.model, 2 * config.data.frameskip)
        initialize(model, 0)
        model.to(device).train()
        self.objective = Objective(config.objective, config.model.sparse)
        options = {"fused": True, "capturable": True} if cuda else {}
        self.stepper = Stepper(
            model,
            self.objective,
            build(model, config.optim, **options),
            config.train.batch,
            precision=torch.bfloat16 if cuda else torch.float32,
            graphed=cuda,
            compiled=compiled,
            kernels=compiled,
        )

    def run(self, source: ResidentClips | StreamedClips, steps: int) -> dict[str, Any]:
        waited = _time_waits(source)

        def make(step: int):
            shape = (self.config.train.batch, source.clip_length, self.config.model.latent)
            return source.batch(step), self.objective.draw((0, step), shape, self.device)

        ahead, clock = Ahead(make, self.device, WARM + steps), Clock(self.device)
        for step in range(WARM + steps):
            if step == WARM:  # captured, workers started, slots filled
                waited[0] = 0.0
                began = time.perf_counter()
            clip, draw = ahead(step)
            if step >= WARM:
                clock.mark()
            self.stepper(clip.pixels, clip.actions, draw, 1.0, step)
            if step >= WARM:
                clock.mark()
            ahead.begin(step + 1)
        shares = account(clock.spans())
        seconds = time.perf_counter() - began
        return {
            **shares,
            "clips_per_second": 1000 * self.config.train.batch / shares["step_ms"],
            "wait_ms": 1000 * waited[0] / steps,
            "host_step_ms": 1000 * seconds / steps,
        }


def _time_waits(source: ResidentClips | StreamedClips) -> list[float]:
    """[seconds waited for workers so far], counted from the second batch on."""
    total = [0.0]
    if isinstance(source, StreamedClips):
        source.batch(0)
        pool = source._pool
        assert pool is not None
        wait = pool.wait

        def timed(slot: int):
            begin = time.perf_counter()
            try:
                return wait(slot)
            finally:
                total[0] += time.perf_counter() - begin

        pool.wait = timed  # type: ignore[method-assign]
    return total


def clips_of(data: EpisodeData, config: RunConfig, device: torch.device, workers: int):
    options: dict[str, Any] = dict(
        clip_length=config.frames, frameskip=config.data.frameskip, batch=config.train.batch, device=device
    )
    return StreamedClips(data, workers=workers, **options) if workers else ResidentClips(data, **options)


def measure(
    config: RunConfig,
    device: torch.device,
    folder: Path,
    workers: Sequence[int],
    args: argparse.Namespace,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Each kind of file from memory and from its file with each number of workers; `keep` gets every row."""
    trainer = Trainer(config, device, args.compile)
    for kind in args.frames:
        path = folder / f"{kind}.h5"
        begin = time.perf_counter()
        make_file(path, kind, config.model.encoder.image_size, args.episodes)
        data = read(path)
        print(f"{kind}: {path.stat().st_size / 1e6:.0f} MB written in {time.perf_counter() - begin:.1f} s", flush=True)
        for count in (0, *workers):
            row: dict[str, Any] = {
                "frames": kind,
                "source": "streamed" if count else "resident",
                "workers": count,
                "file_MB": path.stat().st_size / 1e6,
            }
            if time.perf_counter() - BEGAN > args.limit:
                keep({**row, "left_out": f"{args.limit:g} s were over"})
                continue
            source = None
            try:
                source = clips_of(data, config, device, count)
                rounds = [trainer.run(source, args.steps) for _ in range(args.rounds)]
                row |= {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            except Exception as error:  # a benchmark tells what does not work and goes on
                row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            finally:
                if source is not None:
                    source.close()
            keep(row)
        path.unlink()


def line(row: dict[str, Any]) -> str:
    name = f"{row['frames']:<7} {row['source']:<9} {row['workers'] or '':>3} "
    if "step_ms" not in row:
        return name + (row.get("error") or f"left out: {row['left_out']}")
    return name + (
        f"step {row['step_ms']:7.2f} ms, work {row['work_ms']:7.2f}, idle {100 * row['idle_share']:5.1f} %, "
        f"{row['clips_per_second']:7,.0f} clips/s, host waits {row['wait_ms']:6.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--frames", nargs="+", default=["random", "wall"], choices=("random", "wall"))
    parser.add_argument("--episodes", type=int, default=20, help="of 101 frames, in each file")
    parser.add_argument("--steps", type=int, default=80, help="of each round")
    parser.add_argument("--rounds", type=int, default=1, help="of which the median is given")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds after which none is begun")
    parser.add_argument("--compile", action="store_true", help="as lpwm train does on CUDA")
    parser.add_argument("--toy", action="store_true", help="a tiny model, to try the script")
    parser.add_argument("--folder", type=Path, help="for the files; a temporary one when not given")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    config = tiny() if args.toy else pusht("lpwm", "mlp-lti")
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg(),
        "batch": config.train.batch,
        "side": config.model.encoder.image_size,
        "steps": args.steps,
        "compiled": args.compile,
        "rows": [],
    }

    def keep(row: dict[str, Any]) -> None:
        results["rows"].append(row)
        results["seconds"] = time.perf_counter() - BEGAN
        print(line(row), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        measure(config, device, Path(folder), args.workers, args, keep)
    print(f"{results['device']}, torch {results['torch']}, {results['cores']} cores, {results.get('seconds', 0):.1f} s")


if __name__ == "__main__":
    main()
