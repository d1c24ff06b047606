"""One Cube pair: `python results/cube_pair.py OUT [--episodes 512] [--steps 5000] [--seeds 1] [--quick]`.

Data are collected once; LpWM trains on them with temporal-Jaccard weights 0 and 0.1, side by side, while the cores plan
with the true simulator for the controls; then both plan to dataset goals next to doing nothing, random actions and that
oracle, and their supports are inspected: what instability goes with, and how many units are on. Every stage is a
command of lpwm (printed), but the controls, which are kept where `lpwm eval` finds them.

    OUT/results/*.json   what lpwm eval and lpwm interpret wrote: copy them into results/ for its page
    OUT/figures, OUT/logs, OUT/runs (configs and logs, no weights), OUT/stages.json (seconds, frames/s, the machine)

Data, weights and finished episodes stay in --work. The same command continues where it was interrupted. Where drawing
would take longer than --collect-seconds, fewer episodes are collected, and the number is printed and recorded.
`--figures-only` draws OUT/figures again from OUT/results, where matplotlib is at hand.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BEGAN = time.time()
WEIGHTS = {"lpwm": 0.0, "lpwm-tj0.1": 0.1}
GRAIN = 64  # episodes: four shards


def say(text: str) -> None:
    print(f"[{time.time() - BEGAN:6.1f} s] {text}", flush=True)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out", type=Path)
    p.add_argument("--recipe", default="cube-112", help="its methods lpwm and lpwm-tj0.1 are trained")
    p.add_argument("--episodes", type=int, default=512)
    p.add_argument("--length", type=int, default=200, help="raw steps of an episode")
    p.add_argument("--steps", type=int, default=5000, help="training steps")
    p.add_argument("--seeds", type=int, default=1, help="training seeds 1 … N, all side by side")
    p.add_argument("--device", default="cuda")
    p.add_argument("--workers", type=int, default=16)
    p.add_argument(
        "--compile",
        default="graph",
        choices=("graph", "auto", "off"),
        help="auto compiles: about a minute first, then faster steps; worth it from some 10,000 steps on",
    )
    p.add_argument("--goals", type=int, default=50, help="episodes to plan in")
    p.add_argument("--planner-seeds", type=int, default=3)
    p.add_argument("--oracle", default="samples=32 elites=4 iterations=8", help="its CEM; empty leaves it out")
    p.add_argument("--collect-seconds", type=float, default=80.0)
    p.add_argument("--spare", type=float, default=170.0, help="seconds kept for the evaluation: the oracle ends before")
    p.add_argument("--limit", type=float, default=540.0, help="seconds after which what runs is stopped")
    p.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lpwm-cube")
    p.add_argument("--quick", action="store_true", help="cube-small, 16 episodes, 40 steps: whether it all works")
    p.add_argument("--figures-only", action="store_true")
    p.add_argument("--stage", default="", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.quick:
        args.recipe, args.episodes, args.length, args.steps = "cube-small", 16, 60, 40
        args.goals, args.planner_seeds = 4, 1
        args.oracle = "samples=4 elites=2 iterations=1" if args.oracle else ""
    return args


def overrides(args: argparse.Namespace) -> list[str]:
    """What differs from the recipe, as lpwm train takes it."""
    more = ["--data.holdout", "0.5"] if args.quick else []  # 8 held-out episodes: the fewest for an interval
    return ["--data.episodes", str(args.episodes), "--data.steps", str(args.length), *more]


def data_config(args: argparse.Namespace) -> Any:
    from lpwm.cli.train import parse as parse_train

    return parse_train([f"{args.recipe}/lpwm", *overrides(args)])[1].run.data


def eval_options(args: argparse.Namespace) -> list[str]:
    preset, oracle = "quick" if args.quick else "paper", f"oracle --oracle-options {args.oracle}" if args.oracle else ""
    return (
        f"--preset {preset} --goals dataset --episodes {args.goals} --budgets 50 --receding 5 "
        f"--planner-seeds {args.planner_seeds} --controls nothing random {oracle}"
    ).split()


# Stages that run in a process of their own ------------------------------------------------------------------


def stage_draw(args: argparse.Namespace) -> None:
    """How fast frames are drawn, by one process and by all: a line of JSON."""
    from lpwm import worlds
    from lpwm.worlds.cube.draw import CHUNK, backend, painter

    world, size = worlds.make("cube"), data_config(args).frames
    states = world.sample_state(64, (0, "pace"))
    world.render(states[:2], size)
    world.render(states[:CHUNK], size)
    pace = painter().pace
    count = max(32, min(8192, int(2.2 / pace)))
    many = states.repeat(-(-count // 64), 1)[:count]
    world.render(many, size)  # starts the workers
    began = time.perf_counter()
    world.render(many, size)
    together = count / (time.perf_counter() - began)
    rates = {"backend": backend(), "size": size, "alone": 1 / pace, "together": together}
    print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in rates.items()}), flush=True)


def stage_collect(args: argparse.Namespace) -> None:
    """Into the folder where lpwm train looks first."""
    from lpwm.train import prepare_data

    def progress(done: int) -> None:
        say(f"{done} of {args.episodes} episodes")

    data = prepare_data(data_config(args), args.work / "runs" / "data", progress)
    touching = float((data.states[:, -1] > 0).float().mean())
    say(f"{data.episodes} episodes, {len(data.states)} frames, in contact {100 * touching:.1f} %, {data.digest}")


def stage_controls(args: argparse.Namespace) -> None:
    """The controls of the evaluation to come, kept where it looks for them: they need no model, and the GPU is busy."""
    import tyro

    from lpwm.cli.eval import Args, settings
    from lpwm.data import ResidentClips
    from lpwm.evaluate.agent import Agent
    from lpwm.evaluate.episodes import Store
    from lpwm.evaluate.evaluate import Evaluator
    from lpwm.evaluate.goals import episode_sets
    from lpwm.train import prepare_data

    os.nice(5)
    config, data_is = settings(tyro.cli(Args, args=eval_options(args))), data_config(args)
    data, world = prepare_data(data_is, args.work / "runs" / "data"), data_is.build_world()
    clips = ResidentClips(
        data, world=world, clip_length=2, frameskip=data_is.frameskip, batch=1, holdout=data_is.holdout
    )
    nobody = Agent("nobody", None, 0, clips.stats, data_is.frameskip)
    sets = episode_sets(world, config, data, data_is.holdout, data_is.frameskip)
    store = Store((args.work / "runs").resolve() / "episodes")
    runner = Evaluator([nobody], world, config, sets, device=args.device, store=store, workers=max(1, args.workers - 3))
    seeds = {"nothing": 1, "random": config.planner_seeds, "oracle": config.oracle_seeds}
    for name in config.controls:
        for seed in range(seeds[name]):
            record, _ = runner.run(runner.control_job(name, "dataset", 5, 5, seed))
            say(f"{name}, seed {seed}: {100 * record.latched(50).mean():.0f} % within 50 steps")


# The whole --------------------------------------------------------------------------------------------------


class Pair:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.stages: dict[str, Any] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        self.results, self.logs = args.out / "results", args.out / "logs"
        for folder in (self.results, self.logs, args.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.env["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), self.env.get("PYTHONPATH")) if p)

    @property
    def left(self) -> float:
        return max(1.0, self.args.limit - (time.time() - BEGAN))

    def start(self, name: str, words: list[str], show: bool = True) -> subprocess.Popen[bytes]:
        if show:
            say(f"{name}: lpwm {' '.join(words[2:])}" if words[:2] == ["-m", "lpwm"] else f"{name}")
        with (self.logs / f"{name}.out").open("wb") as out, (self.logs / f"{name}.err").open("wb") as err:
            job = subprocess.Popen([sys.executable, *words], env=self.env, stdout=out, stderr=err)
        self.started.append(job)
        return job

    def stage(self, name: str) -> list[str]:
        own = [str(Path(__file__).resolve()), *sys.argv[1:], "--stage", name]
        return [*own, "--episodes", str(self.args.episodes)] if not self.args.quick else own

    def wait(self, jobs: dict[str, subprocess.Popen[bytes]], every: float = 15.0, spare: float = 0.0) -> dict[str, int]:
        """Until all have ended or only `spare` seconds are left; the status of each, and the ends of the logs of those
        that failed."""
        codes: dict[str, int] = {}
        told = time.time()
        while len(codes) < len(jobs):
            time.sleep(0.2)
            for name, job in jobs.items():
                if name not in codes and job.poll() is not None:
                    codes[name] = job.returncode
                    self.stages[name] = {"ended_s": round(time.time() - BEGAN, 1), "status": job.returncode}
                    say(
                        f"{name} ended with {job.returncode}" + ("" if job.returncode == 0 else f":\n{self.tail(name)}")
                    )
            if self.left <= 1 + spare:
                for name, job in jobs.items():
                    if name not in codes:
                        job.kill()
                        job.wait()
                        say(f"{name} is stopped: of {self.args.limit:.0f} s {self.left:.0f} are left")
            elif time.time() - told > every:
                told = time.time()
                say("; ".join(f"{n}: {self.last(n)}" for n in jobs if n not in codes))
        return codes

    def tail(self, name: str) -> str:
        text = "".join((self.logs / f"{name}.{kind}").read_text(errors="replace")[-1500:] for kind in ("out", "err"))
        return text or "(it said nothing)"

    def last(self, name: str) -> str:
        """The last line it said; of training, where it is."""
        if name.startswith("train"):
            with contextlib.suppress(OSError, ValueError, KeyError):  # a line may be half written
                return self.step(*name.split()[1:])
        lines = self.tail(name).replace("\r", "\n").strip().splitlines()
        return lines[-1][:110] if lines else ""

    def step(self, method: str, seed: str) -> str:
        for path in (self.args.work / "runs").glob("*/log.jsonl"):
            run = json.loads((path.parent / "run.json").read_text())
            if (run["name"], run["config"]["train"]["seed"]) == (f"{self.args.recipe}/{method}", int(seed)):
                last = [r for r in map(json.loads, path.read_text().splitlines()) if r["kind"] == "train"][-1:]
                return "".join(f"step {r['step']}, error {r['relative_error']:.3f}" for r in last)
        return "starting"

    # ------------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """What draws here. Where the driver's own description of its EGL does not work, ours is tried."""
        vendor = self.env.get("LPWM_EGL_VENDOR_OWN", "")
        changes = [{}, {"__EGL_VENDOR_LIBRARY_FILENAMES": vendor}, {"MUJOCO_GL": "osmesa"}]
        if "MUJOCO_GL" in os.environ:
            changes.pop()
        for change in (c for c in changes if all(c.values())):
            self.env.update(change)
            if self.wait({"draw": self.start("draw", self.stage("draw"))})["draw"] == 0:
                drawing = json.loads((self.logs / "draw.out").read_text().splitlines()[-1])
                self.stages["drawing"] = drawing
                say(
                    f"{drawing['backend']} draws {drawing['alone']:.0f} frames/s of {drawing['size']}² alone and "
                    f"{drawing['together']:.0f} with all processes"
                )
                return self.fit(drawing["together"])
        raise SystemExit("Cube cannot be drawn here: see the lines above, and lpwm doctor.")

    def fit(self, frames_per_second: float) -> None:
        """As many episodes as there is time for; physics and the expert take 1.5 ms a step and a core.

        Decided once for these arguments: the same command must find its data again.
        """
        a, note = self.args, self.args.work / f"episodes-{self.args.episodes}.txt"
        per_episode = (a.length + 1) * (1 / frames_per_second + 0.002 / a.workers)
        say(f"collecting {a.episodes} episodes takes about {a.episodes * per_episode:.0f} s")
        most = max(GRAIN, int((a.collect_seconds - 8) / per_episode) // GRAIN * GRAIN)
        if a.quick:
            return
        if note.exists():
            most = int(note.read_text())
        elif a.episodes > most:
            say(f"drawing is too slow for that: {most} episodes")
        a.episodes = min(a.episodes, most)
        note.write_text(str(a.episodes))

    def train(self) -> list[str]:
        a, jobs = self.args, {}
        base = ["--out", str(a.work / "runs"), "--device", a.device, "--train.steps", str(a.steps)]
        base += [*overrides(a), "--train.no-stop-dead", "--json"]
        words = {
            f"train {m} {s}": ["-m", "lpwm", "train", f"{a.recipe}/{m}", "--train.seed", str(s), *base]
            for s in range(1, a.seeds + 1)
            for m in WEIGHTS
        }
        for name, command in words.items():
            jobs[name] = self.start(name, [*command, "--train.compile", a.compile])
        controls = self.start("controls", self.stage("controls"))
        codes = self.wait(jobs)
        other = "auto" if a.compile == "graph" else "off"
        again = {n: [*words[n], "--train.compile", other] for n, c in codes.items() if c not in (0, -9)}
        if again:
            say(f"trying again with --train.compile {other}")
            codes |= self.wait({n: self.start(n, command) for n, command in again.items()})
        if self.wait({"controls": controls}, spare=self.args.spare)["controls"] != 0:
            a.oracle = ""  # what is missing of the others is run by lpwm eval
        done = [n for n, c in codes.items() if c == 0]
        return [json.loads((self.logs / f"{n}.out").read_text().splitlines()[-1])["run"] for n in done]

    def read(self, runs: list[str]) -> None:
        a, name = self.args, self.args.recipe
        device = ["--device", a.device]
        reading = ["-m", "lpwm", "interpret", *runs, "--frames", "20000", *device, "--what", "sparsity"]
        contact = ["-m", "results.tool", "contact", *runs, *device]
        evaluation = ["-m", "lpwm", "eval", *runs, *eval_options(a), *device, "--workers", str(min(8, a.workers))]
        self.wait(
            {
                "eval": self.start("eval", [*evaluation, "--out", str(self.results / f"{name}-dataset-goals.json")]),
                "contact": self.start("contact", [*contact, "--out", str(self.results / f"{name}-contact.json")]),
                "sparsity": self.start("sparsity", [*reading, "--out", str(self.results / f"{name}-sparsity.json")]),
            }
        )
        for shown in ("eval", "contact", "sparsity"):
            print((self.logs / f"{shown}.out").read_text(errors="replace")[-6000:], flush=True)

    def keep(self, runs: list[str]) -> None:
        for run in map(Path, runs):
            target = self.args.out / "runs" / run.name
            target.mkdir(parents=True, exist_ok=True)
            for file in ("run.json", "log.jsonl", "training.json"):
                if (run / file).exists():
                    shutil.copyfile(run / file, target / file)
        whole = {
            "kind": "lpwm cube pair",
            "arguments": {k: str(v) for k, v in vars(self.args).items()},
            "seconds": round(time.time() - BEGAN, 1),
            "stages": self.stages,
        }
        (self.args.out / "stages.json").write_text(json.dumps(whole, indent=1) + "\n")

    def run(self) -> int:
        runs: list[str] = []
        try:
            self.draw()
            if self.wait({"collect": self.start("collect", self.stage("collect"))})["collect"] != 0:
                return 1
            say(self.last("collect"))
            runs = self.train()
            if not runs:
                return 1
            self.read(runs)
            figures(self.args)
        finally:
            for job in self.started:
                job.kill()  # those that ended are left alone
            self.keep(runs)
            say(f"done: {', '.join(p.name for p in sorted(self.results.glob('*.json'))) or 'no result'}")
        return 0 if len(list(self.results.glob("*.json"))) == 3 and len(runs) == 2 * self.args.seeds else 1


def figures(args: argparse.Namespace) -> None:
    """Correlations over weights, an example episode, and its raster."""
    name, results = args.recipe, args.out / "results"
    try:
        from lpwm.core.json import read_json
        from lpwm.interpret import results_of
        from lpwm.report.figures import save
        from results.tool import contact_figures

        studies = results_of(read_json(results / f"{name}-contact.json"))
        for path in save(args.out / "figures", contact_figures.figures(studies)):
            say(f"wrote {path}")
    except (ImportError, OSError, ValueError, KeyError) as error:
        say(f"no figures here ({error!r}): draw them elsewhere with --figures-only")


def main() -> int:
    args = parse()
    if args.stage:
        {"draw": stage_draw, "collect": stage_collect, "controls": stage_controls}[args.stage](args)
        return 0
    if args.figures_only:
        figures(args)
        return 0
    return Pair(args).run()


if __name__ == "__main__":
    sys.exit(main())
