"""PushT environment steps per second with 224² frames, compared with stable-worldmodel's own pool; and frames alone.

    python bench/pusht_frames.py --peer-python PATH_TO_A_PYTHON_WITH_STABLE_WORLDMODEL [--json]
    python bench/pusht_frames.py --device cuda        frames alone on a GPU: eager, compiled, batches of 256

Every round measures the peer (its World: 10 environments, frames in `infos`; the better of torch's own choice of
threads and one thread), then ours, one after the other on the same machine, and gives their ratio; the median over
rounds is reported with all of them next to it. Ours steps physics and draws every state, 64 simulators in each of one
process per core, with random actions as the peer's; the peer's pool has one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from worlds import PEER  # the same measurement of the peer as in bench/worlds.py

NAME, ENVIRONMENTS, SIZE, EPISODE, BATCH = "swm/PushT-v1", 10, 224, 100, 256
OURS = 64


def steps_with_frames(seconds: float) -> float:
    """Environment steps per second in this process, each with its frame."""
    import torch

    from lpwm.worlds import make

    world = make("pusht")
    draw = world.renderer(SIZE)
    start = world.sample_state(OURS, (0,))
    generator = torch.Generator().manual_seed(0)

    def episode() -> int:
        live = world.open(start)
        for _ in range(EPISODE // 10):
            states = live.step(torch.rand(OURS, 2, generator=generator) * 2 - 1)
            assert draw(states).shape == (OURS, 3, SIZE, SIZE)
        live.close()
        return OURS * (EPISODE // 10)

    return rate(episode, seconds)


def steps_alone(seconds: float) -> float:
    import torch

    from lpwm.worlds import make

    world = make("pusht")
    live = world.open(world.sample_state(OURS, (0,)))
    action = torch.rand(OURS, 2, generator=torch.Generator().manual_seed(0)) * 0.4 - 0.2
    return rate(lambda: len(live.step(action)), seconds)


def frames_alone(seconds: float) -> float:
    from lpwm.worlds import make

    world = make("pusht")
    state, draw = world.sample_state(BATCH, (0,)), world.renderer(SIZE)
    return rate(lambda: len(draw(state)), seconds)


def rate(work: Callable[[], int], seconds: float) -> float:
    work()
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        done += work()
    return done / (time.perf_counter() - begin)


WORK = {"steps_with_frames": steps_with_frames, "steps_alone": steps_alone, "frames_alone": frames_alone}


def ours(what: str, seconds: float, processes: int) -> float:
    """The sum over processes that run at the same time, one thread each."""
    command = [sys.executable, os.path.abspath(__file__), "--worker", what, "--seconds", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(processes)]
    return sum(float(job.communicate()[0]) for job in jobs)


def peer(python: str, seconds: float) -> float:
    """The faster of its two settings: torch's own choice of threads, and one thread."""
    command = [python, "-c", PEER, NAME, str(ENVIRONMENTS), str(SIZE), str(EPISODE), str(seconds)]
    best = 0.0
    for threads in (None, "1"):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        environment |= {} if threads is None else {"OMP_NUM_THREADS": threads}
        out = subprocess.run(command, capture_output=True, text=True, env=environment)
        if out.returncode:
            raise SystemExit(f"{python} could not run stable-worldmodel; name another with --peer-python.")
        best = max(best, float(out.stdout.split()[-1]))
    return best


def on_device(device: str, seconds: float) -> dict[str, float]:
    """Frames per second and ms per batch of BATCH, eager and compiled, at 224² and 64²."""
    import torch

    from lpwm.worlds import make

    world, results = make("pusht"), {}
    state = world.sample_state(BATCH, (0,)).to(device)
    for size in (SIZE, 64):
        plain = world.renderer(size, device)
        for name, draw in (("eager", plain), ("compiled", torch.compile(plain.__call__))):

            def work(draw: Callable[..., torch.Tensor] = draw) -> int:
                for _ in range(20):
                    draw(state)
                if state.is_cuda:
                    torch.cuda.synchronize()
                return 20 * BATCH

            results[f"{size}_{name}_per_second"] = per_second = rate(work, seconds)
            results[f"{size}_{name}_ms_per_batch"] = 1000 * BATCH / per_second
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that can import stable_worldmodel 0.1.1")
    parser.add_argument("--device", help="draw on this device instead, e.g. cuda")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=list(WORK), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(WORK[args.worker](args.seconds))
        return
    if args.device:
        results = on_device(args.device, args.seconds)
        print(json.dumps(results, indent=1) if args.json else "\n".join(f"{k} {v:,.2f}" for k, v in results.items()))
        return
    cores = len(os.sched_getaffinity(0))
    rows = []
    for _ in range(args.rounds):
        row = {"peer": peer(args.peer_python, args.seconds) if args.peer_python else float("nan")}
        row["load"] = os.getloadavg()[0]
        row |= {what: ours(what, args.seconds, cores) for what in WORK}
        rows.append(row)
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ratio = statistics.median(row["steps_with_frames"] / row["peer"] for row in rows)
    if args.json:
        print(
            json.dumps(
                {"cores": cores, "size": SIZE, "per_second": middle, "ratio_to_peer": ratio, "rounds": rows}, indent=1
            )
        )
        return
    print(f"per second on {cores} cores: " + ", ".join(f"{k} {v:,.0f}" for k, v in middle.items()))
    print(f"with frames {ratio:.1f}× the peer")


if __name__ == "__main__":
    main()
