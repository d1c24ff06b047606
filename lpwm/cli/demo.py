"""lpwm demo: from nothing to a page in minutes: collect, train sparse and dense, plan, inspect the codes, report."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpwm.core.errors import UserError
from lpwm.evaluate.config import EvalConfig
from lpwm.recipes import recipe
from lpwm.train.run_config import pick_device

if TYPE_CHECKING:
    from lpwm.evaluate.results import Evaluation
    from lpwm.interpret.results import Study
    from lpwm.train.run import Run

METHODS = {"lpwm": "sparse LpWM", "lewm": "dense LeWM"}

# Reduced so that two cores finish in minutes: fewer candidates than the paper's 300 × 30, one planner seed.
PLANNING = EvalConfig(
    episodes=100,
    budgets=(50,),
    receding=(5,),
    planner_seeds=1,
    options={"samples": 128, "elites": 16, "iterations": 10},
)


@dataclass(frozen=True)
class Args:
    out: Path | None = None
    """Where everything goes (runs/demo, or runs/demo-pretrained); a demo that is there is continued, stage by stage."""
    pretrained: bool = False
    """Start from the pair of models in the package instead of training: planning, inspecting and the page at once."""
    seed: int = 1
    """Training seed; the episodes it is judged on do not depend on it."""
    fresh: bool = False
    """Start over."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    json: bool = False
    """Print the table as JSON."""


class Stages:
    """Says what is happening, how long it will take, and how long it took."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.began, self.count = quiet, time.monotonic(), 0

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        self.count += 1
        self.say(f"[{self.count}] {what} …")
        start = time.monotonic()
        yield
        self.say(f"    done in {time.monotonic() - start:.0f} s")

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def run(args: Args) -> int:
    from lpwm.report.gather import gather
    from lpwm.report.page import write
    from lpwm.train.loop import Interrupted
    from lpwm.train.pretrained import unpack
    from lpwm.train.run import Run

    device = pick_device(args.device)
    out = prepare(args)
    say = Stages(args.json)
    if args.pretrained:
        say.say("LpWM demo: two small world models of the Piecewise world, trained before, well under two minutes.")
        with say.stage("unpack both models, and collect their data anew"):
            jobs = {method: Run.open(unpack(method, out)) for method in METHODS}
    else:
        minutes = "about a minute" if device.type == "cuda" else "about four minutes on two cores"
        say.say(
            f"LpWM demo: two small world models of the Piecewise world, {minutes}. "
            "Ctrl-C stops; the same command continues."
        )
        try:
            jobs = trained(args, out, device, say)
        except Interrupted:
            say.say("interrupted; the same command continues.")
            return 130
    folders = [job.folder for job in jobs.values()]
    with say.stage(f"plan to {PLANNING.episodes} random and {PLANNING.episodes} held-out goals, next to the controls"):
        evaluation = plan(out, folders, device)
    with say.stage("inspect the codes: supports, zones, probes"):
        studies = [inspect(folder, device) for folder in folders]
    page = out / "report.html"
    with say.stage("write the page"):
        command = "lpwm demo --pretrained" if args.pretrained else "lpwm demo"
        write(page, gather(folders), title="LpWM demo: sparse and dense", commands=(command,))
    rows = table(list(jobs.values()), evaluation, studies)
    if args.json:
        print(json.dumps({"seconds": round(say.seconds(), 1), "page": str(page), "rows": rows}, indent=2))
    else:
        print(text(rows, shutil.get_terminal_size((100, 24)).columns))
        print(f"\n{say.seconds():.0f} s in all. Open {page} in a browser.")
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
        before = Reader(read_json(record), str(record)).bool("pretrained", False)
        if before != args.pretrained:  # both would use the same folders
            raise UserError(
                f"{out} holds a demo {'with' if before else 'without'} --pretrained: choose another --out, or --fresh "
                "to start over."
            )
    make_folder(out)
    write_whole(record, json.dumps({"seed": args.seed, "pretrained": args.pretrained}) + "\n")
    return out


def trained(args: Args, out: Path, device: Any, say: Stages) -> dict[str, Run]:
    from lpwm.train.run import Run

    jobs = {}
    for method, title in METHODS.items():
        config = recipe(f"piecewise-2x2-small/{method}")
        config = replace(config, train=replace(config.train, seed=args.seed))
        with say.stage(f"{title}: train from pixels, {config.train.steps} steps"):
            jobs[method] = Run.create(config, out, method)
            jobs[method].train(device, console=not args.json, report=say.say)
    return jobs


def plan(out: Path, folders: list[Path], device: Any) -> Evaluation:
    """The evaluation of both models on the same episodes, found again if it was made before."""
    from lpwm.cli.collect import progress_bar
    from lpwm.core.config import digest, to_dict
    from lpwm.core.files import make_folder
    from lpwm.evaluate.cache import Store
    from lpwm.evaluate.evaluate import run as run_evaluator
    from lpwm.evaluate.evaluator import Evaluator
    from lpwm.evaluate.goals import episode_sets
    from lpwm.evaluate.results import Evaluation
    from lpwm.evaluate.runs import load_team

    team = load_team(folders, device=device)
    made_of = [[a.run_hash, a.step] for a in team.agents]
    path = folders[0] / "eval" / f"demo-{digest({'runs': made_of, 'settings': to_dict(PLANNING)})}.json"
    if path.exists():
        return Evaluation.read(path)
    sets = episode_sets(team.world, PLANNING, team.data, team.holdout, max(a.frameskip for a in team.agents))
    runner = Evaluator(team.agents, team.world, PLANNING, sets, device=device, store=Store(out / "episodes"))
    with progress_bar("plans", sum(job.plans for job in runner.jobs())) as runner.progress:
        result = run_evaluator(runner, team.holdout)
    make_folder(path.parent)
    result.to_json(path)
    return result


def inspect(folder: Path, device: Any) -> Study:
    """The study of a run, found again if it was made before."""
    from lpwm.core.files import make_folder, write_whole
    from lpwm.core.json import dump_json, read_json
    from lpwm.interpret.results import Study
    from lpwm.interpret.study import study
    from lpwm.train.run import load

    loaded = load(folder, device=device)
    path = folder / "interpret" / f"demo-{loaded.step}.json"
    if path.exists():
        return Study.from_json(read_json(path), str(path))
    result = study(loaded)
    make_folder(path.parent)
    write_whole(path, dump_json(result))
    return result


def table(jobs: list[Run], evaluation: Evaluation, studies: list[Study]) -> list[dict[str, Any]]:
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
            "relative_error": result["held_out"]["error_depth"][0],
            "copy_error": result["held_out"]["copy_error_depth"][0],
            "active_fraction": result["train"]["active_fraction"],
            "zone_from_support": to_json(study.probes.zone["support"]),
            "position_from_code": to_json(study.probes.position["code"]),
        }
    return list(rows.values())


def text(rows: list[dict[str, Any]], width: int) -> str:
    """The table, wide or as a list where the terminal is narrow."""

    def percent(x: dict[str, Any]) -> str:
        return f"{100 * x['rate']:.0f} % [{100 * x['low']:.0f}, {100 * x['high']:.0f}]"

    lines = []
    for row in rows:
        name = row.get("title", row["name"])
        facts = {f"{kind} goals": percent(row[kind]["latched"]) for kind in ("random", "dataset") if kind in row}
        if "relative_error" in row:
            facts["error / copying"] = f"{row['relative_error']:.3f} / {row['copy_error']:.3f}"
            facts["active"] = f"{row['active_fraction']:.2f}"
            facts["zone from support"] = f"{100 * row['zone_from_support']['estimate']:.0f} %"
            facts["position R²"] = f"{row['position_from_code']['estimate']:.2f}"
        lines.append((name, facts))
    heads = list(dict.fromkeys(h for _, facts in lines for h in facts))
    columns = [max(len(h), *(len(facts.get(h, "")) for _, facts in lines)) for h in heads]
    first = max(len(name) for name, _ in lines)
    if first + sum(columns) + 2 * len(columns) > width:
        return "\n".join(f"{name}\n" + "\n".join(f"  {h}: {v}" for h, v in facts.items()) for name, facts in lines)
    out = [" " * first + "  " + "  ".join(h.ljust(w) for h, w in zip(heads, columns, strict=True)).rstrip()]
    for name, facts in lines:
        cells = "  ".join(facts.get(h, "").ljust(w) for h, w in zip(heads, columns, strict=True))
        out.append(f"{name:<{first}}  {cells}".rstrip())
    return "\n".join(out)
