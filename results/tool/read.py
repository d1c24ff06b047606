"""Every JSON under a folder of results, as runs with what is known of them.

Understood: what `lpwm eval --out`, `lpwm interpret --out` and `lpwm sweep` (a ledger's cells/HASH.json) wrote, target
studies and training curves. Whatever else is there is listed, not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lpwm.core.errors import UserError

from .runs import Trained, trained

EVALUATION, MADE, CURVES, TARGETS = "lpwm evaluation", "lpwm claims", "lpwm training curves", "lpwm target study"
# Of pages of studies, one study of Piecewise, of Cube, and of how sparse a code is.
STUDIES = ("lpwm interpretations", "lpwm interpretation", "lpwm readings", "lpwm contact", "lpwm sparsity")
SETTINGS = ("base", "planning", "seeds", "expected", "frames", "controls")  # of a target study, and its numbers
NUMBERS = ("runs", "cells", "follow", "follow_differences", "overall")
CURVES_NEED = ("recipe", "seed", "lam", "lr", "training", "curves")
PLANNER = 300 * 30  # candidates the paper's planner scores


@dataclass(frozen=True, eq=False)
class Planned:
    """One checkpoint in one cell at one budget."""

    run: Trained
    goals: str
    horizon: int
    receding: int
    budget: int
    settings: Mapping[str, Any]  # of the evaluation
    digest: str  # of the episodes
    success: Mapping[str, np.ndarray]  # measure -> (P, E)
    files: tuple[str, ...]
    floor: Mapping[str, float] = field(default_factory=dict)  # what doing nothing or acting at random reaches there
    own: bool = False  # compared as a method at its own cell, whichever that is

    @property
    def open_loop(self) -> bool:
        return self.budget <= self.receding * self.run.known.get("data.frameskip", 5)

    @property
    def cost(self) -> str:
        """As `claims.Cost`, or a path whose blocks do not count alike, which no claim is about."""
        return {0.0: "end", 1.0: "path"}.get(path_discount(self.settings), "other")

    @property
    def episodes(self) -> int:
        return self.success["latched"].shape[1]

    @property
    def protocol(self) -> str:
        return self._protocol(f"{self.episodes} episodes")

    def _protocol(self, episodes: str) -> str:
        seeds = len(self.success["latched"])
        warm = " warm" if self.settings["warm"] and self.receding < self.horizon else ""
        return (
            f"{self.goals} goals, {self.budget} steps{', one plan' if self.open_loop else ''}, H={self.horizon} "
            f"R={self.receding}{warm}, {self.planner}{' (reduced)' if self.effort < PLANNER else ''}, "
            f"{episodes} × {seeds} planner seed{'s' if seeds > 1 else ''}"
            + (", tested after each plan" if self.settings["test"] == "plan" else "")
            + (", path cost" if self.cost == "path" else "")
        )

    @property
    def size(self) -> str:
        return self.run.at_own_cell if self.own else self.run.size

    @property
    def setting(self) -> tuple[Any, ...]:
        """Size and protocol, whichever the episodes are."""
        s, run = self.settings, self.run
        options = json.dumps(s["options"], sort_keys=True)
        protocol = self._protocol("episodes")
        return (run.family, run.parts[1], self.size, protocol, s.get("context"), s.get("precision"), options)

    @property
    def key(self) -> tuple[Any, ...]:
        """What two checkpoints must share to be compared or pooled: size and protocol, episodes included."""
        return (*self.setting, self.episodes, self.digest)

    @property
    def _candidates(self) -> tuple[int, int]:
        options = self.settings["options"]
        return int(options.get("samples", 300)), int(options.get("iterations", 30))

    @property
    def planner(self) -> str:
        samples, iterations = self._candidates
        return f"{self.settings['solver'].upper()} {samples} × {iterations}"

    @property
    def effort(self) -> int:
        samples, iterations = self._candidates
        return samples * iterations


@dataclass(frozen=True, eq=False)
class Studied:
    run: Trained
    study: Mapping[str, Any]
    files: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Results:
    planned: list[Planned] = field(default_factory=list)
    studied: list[Studied] = field(default_factory=list)
    runs: list[Trained] = field(default_factory=list)  # every checkpoint once
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by file
    others: dict[str, str] = field(default_factory=dict)  # file -> what it says it is
    targets: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # target studies, by file
    curves: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # training curves, by file
    guides: dict[str, float] = field(default_factory=dict)  # run hash -> rank correlation of latent and true distance


def read_results(folder: str | Path) -> Results:
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: give the one that holds the JSON of lpwm eval and lpwm interpret.")
    results = Results()
    for path in sorted(root.rglob("*.json")):
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            raise UserError(f"{path} cannot be read: remove it, or make it again.") from None
        try:
            _take(results, path.relative_to(root).as_posix(), document)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path} lacks what a result needs ({error!r}): make it again.") from None
    return results


def _take(results: Results, name: str, document: Any) -> None:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == MADE:
        return
    elif kind == EVALUATION:
        _plans(results, name, document, _evaluation(document, name))
        curves = document.get("curves") or {}
        known = {r["run_hash"]: curves[r["name"]]["spearman"] for r in document["runs"] if r["name"] in curves}
        results.guides.update(known)
    elif isinstance(document, dict) and {"cell", "result", "hash"} <= document.keys():
        run = _ledger_run(document)
        _add_run(results, run, name.rpartition("/")[0])  # all cells of a sweep are one round
        _plans(results, name, document, _ledger(run, document, name))
    elif kind in STUDIES:
        results.documents[name] = document
        for study in document.get("studies") or document.get("readings") or [document]:
            run = trained(study["run"], study["run"]["hash"])
            results.studied.append(Studied(run, study, (name,)))
            _add_run(results, run, name)
    elif kind == TARGETS:
        results.targets[name] = {
            k: document[k] for k in (*SETTINGS, *NUMBERS, *document)
        }  # KeyError of what is missing
    elif kind == CURVES:
        runs = [{k: r[k] for k in (*CURVES_NEED, *r)} for r in document["runs"]]
        results.curves[name] = {**document, "runs": runs}
    else:
        results.others[name] = str(kind or "unknown")


def _plans(results: Results, name: str, document: Mapping[str, Any], planned: Iterator[Planned]) -> None:
    results.documents[name] = document
    for one in planned:
        results.planned.append(one)
        _add_run(results, one.run, name)


def _add_run(results: Results, run: Trained, name: str) -> None:
    if all((run.hash, run.step) != (r.hash, r.step) for r in results.runs):
        results.runs.append(replace(run, file=name))


def path_discount(settings: Mapping[str, Any]) -> float:
    return settings.get("path_discount", settings.get("along")) or 0.0  # `along` until 0.1.0


def _evaluation(document: Mapping[str, Any], file: str) -> Iterator[Planned]:
    entries = {(r["method"], r["seed"]): r for r in document["runs"] if r.get("vote") is None}
    for cell in document["cells"]:
        if cell["goals"] == "image":
            continue
        digest = document["episode_sets"][cell["goals"]]["digest"]
        where = (cell["goals"], cell["horizon"], cell["receding"])
        for row in cell["rows"]:
            for i, seed in enumerate(row["seeds"]):
                entry = entries.get((row["name"], seed))
                if entry is None:  # a control, or a vote of several
                    continue
                run = trained(entry, entry["run_hash"])
                for budget, values in row["budgets"].items():
                    success = {m: np.array(values["success"][m][i], dtype=bool) for m in ("latched", "terminal")}
                    floor = _floor(cell, budget)
                    yield Planned(run, *where, int(budget), document["settings"], digest, success, (file,), floor)


def _floor(cell: Mapping[str, Any], budget: str) -> dict[str, float]:
    """The better of the two controls that do not plan."""
    idle = [r["budgets"][budget] for r in cell["rows"] if r["control"] and r["name"] != "oracle"]
    return {m: max((float(b[m]["rate"]) for b in idle), default=0.0) for m in ("latched", "terminal")}


def _ledger_run(record: Mapping[str, Any]) -> Trained:
    """The run of a sweep's cell."""
    cell, result = record["cell"], record["result"]
    monitors = {**result.get("train", {}), **result.get("held_out", {})}
    seed, step, dead = cell["config"]["train"]["seed"], int(result["step"]), result.get("dead", "")
    return Trained(cell["name"], result["run"], seed, step, cell["config"], monitors, dead)


def _ledger(run: Trained, record: Mapping[str, Any], file: str) -> Iterator[Planned]:
    """The evaluations of a sweep's cell: successes as strings of 0 and 1."""
    for name, entries in record["result"]["evals"].items():
        settings = record["cell"]["evals"][name]
        for entry in entries:
            where = (entry["goals"], entry["horizon"], entry["receding"])
            for budget, values in entry["budgets"].items():
                success = {m: np.array([[c == "1" for c in line] for line in v["success"]]) for m, v in values.items()}
                yield Planned(run, *where, int(budget), settings, entry["episodes"], success, (file,))
