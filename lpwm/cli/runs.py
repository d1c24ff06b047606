"""`lpwm runs FOLDER`: the run folders there, and how far each has come. `lpwm runs A B`: how two or more differ."""

import json as json_
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lpwm.cli.terminal import say, tell
from lpwm.core.errors import UserError

if TYPE_CHECKING:
    from lpwm.report.gather import RunFile


@dataclass(frozen=True)
class Args:
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),)
    """Where to look, folders of folders included; or run folders to compare."""
    json: bool = False  # Print JSON.


@dataclass(frozen=True)
class Row:
    folder: str
    name: str
    world: str
    step: int
    steps: int
    error: float | None  # held-out relative error at depth 1, the last measured
    success: float | None  # terminal, at the largest budget, in the newest evaluation; random goals if there are any
    age: float  # seconds since the run was last written to

    def cells(self) -> list[str]:
        from lpwm.train.progress import duration

        error, success = (
            "–" if v is None or math.isnan(v) else f"{by * v:{form}}{unit}"
            for v, by, form, unit in ((self.error, 1, ".3f", ""), (self.success, 100, ".0f", " %"))
        )
        return [self.name, self.world, f"{self.step}/{self.steps}", error, success, duration(self.age)]


HEADS = ("name", "world", "step", "error", "success", "age")


def rows(folder: Path) -> tuple[list[Row], list[UserError]]:
    """The runs in a folder, up to three levels deep, the newest last; and why others cannot be told."""
    told: list[Row] = []
    refused: list[UserError] = []
    for path in (p for depth in ("", "*/", "*/*/", "*/*/*/") for p in folder.glob(f"{depth}run.json")):
        try:
            told.append(_row(path.parent))
        except UserError as e:
            refused.append(e)
    return sorted(told, key=lambda row: -row.age), refused


def _row(folder: Path) -> Row:
    from lpwm.report.gather import RunFile

    run = RunFile.read(folder)
    world = "recordings" if run.config.data.file else run.config.data.world
    age = time.time() - max(p.stat().st_mtime for p in (folder / "run.json", folder / "log.jsonl") if p.exists())
    steps = run.config.train.steps
    return Row(str(folder), run.name, world, run.step, steps, run.error, _success(folder, run), age)


def _success(folder: Path, run: "RunFile") -> float | None:
    from lpwm.evaluate.results import Evaluation

    for path in sorted(folder.glob("eval/*.json"), key=lambda p: -p.stat().st_mtime):
        try:
            evaluation = Evaluation.read(path)
        except UserError:  # not one, or damaged: `lpwm report` says so
            continue
        methods = {r.method for r in evaluation.runs if r.run_hash == run.hash and r.vote is None}
        cells = sorted((c for c in evaluation.cells if c.goals != "image"), key=lambda c: c.goals != "random")
        rates = [r.at(c.budgets[-1]).terminal.rate for c in cells for r in c.methods if r.name in methods]
        if rates:
            return rates[0]
    return None


def compare(folders: tuple[Path, ...], as_json: bool) -> int:
    """What differs in the configs of runs, and their results, a column each."""
    from lpwm.core.config import flat, to_dict
    from lpwm.interpret.compare import columns
    from lpwm.report.gather import RunFile

    configs = [flat(to_dict(RunFile.read(folder).config)) for folder in folders]
    fields = list(dict.fromkeys(name for config in configs for name in config))
    values = {name: [config.get(name) for config in configs] for name in fields}
    different: dict[str, list[Any]] = {n: v for n, v in values.items() if any(one != v[0] for one in v)}
    results = [_row(folder) for folder in folders]
    if as_json:
        say(json_.dumps({"config": different, "results": [asdict(r) for r in results]}, indent=2))
        return 0
    lines = [[name, *map(str, each)] for name, each in different.items()]
    lines += [[head, *each] for head, *each in zip(HEADS, *(r.cells() for r in results), strict=True)]
    say(columns(["", *(folder.name for folder in folders)], lines))
    return 0


def run(args: Args) -> int:
    if len(args.folders) > 1:
        return compare(args.folders, args.json)
    from lpwm.interpret.compare import columns

    (folder,) = args.folders
    runs, refused = rows(folder)
    if not runs and refused:
        raise refused[0]
    for e in refused:
        tell(f"lpwm: left out: {e}")
    if not runs:
        raise UserError(f"{folder} holds no runs: lpwm train RECIPE --out {folder} makes one.")
    if args.json:
        say(json_.dumps([asdict(row) for row in runs], indent=2))
        return int(bool(refused))
    lines = [(str(Path(row.folder).relative_to(folder)), *row.cells()) for row in runs]
    rows_ = [[at, *cells, "" if name.replace("/", "-") in at else name] for at, name, _, *cells in lines]
    say(columns(["folder", *HEADS[2:], "name"], rows_))
    say("error: held-out, one step ahead; success: at the end, newest evaluation")
    return int(bool(refused))
