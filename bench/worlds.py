"""Environment steps per second with 224² frames, compared with stable-worldmodel's own pool.

    python bench/worlds.py --peer-python PATH_TO_A_PYTHON_WITH_STABLE_WORLDMODEL [--json]

Every round measures the peer (its World: 10 environments, frames in `infos`; the better of torch's own choice of
threads and one thread), then ours, one after the other on the same machine, and gives their ratio; the median
over rounds is reported with all of them next to it. Ours is measured three ways: one process with the peer's 10
environments through gymnasium's interface, the same in one process per core (which is how `lpwm collect` works),
and 64² frames drawn for training in batches of 256, for which the peer has no counterpart.
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

ENVIRONMENTS, SIZE, EPISODE = 10, 224, 100
NAMES = {"piecewise": ("lpwm/Piecewise-v0", "swm/Piecewise-v0"), "two_room": ("lpwm/TwoRoom-v0", "swm/TwoRoom-v1")}

PEER = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import stable_worldmodel as swm
from stable_worldmodel.policy import RandomPolicy
name, count, size, episode, seconds = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
world = swm.World(name, num_envs=count, image_shape=(size, size), max_episode_steps=10**9)
policy = RandomPolicy(seed=0)
world.set_policy(policy)
world.reset(seed=0)
assert world.infos["pixels"].shape == (count, 1, size, size, 3), world.infos["pixels"].shape

def run(seconds):
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if steps % episode == 0:
            world.reset()
        *_, world.infos = world.envs.step(policy.get_action(world.infos))
        steps += 1
    return count * steps / (time.perf_counter() - begin)

run(0.5)
print(run(seconds))
"""


def steps_with_frames(name: str, seconds: float) -> float:
    """Environment steps per second of our batched environment, each with its frame."""
    import gymnasium

    import lpwm.worlds.gymnasium  # noqa: F401  (registers the names)

    env = gymnasium.make_vec(NAMES[name][0], num_envs=ENVIRONMENTS, render_mode="rgb_array", size=SIZE)
    env.action_space.seed(0)

    def episode() -> int:
        env.reset()
        for _ in range(EPISODE):
            env.step(env.action_space.sample())
            frames = env.unwrapped.frames()  # type: ignore[attr-defined]
            assert frames.shape == (ENVIRONMENTS, SIZE, SIZE, 3)
        return ENVIRONMENTS * EPISODE

    return rate(episode, seconds)


def frames_64(name: str, seconds: float) -> float:
    from lpwm.worlds import make

    world = make(name)
    state, draw = world.sample_state(256, (0,)), world.renderer(64)
    return rate(lambda: len(draw(state)), seconds)


def rate(work: Callable[[], int], seconds: float) -> float:
    warm = time.perf_counter()
    while time.perf_counter() - warm < 0.5:
        work()
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        done += work()
    return done / (time.perf_counter() - begin)


def ours(what: str, name: str, seconds: float, processes: int) -> float:
    """The sum over processes that run at the same time, one thread each."""
    command = [sys.executable, os.path.abspath(__file__), "--worker", what, name, "--seconds", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(processes)]
    return sum(float(job.communicate()[0]) for job in jobs)


def peer(python: str, name: str, seconds: float) -> float:
    """The faster of its two settings: torch's own choice of threads, and one thread."""
    command = [python, "-c", PEER, NAMES[name][1], str(ENVIRONMENTS), str(SIZE), str(EPISODE), str(seconds)]
    best = 0.0
    for extra in ({}, {"OMP_NUM_THREADS": "1"}):
        out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **extra})
        if out.returncode:
            raise SystemExit(f"{python} could not run stable-worldmodel; name another with --peer-python.")
        best = max(best, float(out.stdout.split()[-1]))
    return best


def compare(name: str, python: str | None, seconds: float, rounds: int, cores: int) -> dict[str, object]:
    rows = []
    for _ in range(rounds):
        row = {"peer": peer(python, name, seconds) if python else float("nan")}
        row["one_process"] = ours("steps", name, seconds, 1)
        row["all_cores"] = ours("steps", name, seconds, cores)
        row["frames_64_all_cores"] = ours("frames", name, seconds, cores)
        rows.append(row)
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ratio = {key: statistics.median(row[key] / row["peer"] for row in rows) for key in ("one_process", "all_cores")}
    return {"per_second": middle, "ratio_to_peer": ratio if python else None, "rounds": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that can import stable_worldmodel 0.1.1")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        what, name = args.worker
        print((steps_with_frames if what == "steps" else frames_64)(name, args.seconds))
        return
    cores = len(os.sched_getaffinity(0))
    result = {name: compare(name, args.peer_python, args.seconds, args.rounds, cores) for name in NAMES}
    if args.json:
        print(json.dumps({"cores": cores, "environments": ENVIRONMENTS, "size": SIZE, "worlds": result}, indent=1))
        return
    for name, row in result.items():
        figures = ", ".join(f"{key} {value:,.0f}" for key, value in row["per_second"].items())  # type: ignore[attr-defined]
        print(f"{name}: per second {figures}")
        if row["ratio_to_peer"]:
            print("  " + ", ".join(f"{k} {v:.1f}× the peer" for k, v in row["ratio_to_peer"].items()))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
