"""From run folders to `Gathered`: their logs, and what eval, interpret and theory wrote about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lpwm import worlds
from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.json import read_json
from lpwm.evaluate.cache import read_record
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.results import KIND as EVALUATION
from lpwm.evaluate.results import Evaluation, Row
from lpwm.interpret.results import KINDS, SAMPLES, STUDIES, Contact, Result, Sparsity, Study, WorldInfo, results_of
from lpwm.report.data import Gathered, Replay, RunFile
from lpwm.report.theory import KIND as THEORY
from lpwm.report.theory import TheoryStudy
from lpwm.report.view import cells, headline

EPISODES = 12  # kept of each cell, for the page to replay
R = TypeVar("R", bound=Result)
File = tuple[float, Path, dict[str, Any]]  # time, place, content


def gather(folders: Sequence[str | Path], also: Sequence[str | Path] = ()) -> Gathered:
    """All that is known about these runs: their logs, and every evaluation and study of them alone.

    also: further files that `lpwm eval`, `lpwm interpret` or `lpwm theory` wrote.
    """
    paths = [Path(f) for f in folders]
    if not paths:
        raise UserError("which runs? lpwm report RUN…, folders that lpwm train made.")
    if len({p.resolve() for p in paths}) != len(paths):
        raise UserError("a run folder is given twice: name each once.")
    more = [_read(Path(f)) for f in also]
    for _, path, content in more:
        if content.get("kind") not in (EVALUATION, STUDIES, SAMPLES, THEORY, *KINDS):
            raise UserError(f"{path} was not written by lpwm eval, interpret or theory: give their JSON.")
    runs = [RunFile.read(path) for path in paths]
    order = {run.hash: i for i, run in enumerate(runs)}
    given = {p.resolve() for p in paths}
    evaluations, notes = _evaluations([*_files(given, "eval"), *more], given, set(order), {p for _, p, _ in more})
    files = sorted([*_files(given, "interpret"), *more], key=lambda f: f[0])
    results = [r for _, path, content in files for r in results_of(content, str(path)) if r.run.hash in order]
    theory = [(path, content) for _, path, content in files if content.get("kind") == THEORY]
    episodes = [
        replay
        for number, evaluation in enumerate(evaluations, start=1)
        for replay in stored_episodes(evaluation, paths[0].resolve().parent / "episodes", number)
    ]
    return Gathered(
        runs=runs,
        evaluations=evaluations,
        studies=_newest(results, Study, order),
        episodes=episodes,
        sparsity=_newest(results, Sparsity, order),
        contact=_newest(results, Contact, order),
        theory=TheoryStudy.from_json(theory[-1][1], str(theory[-1][0])) if theory else None,
        notes=notes,
    )


def _evaluations(
    files: Iterable[File], given: set[Path], hashes: set[str], named: set[Path]
) -> tuple[list[Evaluation], list[str]]:
    """Evaluations whose runs are all given, oldest first; and how many of these runs had others too."""
    kept: dict[str, tuple[float, Evaluation]] = {}
    others = 0
    for when, path, content in files:
        if content.get("kind") != EVALUATION:
            continue
        evaluation = Evaluation.from_json(content, str(path))
        members = {r.run_hash for r in evaluation.runs if r.vote is None}
        if members <= hashes:
            kept.setdefault(digest(content), (when, evaluation))
        elif (path in named or path.parent.parent in given) and members & hashes:
            others += 1
    notes = []
    if others:
        notes.append(
            f"{others} evaluation{'s' if others > 1 else ''} with other runs next to these "
            f"{'were' if others > 1 else 'was'} left out: name those runs too."
        )
    return [evaluation for _, evaluation in sorted(kept.values(), key=lambda pair: pair[0])], notes


def _newest(results: Iterable[Result], kind: type[R], order: dict[str, int]) -> list[R]:
    """The last result of each run, in the order of the runs; studies with zones drawn and not drawn are two."""
    kept: dict[tuple[int, bool], R] = {}
    for r in results:
        if isinstance(r, kind):
            visible = isinstance(r, Study) and bool(r.settings.visible)
            kept[order[r.run.hash], visible] = r
    return [kept[key] for key in sorted(kept)]


def _files(given: set[Path], room: str) -> list[File]:
    """ROOM/*.json in the given folders and in the run folders next to them: an evaluation of several runs lies in
    the folder of the first."""
    near = given | {run.parent for folder in given for run in folder.parent.glob("*/run.json")}
    return [_read(file) for file in sorted(f for folder in near for f in folder.glob(f"{room}/*.json"))]


def _read(path: Path) -> File:
    content = read_json(path, of=object)
    return path.stat().st_mtime, path, content if isinstance(content, dict) else {}


# Episodes ---------------------------------------------------------------------------------------------------


def stored_episodes(evaluation: Evaluation, place: Path, number: int = 1, count: int = EPISODES) -> list[Replay]:
    """The trajectories behind an evaluation, if `lpwm eval` still keeps them next to the runs; [] if not."""
    try:
        spec = worlds.make(evaluation.world.name, **evaluation.world.options).spec
    except UserError:
        return []
    out = []
    for view in headline(cells([evaluation])):
        goals = evaluation.episode_sets[view.cell.goals].goal
        for row in view.cell.rows:
            record = _record(row, place) if row.name != "do nothing" else None
            if record is None or goals is None:
                continue
            out.append(
                Replay.of(
                    record,
                    np.array(goals),
                    list(spec.proprio[:2]) or [0, 1],
                    min(count, len(record.ids)),
                    world=WorldInfo(spec.name, dict(spec.options)),
                    goals=view.cell.goals,
                    horizon=view.cell.horizon,
                    receding=view.cell.receding,
                    name=row.name,
                    control=row.control,
                    seed=row.seeds[0],
                    evaluation=number,
                )
            )
    return out


def _record(row: Row, place: Path) -> Record | None:
    """The record of the first training and planner seed, where it is still kept."""
    name = row.records[0][0] if row.records and row.records[0] else ""
    return read_record(place / f"{Path(name).name}.npz") if name else None
