"""Clips per second of a LeRobot data set: its own loader, ours from mp4, ours from the cache of decoded frames.

    python bench/lerobot_loader.py --peer-python PYTHON_WITH_LEROBOT_0.4.4 [--peer-libraries FOLDERS] [--json PATH]

LeRobot's own writer makes the data sets: 224² frames of a synthetic camera in episodes of 101, H.264 and AV1, with its
own options. A clip is 4 frames 5 steps apart with the actions between and the states, a batch 64 clips. The peer is
LeRobotDataset with `delta_timestamps` in torch's DataLoader, shuffled, with 0, 1 and as many workers as cores, of which
the best counts, and torchcodec (its fastest decoder) where it can be imported, else PyAV; its frames are float32. Ours
is StreamedClips with 1 and as many workers as cores, the best again; its frames are uint8. All is in the page cache,
rates are of full batches, rounds interleave the loaders, and the ratio is that of each round, so that other work on the
machine weighs on all.

torchcodec finds FFmpeg's shared libraries through --peer-libraries (LD_LIBRARY_PATH).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDE, EPISODE, BATCH, FRAMES, SKIP, FPS = 224, 101, 64, 4, 5, 10
MAKE = Path(__file__).parents[1] / "tests" / "golden" / "lerobot"
CODECS = {"H.264": "h264", "AV1": "libsvtav1"}

PEER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import make
make.stand_in_for_torchvision()
import numpy as np, torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
task, root, rest = sys.argv[2], sys.argv[3], sys.argv[4:]
side, episode, batch, frames, skip, fps = map(int, rest[:6])
if task == "make":
    codec, episodes = rest[6], int(rest[7])
    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.state": {"dtype": "float32", "shape": (7,), "names": None},
        "observation.images.top": {"dtype": "video", "shape": (side, side, 3), "names": ["height", "width", "color"]},
    }
    data = LeRobotDataset.create("lpwm/bench", fps, features, root=root, vcodec=codec, image_writer_threads=2)
    g = np.random.default_rng(0)
    for e in range(episodes):
        soft = np.kron(g.normal(size=(side // 16, side // 16, 3)), np.ones((16, 16, 1)))
        back = np.clip(128 + 40 * soft + 4 * g.normal(size=soft.shape), 0, 255).astype(np.uint8)
        for t in range(episode):
            picture = np.roll(back, (t, 2 * t), (0, 1))
            picture[t : t + 40, 50:90] = (200, 40, 40)
            numbers = {"action": g.normal(size=2), "observation.state": g.normal(size=7)}
            numbers = {k: v.astype(np.float32) for k, v in numbers.items()}
            data.add_frame({**numbers, "observation.images.top": picture, "task": "none"})
        data.save_episode()
    data.finalize()
    sys.exit()
workers, seconds = int(rest[6]), float(rest[7])
try:
    from torchcodec.decoders import VideoDecoder
    backend = "torchcodec"
except Exception:
    backend = "pyav"
times = [skip * t / fps for t in range(frames)]
steps = [t / fps for t in range((frames - 1) * skip)]
data = LeRobotDataset(
    "lpwm/bench", root=root, video_backend=backend,
    delta_timestamps={"observation.images.top": times, "observation.state": times, "action": steps},
)
more = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers, drop_last=True, **more)

def run(seconds):
    clips, begin = 0, None
    while True:
        for item in loader:
            assert item["observation.images.top"].shape == (batch, frames, 3, side, side)
            if begin is None:  # the first batch starts the workers
                begin = time.perf_counter()
                continue
            clips += batch
            if time.perf_counter() - begin > seconds:
                return clips / (time.perf_counter() - begin)

run(0.5)
print(backend, run(seconds))
"""


def peer(python: str, libraries: str, task: str, root: Path, *rest: object) -> list[str]:
    numbers = (SIDE, EPISODE, BATCH, FRAMES, SKIP, FPS)
    command = [python, "-c", PEER, str(MAKE), task, str(root), *map(str, (*numbers, *rest))]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(root.parent / "hf"), "LD_LIBRARY_PATH": libraries}
    out = subprocess.run(command, capture_output=True, text=True, env=env)
    if out.returncode:
        raise SystemExit(f"{python} could not run LeRobot: {out.stderr.strip().splitlines()[-1:]}")
    return out.stdout.split()[-2:]


def ours(root: Path, cache: Path | None, workers: int, seconds: float) -> float:
    """Clips per second, in a process of its own."""
    from lpwm.data import StreamedClips, read, with_cache

    data = read(root)
    if cache is not None:
        data = with_cache(data, cache)
    clips = StreamedClips(data, clip_length=FRAMES, frameskip=SKIP, batch=BATCH, workers=workers)
    clips.batch(0)
    begin, step = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        step += 1
        assert clips.batch(step).pixels.shape == (BATCH, FRAMES, 3, SIDE, SIDE)
    rate = step * BATCH / (time.perf_counter() - begin)
    clips.close()
    return rate


def _ours(root: Path, cache: Path | None, workers: int, seconds: float) -> float:
    command = [
        sys.executable,
        __file__,
        "--worker",
        str(root),
        str(cache or ""),
        str(workers),
        "--seconds",
        str(seconds),
    ]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def compare(args: argparse.Namespace, folder: Path) -> dict:
    cores, results = len(os.sched_getaffinity(0)), {}
    for name, codec in CODECS.items():
        root, cache = folder / codec, folder / "cache"
        if not root.exists():
            peer(args.peer_python, args.peer_libraries, "make", root, codec, args.episodes)
        _ours(root, cache, cores, 0.1)  # decodes them once
        rounds, backend = [], ""
        for _ in range(args.rounds):
            row: dict = {"LeRobot": {}, "mp4": {}, "cache": {}, "load": os.getloadavg()[0]}
            for workers in sorted({0, 1, cores}):
                backend, rate = peer(args.peer_python, args.peer_libraries, "read", root, workers, args.seconds)
                row["LeRobot"][workers] = float(rate)
                if workers:
                    row["mp4"][workers] = _ours(root, None, workers, args.seconds)
                    row["cache"][workers] = _ours(root, cache, workers, args.seconds)
            best = {side: max(row[side].values()) for side in ("LeRobot", "mp4", "cache")}
            row["ratio"] = {side: best[side] / best["LeRobot"] for side in ("mp4", "cache")}
            rounds.append(row)
        median = {s: statistics.median(max(r[s].values()) for r in rounds) for s in ("LeRobot", "mp4", "cache")}
        ratio = {s: statistics.median(r["ratio"][s] for r in rounds) for s in ("mp4", "cache")}
        results[name] = {"decoder": backend, "clips_per_second": median, "ratio": ratio, "rounds": rounds}
        line = ", ".join(f"{side} {rate:,.0f}" for side, rate in median.items())
        print(f"{name}: clips per second {line} ({backend}); ratio mp4 {ratio['mp4']:.2f}, cache {ratio['cache']:.2f}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that can import lerobot 0.4.4")
    parser.add_argument("--peer-libraries", default=os.environ.get("LD_LIBRARY_PATH", ""))
    parser.add_argument("--episodes", type=int, default=20, help="of 101 frames")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the data sets, which are kept; a temporary one when not given")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        root, cache, workers = args.worker
        print(ours(Path(root), Path(cache) if cache else None, int(workers), args.seconds))
        return
    if not args.peer_python:
        parser.error("give --peer-python")
    record: dict = {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg(), "batch": BATCH, "side": SIDE}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        record["data_sets"] = compare(args, folder)
    record["load_after"] = os.getloadavg()
    print(f"{record['cores']} cores, load before {record['load_before'][0]:.2f}, after {record['load_after'][0]:.2f}")
    if args.json:
        args.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
