"""`lpwm eval RUN…`: plan to goals in the run's world, compared with three controls."""

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError
from lpwm.evaluate.config import EvalConfig, preset

if TYPE_CHECKING:
    import torch

    from lpwm.evaluate.evaluate import Evaluator
    from lpwm.evaluate.results import Evaluation
    from lpwm.evaluate.runs import Team


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders. Runs that differ only in their training seed are one method."""
    preset: str = "paper"
    """Of the options below: paper, quick, ladder (closed loop), open (one plan), horizons (H = 1…10) or path."""
    goals: tuple[str, ...] | None = None  # random: anywhere; dataset: ahead in a held-out trajectory.
    episodes: int | None = None  # Episodes of each kind of goals.
    offset: int | None = None  # Raw steps from start to goal, for dataset goals.
    seed: int | None = None  # Which episodes; the planner has seeds of its own.
    budgets: tuple[int, ...] | None = None  # Raw steps at which success is tested, all from one run to the largest.
    horizon: tuple[int, ...] | None = None  # Blocks planned ahead; several make a sweep.
    receding: tuple[int, ...] | None = None  # Blocks executed of each plan; 0 is the whole horizon.
    cold: bool = False  # Start every plan from zero instead of the tail of the last one.
    context: int | None = None
    """Real frames a plan starts from; 0 is the model's own history, 1 the current frame alone."""
    path_discount: float | None = None
    """The path cost: block h of H counts as path_discount^(H-h). 0: the end of a plan alone; 1: all blocks alike."""
    arrive: bool = False
    """No plan reaches beyond the last budget, so that the goal is reached at the end of the episode."""
    test: Literal["step", "plan"] | None = None
    """When success counts: after each raw step, or after each executed plan."""
    planner_seeds: int | None = None  # Each plans all episodes anew.
    solver: str | None = None  # cem, icem, mppi, gradient or lqr.
    solver_options: tuple[str, ...] = ()
    """Options of the solver, e.g. --solver-options samples=300 elites=30 iterations=30."""
    controls: tuple[str, ...] | None = None  # Of nothing, random and oracle.
    oracle_options: tuple[str, ...] = ()
    """What the oracle's solver does differently, e.g. --oracle-options samples=64 iterations=10."""
    workers: int | None = None
    """Processes for live simulators; without it, one per core for the oracle. Nothing depends on it."""
    options: tuple[str, ...] = ()
    """Options of the runs' world that are to differ, e.g. when a goal counts as reached: --options within=0.2."""
    precision: Literal["float32", "bfloat16"] | None = None  # In which candidate plans are scored.
    checkpoint: Literal["latest", "best"] = "latest"  # Which checkpoint of each run.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the planner (CUDA alone). auto: if planning is predicted to take more than twice as long as compiling."""
    out: Path | None = None  # The JSON to write; without it, eval/HASH.json in the first run's folder.
    frames: int = 3  # Write frames of this many episodes for lpwm report, with what the model imagined; 0 for none.
    gif: int = 0  # Draw this many episodes of each method and kind of goals, next to the JSON.
    video: int = 0  # As --gif, and each of them as mp4 too; needs the extra `video`.
    repeat: Path | None = None
    """Repeat an earlier JSON with its own settings (and runs, unless given) and say whether it comes out the same."""
    cache: Path | None = None
    """Where finished episodes are kept; without it, the folder `episodes` next to the first run."""
    fresh: bool = False  # Run everything anew, whatever is kept.
    overwrite: bool = False  # Replace files that lpwm did not make.
    json: bool = False  # Print the JSON instead of the table.


# Fields of EvalConfig that are options of the same name; None: not given.
GIVEN = tuple(f.name for f in fields(EvalConfig) if getattr(Args, f.name, False) is None)


def defaults(words: list[str], prog: str) -> tuple[Args, str]:
    """The preset's values in the places of None, for help."""
    config, usual = preset(Args.preset), Args()
    values = {f.name: getattr(config, "horizons" if f.name == "horizon" else f.name, None) for f in fields(usual)}
    return replace(usual, **{k: v for k, v in values.items() if v is not None and getattr(usual, k) is None}), prog


def settings(args: Args) -> EvalConfig:
    """The preset with what was given on the command line."""
    from lpwm.train import parse_options

    config = preset(args.preset)
    given: dict[str, Any] = {name: getattr(args, name) for name in GIVEN if getattr(args, name) is not None}
    if args.horizon is not None:
        given["horizons"] = args.horizon
        if args.receding is None and len(args.horizon) == 1:  # the preset's R, as far as it fits
            given["receding"] = tuple(r for r in config.receding if r <= args.horizon[0]) or (0,)
    given |= {"warm": config.warm and not args.cold, "arrive": args.arrive}
    if args.solver is not None and args.solver != config.solver:
        given["options"] = {}
    if args.solver_options:
        given["options"] = {**given.get("options", config.options), **parse_options(args.solver_options)}
    if args.oracle_options:
        given["oracle_options"] = parse_options(args.oracle_options)
    most, longest = max(args.receding or (0,)), max(config.horizons)
    if args.horizon is None and most > longest:
        raise UserError(f"{most} blocks are to be executed of plans of {longest}: lengthen --horizon or execute fewer.")
    return replace(config, **given)


def _check(args: Args) -> None:
    from lpwm.data.frames.video import decoder

    for name, count in (("gif", args.gif), ("video", args.video), ("frames", args.frames)):
        if count < 0:
            raise UserError(f"--{name} {count}: give the number of episodes to draw.")
    if args.video:
        decoder()  # refused before anything is planned


def _check_repeat(team: "Team", earlier: "Evaluation") -> None:
    """A repetition needs the same weights."""
    before = {r.weights for r in earlier.runs}
    for agent in team.agents:
        if agent.weights not in before:
            other = f"{agent.path} is not the checkpoint that was evaluated (step {agent.step})"
            raise UserError(f"{other}: restore it, or evaluate without --repeat.")
    if any(r.vote for r in earlier.runs):
        raise UserError("lpwm 0.1.0 let runs vote there, which this version does not: evaluate without --repeat.")
    if "image" in earlier.episode_sets:
        raise UserError("lpwm 0.1.0 planned to a picture there: lpwm.load(RUN).reset(goal=picture) does so now.")


def run(args: Args) -> int:
    from lpwm.cli.collect import progress_bar, stoppable
    from lpwm.core.files import check_output
    from lpwm.evaluate.episodes import Store
    from lpwm.evaluate.evaluate import Evaluator
    from lpwm.evaluate.evaluate import run as run_evaluator
    from lpwm.evaluate.goals import episode_sets
    from lpwm.evaluate.results import Evaluation
    from lpwm.evaluate.runs import NoWorld, load_team
    from lpwm.train import parse_options, pick_device

    _check(args)
    earlier = None if args.repeat is None else Evaluation.read(args.repeat)
    config = settings(args) if earlier is None else earlier.settings
    before = earlier.runs if earlier is not None else ()
    paths = args.runs or tuple(Path(r.path) for r in before if r.path)
    if not paths:
        raise UserError("there is nothing to evaluate: give at least one run folder.")
    folder = args.cache or paths[0].resolve().parent / "episodes"
    for path in (args.out or paths[0] / "eval" / "HASH.json", folder / "HASH.npz"):  # before anything is planned
        check_output(path, args.overwrite)
    device, options = pick_device(args.device), parse_options(args.options)
    how: dict[str, Any] = {"device": device, "checkpoint": args.checkpoint, "options": options}
    try:
        team = load_team(paths, data="dataset" in config.goals, **how)
    except NoWorld:
        return recorded(args, config, paths, device)
    if earlier is not None:
        _check_repeat(team, earlier)
    store = Store(folder, fresh=args.fresh or earlier is not None)
    sets = episode_sets(team.world, config, team.data, team.holdout, max(a.frameskip for a in team.agents))
    how = {"compile": args.compile == "yes", "either": args.compile == "auto", "workers": args.workers}
    how |= {"device": device, "store": store}
    runner = Evaluator(team.agents, team.world, config, sets, **how)
    predicted = announce(args, runner)
    again = f"kept in {folder}: the same command goes on from there."
    plans = sum(job.plans for job in runner.jobs())
    with stoppable(lambda: f"{kept(runner)} {again}"), progress_bar("plans", plans) as runner.progress:
        result = run_evaluator(runner, team.holdout, predicted)
    return report(args, result, Path(paths[0]), earlier)


def recorded(args: Args, config: EvalConfig, paths: tuple[Path, ...], device: "torch.device") -> int:
    """Runs without a world, on their held-out recordings."""
    from lpwm.core.json import dump_json
    from lpwm.interpret.recorded import evaluate_recorded

    for name in ("repeat", "gif", "video"):
        if getattr(args, name):
            raise UserError(f"--{name} needs a world, and {paths[0]} was trained on recordings alone: leave it out.")
    result, path = evaluate_recorded(paths, config, device=device, checkpoint=args.checkpoint)
    out = args.out or path
    result.to_json(out)
    tell(f"wrote {out}")
    say(dump_json(result).rstrip() if args.json else result.table())
    return 0


def announce(args: Args, runner: "Evaluator") -> float:
    """Say how long it will take, and settle whether to compile."""
    from lpwm.evaluate.timing import COMPILE, GAIN, compilations, times, worth_compiling
    from lpwm.train.progress import duration

    (models, rest), cost = times(runner), 0.0
    if args.compile == "auto" and worth_compiling(runner, models):
        runner.compile = True
    if runner.compile and runner.device.type == "cuda":
        cost = COMPILE * compilations(runner)
        models /= GAIN
    note = "" if kept(runner).startswith("0 ") else f", {kept(runner)} kept from before"
    note += f", about {duration(cost)} of it compiling" if cost else ""
    tell(f"predicted time: about {duration(models + rest + cost)} on {runner.device}{note}")
    return models + rest + cost


def kept(runner: "Evaluator") -> str:
    jobs = runner.jobs()
    return f"{sum(runner.stored(job) for job in jobs)} of {len(jobs)} runs of the episodes are"


def report(args: Args, result: "Evaluation", first: Path, earlier: "Evaluation | None") -> int:
    """Write, draw, print; the exit status is 1 when a repetition came out differently."""
    from lpwm.core.json import dump_json
    from lpwm.evaluate.results import Repetition, differences
    from lpwm.interpret.episode_frames import write_frames
    from lpwm.train import pick_device
    from lpwm.train.progress import duration

    out = args.out or first / "eval" / f"{result.digest}.json"
    different = None
    if earlier is not None:
        different = differences(earlier, result)
        result = replace(result, repeats=Repetition(str(args.repeat), tuple(different)))
    if earlier is None or args.out is not None:
        result.to_json(out)
        tell(f"wrote {out}")
        if args.frames:
            tell("drawing frames for the report, with a decoder fitted to each model (--frames 0: none)")
        folder = write_frames(result, out, args.frames, device=pick_device(args.device), checkpoint=args.checkpoint)
        if folder is not None:
            tell(f"wrote {folder}")
    for count, ending in ((max(args.gif, args.video), "gif"), (args.video, "mp4")):
        for path in draw(result, count, out.with_suffix(""), ending):
            tell(f"wrote {path}")
    if args.json:
        say(dump_json(result), end="")
    else:
        guess = "" if result.predicted_s is None else f"; predicted {duration(result.predicted_s)}"
        say(f"{result.table()}\n\ntook {duration(result.wall_s)} on {result.device}{guess}")
    if different:
        tell(f"lpwm: it came out differently: {'; '.join(different[:5])}.")
        return 1
    if different is not None and not args.json:
        say(f"every outcome is that of {args.repeat}")
    return 0


def draw(result: "Evaluation", count: int, stem: Path, ending: str) -> list[Path]:
    """The first `count` episodes of every method in every cell, first training and planner seed."""
    from lpwm.evaluate.gif import episode_gif

    paths = []
    for cell, records in zip(result.cells, result.played.records, strict=True) if count else ():
        episodes = result.played.sets[cell.goals]
        for row in cell.methods:
            who = re.sub(r"[^\w.-]+", "-", row.name)
            for i in range(min(count, len(episodes))):
                name = f"{cell.goals}-H{cell.horizon}-R{cell.receding}-{who}-{i}.{ending}"
                path = stem.parent / f"{stem.name}-{ending}" / name
                paths.append(episode_gif(path, result.played.world, episodes, records[row.name][0][0], i))
    return paths
