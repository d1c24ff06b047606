"""From run folders to the dictionaries that `page.write` and `figures.write` take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lpwm.core.config import digest, from_dict
from lpwm.core.errors import UserError
from lpwm.evaluate.controls import Store
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.evaluate import episode_sets
from lpwm.evaluate.evaluator import Evaluator
from lpwm.evaluate.outcome import Evaluation
from lpwm.evaluate.protocol import EvalConfig
from lpwm.evaluate.runs import load_team
from lpwm.interpret.study import KIND as STUDY
from lpwm.report.readings import KINDS, pick
from lpwm.report.tables import cells, headline
from lpwm.train import parse_options, read_record
from lpwm.train.log import read_log

EPISODES = 12  # kept of each cell, for the page to replay
EVALUATION, STUDIES = "lpwm evaluation", "lpwm interpretations"


@dataclass(frozen=True)
class Gathered:
    runs: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    studies: list[dict[str, Any]]
    episodes: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)  # what was found and left out, in sentences
    readings: list[Mapping[str, Any]] = field(default_factory=list)


def gather(folders: Sequence[str | Path], also: Sequence[str | Path] = ()) -> Gathered:
    """All that is known about these runs: their logs, and every evaluation and study of them alone.

    also: further files that `lpwm eval`, `lpwm interpret` or `lpwm theory` wrote.
    """
    paths = [Path(f) for f in folders]
    if not paths:
        raise UserError("which runs? lpwm report RUN…, folders that lpwm train made.")
    if len({p.resolve() for p in paths}) != len(paths):
        raise UserError("a run folder is given twice: name each once.")
    more = [Path(f) for f in also]
    for path in more:
        if _read(path).get("kind") not in (EVALUATION, STUDY, STUDIES, *KINDS):
            raise UserError(f"{path} was not written by lpwm eval, interpret or theory: give their JSON.")
    runs = [run_of(path) for path in paths]
    hashes = {run["hash"] for run in runs}
    evaluations, others = _evaluations(paths, more, hashes)
    studies = _studies(paths, more, hashes)
    notes = []
    if others:
        notes.append(
            f"{others} evaluation{'s' if others > 1 else ''} with other runs beside these "
            f"{'were' if others > 1 else 'was'} left out: name those runs too."
        )
    episodes: list[dict[str, Any]] = []
    by_hash = {run["hash"]: path for run, path in zip(runs, paths, strict=True)}
    for number, evaluation in enumerate(evaluations, start=1):
        folders_of = [by_hash[r["run_hash"]] for r in evaluation["runs"] if r["vote"] is None]
        episodes += [{**e, "evaluation": number} for e in stored_episodes(evaluation, folders_of)]
    files = [*_files({p.resolve() for p in paths}, "interpret"), *more]
    dated = [(file.stat().st_mtime, _read(file)) for file in files]
    readings = pick(dated, [run["hash"] for run in runs])
    return Gathered(runs, evaluations, studies, episodes, notes, readings)


def run_of(folder: Path) -> dict[str, Any]:
    """A run folder as plain values: run.json, its log, its world."""
    run = read_record(folder)
    try:
        data = run["config"]["data"]
        run["world"] = {"name": data["world"], "options": parse_options(tuple(data["options"]))}
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'run.json'} is damaged: restore it, or start the run again.") from None
    records = read_log(folder) if (folder / "log.jsonl").exists() else []
    run["train"] = [r for r in records if r["kind"] == "train"]
    run["val"] = [r for r in records if r["kind"] == "val"]
    run["events"] = [r for r in records if r["kind"] == "event"]
    return run


def _evaluations(paths: Sequence[Path], more: Sequence[Path], hashes: set[str]) -> tuple[list[dict[str, Any]], int]:
    """Evaluations whose runs are all given; how many kept in these folders had other runs too.

    An evaluation of several runs lies in the folder of the first, so folders beside the given ones are read too.
    """
    given = {p.resolve() for p in paths}
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    others = 0
    for path in [*_files(given, "eval"), *more]:
        document = _read(path)
        if document.get("kind") != EVALUATION:
            continue
        named = {r["run_hash"] for r in document["runs"] if r.get("vote") is None}
        if named <= hashes:
            found.setdefault(digest(document), (path.stat().st_mtime, document))
        elif (path in more or path.parent.parent in given) and named & hashes:
            others += 1
    return [document for _, document in sorted(found.values(), key=lambda pair: pair[0])], others


def _studies(paths: Sequence[Path], more: Sequence[Path], hashes: set[str]) -> list[dict[str, Any]]:
    """The newest study of each given run with its zones drawn in each way."""
    found: dict[tuple[Any, ...], tuple[float, dict[str, Any]]] = {}
    for path in [*_files({p.resolve() for p in paths}, "interpret"), *more]:
        document = _read(path)
        for study in document.get("studies", [document]):
            if study.get("kind") == STUDY and study["run"]["hash"] in hashes:
                key = (study["run"]["hash"], study["settings"]["visible"])
                when = path.stat().st_mtime
                if key not in found or found[key][0] < when:
                    found[key] = (when, study)
    order = {h: i for i, h in enumerate(run_of(p)["hash"] for p in paths)}
    ranked = sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    return [study for _, (_, study) in ranked]


def _files(given: set[Path], room: str) -> list[Path]:
    """ROOM/*.json in the given folders and in the run folders beside them."""
    near = given | {run.parent for folder in given for run in folder.parent.glob("*/run.json")}
    return sorted(file for folder in near for file in folder.glob(f"{room}/*.json"))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read: remove it, or make it again.") from None
    return document if isinstance(document, dict) else {}


# Episodes ---------------------------------------------------------------------------------------------------


def stored_episodes(
    evaluation: Mapping[str, Any], folders: Sequence[Path], store: Path | None = None, count: int = EPISODES
) -> list[dict[str, Any]]:
    """The trajectories behind an evaluation, if `lpwm eval` still keeps them beside the runs; [] if not.

    Nothing is planned here: episodes are found under the name of all they depend on, checkpoints included.
    """
    if not folders or "image" in evaluation["episode_sets"]:
        return []
    place = store or Path(folders[0]).resolve().parent / "episodes"
    if not place.is_dir():
        return []
    config = from_dict(EvalConfig, evaluation["settings"])
    team = load_team(folders, data="dataset" in config.goals)
    if {a.weights for a in team.agents} != {r["weights"] for r in evaluation["runs"] if r["vote"] is None}:
        return []
    skip = max(a.frameskip for a in team.agents)
    sets = episode_sets(team.world, config, team.data, evaluation["holdout"], skip)
    device = "cpu" if evaluation["device"] == "cpu" else "cuda"  # part of the name; nothing runs on it
    out = []
    for compiled in (False, True):
        runner = Evaluator(team.agents, team.world, config, sets, device=device, store=Store(place), compile=compiled)
        for cell in headline(cells([evaluation])):
            where = (cell["goals"], cell["horizon"], cell["receding"])
            jobs = [(a.method or a.name, False, a.seed, runner.agent_job(a, *where, 0)) for a in team.agents]
            for name, title in (("oracle", "oracle"), ("random", "random actions")):
                if name in runner.controls(cell["goals"]):
                    jobs.append((title, True, "control", runner.control_job(name, *where, 0)))
            for name, control, seed, job in jobs:
                if runner.stored(job):
                    record, _ = runner.run(job)
                    out.append(
                        episode_entry(
                            record,
                            sets[cell["goals"]].goal_BS.numpy(),
                            team.world,
                            name=name,
                            control=control,
                            seed=seed,
                            where=where,
                            count=count,
                        )
                    )
        if any(not entry["control"] for entry in out):
            break
    return out


def evaluated_episodes(evaluation: Evaluation, count: int = EPISODES) -> list[dict[str, Any]]:
    """The same from an evaluation in memory: first training and planner seed of every method, oracle and random."""
    out = []
    for cell in evaluation.cells:
        episodes = evaluation.sets[cell.goals]
        if episodes.image is not None:
            continue
        for row in cell.rows:
            if row.name != "do nothing":
                out.append(
                    episode_entry(
                        row.records[0][0],
                        episodes.goal_BS.numpy(),
                        evaluation.world,
                        name=row.name,
                        control=row.control,
                        seed=row.seeds[0],
                        where=(cell.goals, cell.horizon, cell.receding),
                        count=count,
                    )
                )
    return out


def episode_entry(
    record: Record,
    goal_BS: np.ndarray[Any, Any],
    world: Any,
    *,
    name: str,
    control: bool,
    seed: int | str,
    where: tuple[str, int, int],
    count: int = EPISODES,
) -> dict[str, Any]:
    """What a page needs to replay the first `count` episodes: rounded positions, distances, latent distances."""
    at = list(world.spec.proprio[:2]) or [0, 1]
    n = min(count, len(record.ids))

    def trace(what: str) -> list[list[float]] | None:
        values = record.traces.get(what)
        return None if values is None else [[float(f"{v:.4g}") for v in row] for row in values[:n].tolist()]

    goals, horizon, receding = where
    return {
        "world": {"name": world.spec.name, "options": dict(world.spec.options)},
        "goals": goals,
        "horizon": horizon,
        "receding": receding,
        "name": name,
        "control": control,
        "seed": seed,
        "frameskip": record.frameskip,
        "ids": list(record.ids[:n]),
        "goal": np.round(goal_BS[:n, at].astype(float), 2).tolist(),
        "path": np.round(record.states_BTS[:n][..., at].astype(float), 2).tolist(),
        "distance": np.round(record.distance_BT[:n].astype(float), 2).tolist(),
        "success": ["".join("1" if s else "0" for s in row) for row in record.success_BT[:n]],
        "latent": trace("latent"),
        "predicted": trace("predicted"),
    }
