"""Planned to pictures and to wanted values of factors: success of both on the same episodes.

    python bench/goal_kinds.py RUN [--factors agent_x agent_y block_x block_y angle] [--goals dataset] [--episodes 50]
                                   [--steps 50] [--device auto] [--json OUT]

    lpwm train pusht-small/mlp-lti/lpwm --name pusht         (a run that plans; needs a GPU)
    python bench/goal_kinds.py runs/pusht-* --factors agent_x agent_y block_x block_y angle --json goal_kinds.json

The agent of RUN acts with the preset's planner, once towards the picture of each goal state and once towards the goal
state's factors, as the run's linear probes tell them (`lpwm interpret --what factors RUN`, fitted here if missing).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import lpwm
from lpwm.core.errors import UserError
from lpwm.evaluate.goals import dataset_goals, random_goals
from lpwm.interpret.factors import fit_factors, load_factors
from lpwm.train.loaded import load
from lpwm.train.run_config import pick_device
from lpwm.worlds import SimWorld


def play(agent: lpwm.Agent, world, start_BS, goal_BS, steps: int) -> tuple[list[bool], list[bool]]:
    """Whether each episode was at its goal at some step, and at the last."""
    live = world.open(start_BS, None) if isinstance(world, SimWorld) else None
    state, done = start_BS, world.success(start_BS, goal_BS)
    try:
        for t in range(steps):
            if t % agent.frameskip == 0:
                frames = world.render(state, agent.image_size).permute(0, 2, 3, 1)
            action = torch.from_numpy(agent.act(frames))
            state = world.step(state, action) if live is None else live.step(action)
            done = done | world.success(state, goal_BS)
    finally:
        if live is not None:
            live.close()
    return done.tolist(), world.success(state, goal_BS).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--factors", nargs="*", help="all entries of the state that the probes know, unless given")
    parser.add_argument("--goals", choices=["dataset", "random"], default="dataset")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--receding", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = pick_device(args.device)
    run = load(args.run, device=device)
    try:
        factors = load_factors(args.run, run.step)
    except UserError:
        factors = fit_factors(run)
    world = run.world
    if args.goals == "dataset":
        episodes = dataset_goals(run.episodes(), args.episodes, holdout=run.holdout)
    else:
        episodes = random_goals(world, args.episodes)
    start, goal = episodes.start_BS, episodes.goal_BS
    known = dict(zip(run.spec.state_names, goal.unbind(1), strict=True))
    r2 = {score.name: score.r2 for score in factors.scores}
    names = args.factors or [n for n in known if r2.get(n, 0) > 0.5]
    wanted = [{n: float(known[n][i]) for n in names} for i in range(len(goal))]
    size = run.model.config.encoder.image_size
    rows = []
    for kind, given in (("picture", world.render(goal, size).permute(0, 2, 3, 1)), ("factors", wanted)):
        agent = lpwm.load(args.run, device, preset=args.preset, receding=args.receding)
        agent.reset(goal=given)
        latched, last = play(agent, world, start, goal, args.steps)
        rows.append({"goal": kind, "reached": sum(latched) / len(latched), "at_the_end": sum(last) / len(last)})
        print(f"{kind}: reached {100 * rows[-1]['reached']:.0f} %, at the end {100 * rows[-1]['at_the_end']:.0f} %")
    if args.json:
        about = {"world": run.spec.name, "goals": args.goals, "episodes": len(goal), "steps": args.steps}
        settings = {"preset": args.preset, "receding": args.receding, "factors": names, "r2": {n: r2[n] for n in names}}
        args.json.write_text(json.dumps({**about, **settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
