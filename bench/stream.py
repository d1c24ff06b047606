"""Clips of stored frames, streamed: compared with stable-worldmodel's HDF5 loader, and within a memory limit.

    python bench/stream.py --peer-python PATH_TO_A_PYTHON_WITH_STABLE_WORLDMODEL [--json PATH]
    python bench/stream.py --limit-mb 600

The file holds 224² frames of a synthetic camera (which no compression shrinks) or of Wall (which gzip does), in
episodes of 101 frames; a clip is 4 frames 5 steps apart, a batch 64 clips. Both loaders read the same files, which are
in the page cache: one as its own writer lays it out, and one as `lpwm collect` does. The peer is its HDF5Dataset with
`pixels`, `action` and `state` in torch's DataLoader, shuffled, with 0, 1 and as many workers as cores, of which the
best counts; its clips span 20 rows. Ours is StreamedClips, with 1 and as many workers as cores, the best again. Rates
are of full batches.

--limit-mb streams a file of ten times that many megabytes and samples the memory of all its processes (the
proportional set size, shared pages shared out; the kernel's page cache, which it drops on demand, does not count).

How long a GPU waits for streamed clips is stream_idle.py's question.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import h5py
import numpy as np

SIDE, EPISODE, BATCH, FRAMES, SKIP = 224, 101, 64, 4, 5

PEER = """
import sys, time, warnings
warnings.filterwarnings("ignore")
from stable_worldmodel.data.formats.hdf5 import HDF5Dataset
from torch.utils.data import DataLoader
path, workers, batch, frames, skip, seconds = sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6])
data = HDF5Dataset(path=path, frameskip=skip, num_steps=frames, keys_to_load=["pixels", "action", "state"])
more = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers, drop_last=True, **more)

def run(seconds):
    clips, begin = 0, None
    while True:
        for clips in loader:
            assert clips["pixels"].shape[:2] == (batch, frames)
            if begin is None:  # the first batch starts the workers
                begin = time.perf_counter()
                continue
            clips += batch
            if time.perf_counter() - begin > seconds:
                return clips / (time.perf_counter() - begin)

run(0.5)
print(run(seconds))
"""


def bank(kind: str, count: int = 303) -> np.ndarray:
    """Different frames (count, 224, 224, 3), from which files are filled."""
    if kind == "wall":
        from lpwm import worlds

        world = worlds.make("wall")
        return world.render(world.sample_state(count, (0,)), SIDE).permute(0, 2, 3, 1).contiguous().numpy()
    g = np.random.default_rng(0)
    soft = np.kron(g.normal(size=(count, 14, 14, 3)), np.ones((1, 16, 16, 1)))
    return np.clip(128 + 40 * soft + 4 * g.normal(size=soft.shape), 0, 255).astype(np.uint8)


def make(path: Path, kind: str, episodes: int, ours: bool) -> None:
    """A file of `episodes` episodes; ours as `write` stores it, theirs as their writer does: a chunk per row."""
    frames, g = bank(kind), np.random.default_rng(1)

    def episode(i: int) -> dict[str, np.ndarray]:
        at = (i * EPISODE + np.arange(EPISODE)) % len(frames)
        return {
            "pixels": np.roll(frames[at], i, axis=1),
            "state": g.normal(size=(EPISODE, 7)).astype(np.float32),
            "action": g.normal(size=(EPISODE, 2)).astype(np.float32),
        }

    if ours:
        from lpwm.data import write

        write(path, (episode(i) for i in range(episodes)))
        return
    rows = episodes * EPISODE
    with h5py.File(path, "w", libver="latest") as f:
        for name, row in (("pixels", (SIDE, SIDE, 3)), ("state", (7,)), ("action", (2,))):
            kind_ = np.uint8 if name == "pixels" else np.float32
            f.create_dataset(name, (rows, *row), kind_, maxshape=(None, *row), chunks=(1, *row))
        for i in range(episodes):
            for name, values in episode(i).items():
                f[name][i * EPISODE : (i + 1) * EPISODE] = values
        f["ep_len"] = np.full(episodes, EPISODE, np.int32)
        f["ep_offset"] = np.arange(episodes, dtype=np.int64) * EPISODE


def clips_of(path: Path, workers: int):
    from lpwm.data import StreamedClips, read

    return StreamedClips(read(path), clip_length=FRAMES, frameskip=SKIP, batch=BATCH, workers=workers, holdout=0.02)


def ours_rate(path: Path, workers: int, seconds: float) -> float:
    clips = clips_of(path, workers)
    for step in range(8):
        clips.batch(step)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        step += 1
        assert clips.batch(step).pixels.shape == (BATCH, FRAMES, 3, SIDE, SIDE)
    rate = BATCH * (step - 7) / (time.perf_counter() - begin)
    clips.close()
    return rate


def _run(command: list[str]) -> float:
    out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if out.returncode:
        raise SystemExit(f"{command[0]} could not run its loader: {out.stderr.strip().splitlines()[-1:]}")
    return float(out.stdout.split()[-1])


def compare(python: str | None, folder: Path, episodes: int, seconds: float, rounds: int) -> dict:
    cores, results = len(os.sched_getaffinity(0)), {}
    for name, kind, ours in (
        ("its file, camera", "camera", False),
        ("our file, camera", "camera", True),
        ("its file, Wall", "wall", False),
        ("our file, Wall", "wall", True),
    ):
        path = folder / "frames.h5"
        make(path, kind, episodes, ours)
        rows = []
        for _ in range(rounds):
            row: dict = {"peer": {}, "ours": {}}
            for workers in sorted({0, 1, cores}) if python else ():
                row["peer"][workers] = _run(
                    [python, "-c", PEER, str(path), str(workers), str(BATCH), str(FRAMES), str(SKIP), str(seconds)]
                )
            for workers in sorted({1, cores}):
                row["ours"][workers] = _run(
                    [sys.executable, __file__, "--worker", str(path), str(workers), "--seconds", str(seconds)]
                )
            row["ratio"] = max(row["ours"].values()) / max(row["peer"].values()) if python else None
            rows.append(row)
        best = {
            side: statistics.median(max(r[side].values()) for r in rows) for side in ("peer", "ours") if rows[0][side]
        }
        results[name] = {
            "file_MB": path.stat().st_size / 1e6,
            "clips_per_second": best,
            "ratio": statistics.median(r["ratio"] for r in rows) if python else None,
            "rounds": rows,
        }
        path.unlink()
        line = ", ".join(f"{side} {rate:,.0f}" for side, rate in best.items())
        print(f"{name}: clips per second {line}, ratio {results[name]['ratio'] or float('nan'):.2f}", flush=True)
    return results


def pss(pid: int) -> int:
    """Bytes of memory of a process, shared pages shared out."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def limited(folder: Path, limit_mb: int, workers: int) -> dict:
    """Stream a file ten times the limit, every clip start drawn as in training, and watch the memory."""
    episodes = -(-10 * limit_mb * 10**6 // (EPISODE * SIDE * SIDE * 3))
    path = folder / "large.h5"
    make(path, "camera", episodes, ours=True)
    size = path.stat().st_size
    clips = clips_of(path, workers)
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], sum(pss(pid) for pid in (os.getpid(), *clips.processes)))

    before = pss(os.getpid())
    watcher = threading.Thread(target=watch)
    watcher.start()
    begin, steps = time.perf_counter(), clips.steps_per_epoch // 4
    for step in range(steps):  # a clip is every frame's neighbor: a quarter of an epoch reads about every frame once
        clips.batch(step)
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    clips.close()
    path.unlink()
    return {
        "file_MB": size / 1e6,
        "limit_MB": limit_mb,
        "peak_MB": most[0] / 1e6,
        "before_streaming_MB": before / 1e6,
        "under": most[0] < limit_mb * 10**6,
        "steps": steps,
        "clips_per_second": steps * BATCH / seconds,
        "frames_read_MB": steps * BATCH * FRAMES * SIDE * SIDE * 3 / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that can import stable_worldmodel 0.1.1 and hdf5plugin")
    parser.add_argument("--limit-mb", type=int, default=0, help="stream a file ten times this size")
    parser.add_argument("--episodes", type=int, default=40, help="of 101 frames, in the file")
    parser.add_argument("--workers", type=int, default=0, help="0: one fewer than cores")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the files; a temporary one when not given")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(ours_rate(Path(args.worker[0]), int(args.worker[1]), args.seconds))
        return
    from lpwm.data.streamed import default_workers

    workers, load = args.workers or default_workers(), os.getloadavg()
    results: dict = {"cores": len(os.sched_getaffinity(0)), "load_before": load, "batch": BATCH, "side": SIDE}
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        if args.limit_mb:
            results["memory"] = limited(folder, args.limit_mb, workers)
            print(json.dumps(results["memory"], indent=1))
        else:
            results["files"] = compare(args.peer_python, folder, args.episodes, args.seconds, args.rounds)
    print(f"{results['cores']} cores, load before {load[0]:.2f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
