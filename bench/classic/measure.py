"""CartPole-v1 and MountainCarContinuous-v0 through `gym:`: collect, train three seeds, plan; the numbers as JSON.

    python bench/classic/measure.py [--seeds 11 12 13] [--episode-seed 0] [--only cartpole] [--json OUT] [--work FOLDER]
    python bench/classic/measure.py --dry-run        (prints the commands, to be run in bench/classic)

Every command is one of `lpwm`'s, run in WORK, which keeps data, runs and what is finished: after an interruption the
same call continues. Settings were chosen with `--seeds 1 --episode-seed 1`. Wrappers and a policy: `classic_envs.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = (
    "--model.latent 128 --model.action-encoder linear --model.predictor.rung shallow-adaln --model.predictor.heads 4 "
    "--model.predictor.head-dim 32 --model.predictor.mlp 256 --model.predictor.head-hidden 256 "
    "--model.predictor.dropout 0 --objective.lam 0.3 --objective.rollout-steps 1 --optim.lr 1e-3 --train.no-stop-dead"
)


@dataclass(frozen=True)
class Case:
    success: str
    collect: str
    train: str
    evaluate: str


CASES = {
    "cartpole": Case(
        "within 0.1 of the goal in x and angle (root of the sum of squares) at the end; starts and goals as the "
        "environment begins",
        "gym:CartPole-v1 --wrapper classic_envs:Close --options goal_steps=0 --episodes 1500",
        "--data.frameskip 2 --train.steps 1000",
        "--goals random --budgets 20 30 40 60 --horizon 6 --path-discount 1 --controls random",
    ),
    "mountain_car": Case(
        "within 0.05 of the goal's position at the end; goals 12 blocks of five steps ahead in a held-out episode",
        "gym:MountainCarContinuous-v0 --wrapper classic_envs:Repeat --policy classic_envs:swing --episodes 300 "
        "--steps 50",
        "--data.frameskip 1 --train.steps 1000",
        "--goals dataset --offset 12 --budgets 12 --horizon 12 --arrive --controls nothing random",
    ),
}


def lines(name: str, seeds: list[int], episodes: int, episode_seed: int) -> list[str]:
    """The commands of a case: one that collects, one per seed that trains, one that plans with all of them."""
    case, result = CASES[name], f"{name}-{'-'.join(map(str, seeds))}-{episode_seed}.json"
    train = f"lpwm train piecewise-2x2-small/lpwm --data.file {name}.h5 {case.train} {MODEL} --plugin classic_envs"
    return [
        f"lpwm collect {case.collect} --size 32 --out {name}.h5 --json",
        *(f"{train} --train.seed {seed} --name {name} --out {name}-{seed}" for seed in seeds),
        f"lpwm eval {' '.join(f'{name}-{seed}/{name}-*' for seed in seeds)} --preset quick {case.evaluate} "
        f"--episodes {episodes} --seed {episode_seed} --receding 1 --solver-options iterations=4 --frames 0 "
        f"--plugin classic_envs --out {result}",
    ]


def run(line: str, work: Path) -> dict:
    """Run a command in `work` unless it is in its ledger: the last line it printed and its CPU seconds."""
    ledger = work / "ledger.json"
    finished = json.loads(ledger.read_text()) if ledger.exists() else {}
    if line not in finished:
        each = ([str(p) for p in sorted(work.glob(w))] if "*" in w else [w] for w in shlex.split(line)[1:])
        words = [word for several in each for word in several]
        paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "lpwm", *words]
        done = subprocess.run(command, cwd=work, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        finished[line] = {"printed": (done.stdout.strip().splitlines() or [""])[-1], "cpu_s": round(cpu, 1)}
        ledger.write_text(json.dumps(finished, indent=1))
    return finished[line]


def measure(name: str, seeds: list[int], episodes: int, episode_seed: int, work: Path) -> dict:
    from lpwm.evaluate.results import Evaluation

    commands = lines(name, seeds, episodes, episode_seed)
    collected, *trained, _ = [run(line, work) for line in commands]
    data = json.loads(collected["printed"])
    (cell,) = Evaluation.read(work / shlex.split(commands[-1])[-1]).cells
    rates = {}
    for row in cell.rows:
        at = {b: [round(100 * r, 1) for r in row.at(b).rate_per_seed["terminal"]] for b in cell.budgets}
        rates["model" if not row.control else row.name] = at if not row.control else {b: r[0] for b, r in at.items()}
    return {
        "success": CASES[name].success,
        "commands": commands,
        "data": {"episodes": data["episodes"], "steps": data["steps"]},
        "seeds": seeds,
        "train_cpu_s": [one["cpu_s"] for one in trained],
        "episodes": episodes,
        "episode_seed": episode_seed,
        "at_the_end_percent": rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--episode-seed", type=int, default=0)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--work", type=Path, default=Path("classic"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    settings = args.seeds, args.episodes, args.episode_seed
    if args.dry_run:
        print("\n".join(line for name in args.only for line in lines(name, *settings)))
        return
    args.work.mkdir(parents=True, exist_ok=True)
    results = {name: measure(name, *settings, args.work) for name in args.only}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    for name, result in results.items():
        print(name, json.dumps(result["at_the_end_percent"]))


if __name__ == "__main__":
    main()
