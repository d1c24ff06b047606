"""lpwm demo: from nothing to a page in minutes: collect, train sparse and dense, plan, inspect the codes, report."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError
from lpwm.evaluate.config import EvalConfig
from lpwm.recipes import recipe
from lpwm.report import palette
from lpwm.train.progress import LEGEND
from lpwm.train.run_config import pick_device

if TYPE_CHECKING:
    from lpwm.evaluate.results import Evaluation
    from lpwm.interpret.results import Study
    from lpwm.train.run import Run

METHODS = {name: palette.called(name, name == "lpwm") for name in ("lpwm", "lewm")}

# Reduced so that two cores finish in minutes: fewer candidates than the paper's 300 × 30, one planner seed.
PLANNING = EvalConfig(
    episodes=100,
    budgets=(50,),
    receding=(5,),
    planner_seeds=1,
    options={"samples": 128, "elites": 16, "iterations": 10},
)

LEGEND_OF_TABLE = """
goals reached within 50 steps, 95 % intervals over episodes of one seed
error/copy  of predicting the next code, and of copying the last
active      share of units that are on, on held-out frames
zone, R²    the zone told from which units are on; position from the code"""


@dataclass(frozen=True)
class Args:
    out: Path | None = None
    """Where everything goes (runs/demo, or runs/demo-pretrained); a demo that is there is continued, stage by stage."""
    pretrained: bool = False
    """Start from the pair of models in the package instead of training: planning, inspecting and the page at once."""
    seed: int = 1  # Training seed; the episodes it is judged on do not depend on it.
    fresh: bool = False  # Start over.
    device: str = "auto"  # auto, cpu, cuda or cuda:N.
    json: bool = False  # Print the table as JSON.


class Stages:
    """Says what is happening, and how long it took."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.began, self.count = quiet, time.monotonic(), 0

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        self.count += 1
        self.say(f"[{self.count}] {what} …")
        start = time.monotonic()
        yield
        self.say(f"    done in {time.monotonic() - start:.0f} s")

    def say(self, text: str) -> None:
        if not self.quiet:
            tell(text)


def run(args: Args) -> int:
    from lpwm.interpret.episode_frames import write_frames
    from lpwm.report.gather import gather
    from lpwm.report.page import write
    from lpwm.train.loop import Interrupted
    from lpwm.train.pretrained import unpack
    from lpwm.train.run import Run

    device = pick_device(args.device)
    out = prepare(args)
    stages = Stages(args.json)
    what = "LpWM demo: two small world models of the Piecewise world,"
    if args.pretrained:
        stages.say(f"{what} trained before.")
        with stages.stage("unpack both models, and collect their data anew"):
            jobs = {method: Run.open(unpack(method, out)) for method in METHODS}
    else:
        minutes = "about a minute" if device.type == "cuda" else "about two minutes on two cores"
        stages.say(f"{what} {minutes}. Ctrl-C stops; the same command continues.")
        try:
            jobs = trained(args, out, device, stages)
        except Interrupted:
            stages.say("interrupted; the same command continues.")
            return 130
    folders = [job.folder for job in jobs.values()]
    goals = f"plan to {PLANNING.episodes} random and as many held-out goals, next to the controls"
    with stages.stage(f"{goals}; inspect codes and imagination"):
        with aside(inspect, folders, device):
            evaluation, path = plan(out, folders, device)
            inspect(folders[-1], device, imagine=False)  # what the other process comes to last
        studies = [inspect(folder, device) for folder in folders]
        if not path.exists():  # by which a repetition finds all of it
            write_frames(evaluation, path, 4, device=device)
            evaluation.to_json(path)
    page = out / "report.html"
    with stages.stage("write the page"):
        command = "lpwm demo --pretrained" if args.pretrained else "lpwm demo"
        write(page, gather(folders), title="LpWM demo: sparse and dense", commands=(command,))
    rows, spent = table(list(jobs.values()), evaluation, studies), time.monotonic() - stages.began
    if args.json:
        say(json.dumps({"seconds": round(spent, 1), "page": str(page), "rows": rows}, indent=2))
    else:
        say(text(rows, shutil.get_terminal_size((100, 24)).columns))
        say(f"{LEGEND_OF_TABLE}\n\n{spent:.0f} s in all. Open {page} in a browser.")
    return 0


def prepare(args: Args) -> Path:
    """The folder of this demo, refused where it holds something else."""
    from lpwm.core.files import make_folder, write_whole
    from lpwm.core.json import Reader, read_json

    if args.pretrained and args.seed != Args.seed:
        raise UserError("--seed says what is trained, and --pretrained trains nothing: leave one of them out.")
    out = args.out or Path("runs/demo-pretrained" if args.pretrained else "runs/demo")
    record = out / "demo.json"
    if args.fresh and out.exists():
        if not record.exists():
            raise UserError(f"{out} was not made by lpwm demo, so --fresh will not remove it: choose another --out.")
        shutil.rmtree(out)
    if record.exists():
        before = Reader(read_json(record), str(record)).get("pretrained", bool, False)
        if before != args.pretrained:  # both would use the same folders
            kind = f"{'with' if before else 'without'} --pretrained"
            raise UserError(f"{out} holds a demo {kind}: choose another --out, or --fresh to start over.")
    make_folder(out)
    write_whole(record, json.dumps({"seed": args.seed, "pretrained": args.pretrained}) + "\n")
    return out


def trained(args: Args, out: Path, device: Any, stages: Stages) -> "dict[str, Run]":
    """Both models at once where there are two cores: one thread each, so that the numbers do not depend on cores."""
    from lpwm.train.run import Run

    jobs = {}
    for method in METHODS:
        config = recipe(f"piecewise-2x2-demo/{method}")
        jobs[method] = Run.create(replace(config, train=replace(config.train, seed=args.seed)), out, method)
    first, *others = jobs.values()
    steps = first.config.train.steps
    with stages.stage(f"train {' and '.join(METHODS.values())} from pixels, {steps} steps each; progress of the first"):
        stages.say(LEGEND)
        with aside(_train, [job.folder for job in others], device):
            first.train(device, console=not args.json, report=stages.say)
        for job in others:  # what is trained by now is left as it is
            job.train(device, console=not args.json, report=stages.say)
    return jobs


def _train(folder: Path, device: Any) -> None:
    from lpwm.train.loop import Interrupted
    from lpwm.train.run import Run

    with suppress(Interrupted):
        Run.open(folder).train(device, console=False)


@contextmanager
def aside(work: Callable[[Path, Any], Any], folders: list[Path], device: Any) -> Iterator[None]:
    """Work in a process of its own meanwhile, one core each. It leaves files, and what is missing is made later."""
    import torch

    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_alone, args=(work, folders, device))
    torch.set_num_threads(1)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is the parent's while the child starts
    process.start()
    signal.signal(signal.SIGINT, before)
    try:
        yield
        process.join()
    except BaseException:
        process.join(10)  # Ctrl-C reached it too, and training writes a checkpoint
        while process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGINT)
            process.join(10)
        raise
    finally:
        torch.set_num_threads(threads)


def _alone(work: Callable[[Path, Any], Any], folders: list[Path], device: Any) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt, UserError):  # the parent tries again, and says what is wrong
        for folder in folders:
            work(folder, device)


def plan(out: Path, folders: list[Path], device: Any) -> "tuple[Evaluation, Path]":
    """The evaluation of both models on the same episodes, found again if it was made before, and where it is kept."""
    from lpwm.cli.collect import progress_bar
    from lpwm.core.config import digest, to_dict
    from lpwm.evaluate.episodes import Store
    from lpwm.evaluate.evaluate import Evaluator
    from lpwm.evaluate.evaluate import run as run_evaluator
    from lpwm.evaluate.goals import episode_sets
    from lpwm.evaluate.results import Evaluation
    from lpwm.evaluate.runs import load_team

    team = load_team(folders, device=device)
    made_of = [[a.run_hash, a.step] for a in team.agents]
    path = folders[0] / "eval" / f"demo-{digest({'runs': made_of, 'settings': to_dict(PLANNING)})}.json"
    if path.exists():
        return Evaluation.read(path), path
    sets = episode_sets(team.world, PLANNING, team.data, team.holdout, max(a.frameskip for a in team.agents))
    runner = Evaluator(team.agents, team.world, PLANNING, sets, device=device, store=Store(out / "episodes"))
    with progress_bar("plans", sum(job.plans for job in runner.jobs())) as runner.progress:
        return run_evaluator(runner, team.holdout), path


def inspect(folder: Path, device: Any, imagine: bool = True) -> "Study":
    """The study of a run and what it imagines, each found again if it was made before."""
    from lpwm.core.files import make_folder, write_whole
    from lpwm.core.json import dump_json, read_json
    from lpwm.interpret.decode import imagination_study
    from lpwm.interpret.results import Study
    from lpwm.interpret.study import study
    from lpwm.train.loaded import load

    loaded, where = load(folder, device=device), folder / "interpret"
    path, imagined = where / f"demo-{loaded.step}.json", where / f"imagination-{loaded.step}.json"
    make_folder(where)
    if imagine and not imagined.exists():
        write_whole(imagined, dump_json(imagination_study(loaded, where)))
    if path.exists():
        return Study.from_json(read_json(path), str(path))
    result = study(loaded)
    write_whole(path, dump_json(result))
    return result


def table(jobs: "list[Run]", evaluation: "Evaluation", studies: "list[Study]") -> list[dict[str, Any]]:
    """One row per model and control: success with its interval, and what the code tells."""
    from lpwm.core.json import to_json

    rows: dict[str, dict[str, Any]] = {}
    for cell in evaluation.cells:
        for row in cell.rows:
            outcome = row.at(PLANNING.budgets[0])
            record = rows.setdefault(row.name, {"name": row.name, "control": row.control})
            record[cell.goals] = {"latched": to_json(outcome.latched), "terminal": to_json(outcome.terminal)}
    for job, study in zip(jobs, studies, strict=True):
        name = next(n for n in rows if n.split()[0] == job.folder.name.removesuffix(f"-{job.hash}"))
        result = job.result()
        rows[name] |= {
            "title": METHODS[name.split()[0]],
            "relative_error": result.held_out.by_depth("error_depth")[0],
            "copy_error": result.held_out.by_depth("copy_error_depth")[0],
            "active_fraction": study.supports.active_fraction,
            "zone_from_support": to_json(study.probes.zone["support"]),
            "position_from_code": to_json(study.probes.position["code"]),
        }
    return list(rows.values())


def text(rows: list[dict[str, Any]], width: int) -> str:
    """The table, wide or as a list where the terminal is narrow."""
    from lpwm.interpret.compare import columns

    def percent(x: dict[str, Any]) -> str:
        return f"{100 * x['rate']:.0f} % [{100 * x['low']:.0f}, {100 * x['high']:.0f}]"

    lines = []
    for row in rows:
        name = row.get("title", row["name"])
        facts = {f"{kind} goals": percent(row[kind]["latched"]) for kind in ("random", "dataset") if kind in row}
        if "relative_error" in row:
            facts["error/copy"] = "/".join(f"{row[name]:.3f}".lstrip("0") for name in ("relative_error", "copy_error"))
            facts["active"] = f"{row['active_fraction']:.2f}"
            facts["zone"] = f"{100 * row['zone_from_support']['estimate']:.0f} %"
            facts["R²"] = f"{row['position_from_code']['estimate']:.2f}"
        lines.append((name, facts))
    heads = list(dict.fromkeys(h for _, facts in lines for h in facts))
    wide = columns(["", *heads], [[name, *(facts.get(h, "") for h in heads)] for name, facts in lines], width=400)
    if max(map(len, wide.splitlines())) <= width:
        return wide
    return "\n".join(f"{name}\n" + "\n".join(f"  {h}: {v}" for h, v in facts.items()) for name, facts in lines)
