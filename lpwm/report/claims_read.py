"""Every JSON under a folder of results, as runs with what is known of them.

Understood: what `lpwm eval --out`, `lpwm interpret --out` and `lpwm sweep` (a ledger's cells/HASH.json) wrote, and
target studies. Whatever else is there is listed, not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lpwm.core.config import from_dict, to_dict
from lpwm.core.errors import UserError
from lpwm.interpret.targets_grid import KIND as TARGETS
from lpwm.recipes import RECIPES, recipe
from lpwm.report.claims import METHODS, TITLES
from lpwm.report.provenance import flat
from lpwm.train.run_config import RunConfig

# Of pages of studies, one study of Piecewise, of Cube, and of how sparse a code is.
STUDIES = ("lpwm interpretations", "lpwm interpretation", "lpwm readings", "lpwm contact", "lpwm sparsity")
PLANNER = 300 * 30  # candidates the paper's planner scores
NEEDED = (
    "base",
    "planning",
    "seeds",
    "expected",
    "frames",
    "controls",
    "runs",
    "cells",
    "follow",
    "follow_differences",
    "overall",
)
MADE = "lpwm claims"  # the kind of the file that is written here
# Longest first: a family is the recipe of the paper's size, what follows its name is a size.
FAMILIES = (
    "piecewise-2x2-visible",
    "piecewise-3x3-visible",
    "piecewise-2x2",
    "piecewise-3x3",
    "two-room",
    "pusht",
    "wall",
    "cube",
    "tiny",
)
SIZES = {
    "frames": "model.encoder.image_size",
    "patch": "model.encoder.patch",
    "width": "model.encoder.width",
    "layers": "model.encoder.depth",
    "latent": "model.latent",
    "rung": "model.predictor.rung",
    "steps": "train.steps",
    "batch": "train.batch",
    "episodes": "data.episodes",
    "length": "data.steps",
}
CURVES, CURVE = "lpwm training curves", ("recipe", "seed", "lam", "lr", "training", "curves")
# Differences in these change nothing that is claimed, or are told apart otherwise (the seed, the weight of TJ).
ASIDE = (
    "train.seed",
    "train.stop_dead",
    "objective.tj_weight",
    "train.compile",
    "train.kernels",
    "train.log_every",
    "train.eval_every",
    "train.eval_batches",
    "train.checkpoint_every",
    "train.keep",
    "train.accumulate",
    "data.file",
)


@dataclass(frozen=True)
class Trained:
    """A checkpoint, as a result names it."""

    recipe: str
    hash: str
    seed: int | str
    step: int
    config: Mapping[str, Any] | None  # as recorded
    monitors: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    dead: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        """(world with size, rung, method)."""
        words = self.recipe.split("/")
        return words[0], "/".join(words[1:-1]), words[-1]

    @property
    def method(self) -> str:
        """The method as the claims call it: Cube's recipes carry the weight of TJ in their names (lpwm-tj0.1)."""
        return re.sub(r"^lpwm-tj[\d.]+$", "lpwm-tj", self.parts[2])

    @property
    def family(self) -> str:
        head = self.parts[0]
        return next((f for f in FAMILIES if head == f or head.startswith(f + "-")), head)

    @property
    def suffix(self) -> str:
        return self.parts[0][len(self.family) + 1 :]

    @cached_property
    def known(self) -> dict[str, Any]:
        """The flat config: as recorded, else that of the recipe, else nothing."""
        if self.config is not None:
            return flat(to_dict(from_dict(RunConfig, self.config)))
        return flat(to_dict(recipe(self.recipe))) if self.recipe in RECIPES else {}

    @cached_property
    def reduced(self) -> bool:
        """Whether anything of its size falls short of the paper's recipe of this family."""
        base = "/".join(w for w in (self.family, *self.parts[1:]) if w)
        if self.suffix or base not in RECIPES or not self.known:
            return bool(self.suffix) or not self.known
        paper = flat(to_dict(recipe(base)))
        fixed = ("frames", "patch", "width", "layers", "rung")
        least = ("latent", "steps", "batch", "episodes", "length")
        return any(self.known[SIZES[k]] != paper[SIZES[k]] for k in fixed) or any(
            self.known[SIZES[k]] < paper[SIZES[k]] for k in least
        )

    @cached_property
    def size(self) -> str:
        if not self.known:
            return f"reduced ({self.suffix or self.recipe}; its config was not recorded)"
        k = {name: self.known[path] for name, path in SIZES.items()}
        text = (
            f"{k['frames']}² frames, patch {k['patch']}, encoder {k['width']} × {k['layers']} layers, D={k['latent']}, "
            f"{TITLES.get(k['rung'], k['rung'])}, {k['steps']:,} steps of {k['batch']}, "
            f"data {k['episodes']:,} × {k['length']}"
        )
        if self.known.get("data.file"):
            text = text.rpartition(", data")[0] + ", recorded data"
        name = f" ({self.suffix})" if self.suffix else ""
        seen = ", zones visible" if self.family.endswith("visible") else ""
        return (f"reduced{name}: " if self.reduced else "paper's size: ") + text + seen + self.changed

    @cached_property
    def changed(self) -> str:
        """What its config has otherwise than its recipe, sizes aside."""
        if self.config is None or self.recipe not in RECIPES:
            return ""
        usual = flat(to_dict(recipe(self.recipe)))
        told = (*ASIDE, *SIZES.values())
        other = {k: v for k, v in self.known.items() if k in usual and v != usual[k] and k not in told}
        return "".join(f", {k.rpartition('.')[2]} {v}" for k, v in sorted(other.items()))

    @property
    def other(self) -> int:
        """0: its recipe as it is, 1: not trained to the recipe's end, 2: changed otherwise."""
        if self.changed:
            return 2
        return int(self.recipe in RECIPES and self.step < recipe(self.recipe).train.steps)

    @property
    def tj(self) -> float | None:
        return self.known.get("objective.tj_weight")


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

    @property
    def open_loop(self) -> bool:
        return self.budget <= self.receding * self.run.known.get("data.frameskip", 5)

    @property
    def episodes(self) -> int:
        return self.success["latched"].shape[1]

    @property
    def protocol(self) -> str:
        return self._told(f"{self.episodes} episodes")

    def _told(self, episodes: str) -> str:
        s = self.settings
        seeds = len(self.success["latched"])
        start = " warm" if s["warm"] and self.receding < self.horizon else ""
        solver = self.planner + (" (reduced)" if self.effort < PLANNER else "")
        planner = f"{seeds} planner seed{'s' if seeds > 1 else ''}"
        return (
            f"{self.goals} goals, {self.budget} steps{', one plan' if self.open_loop else ''}, H={self.horizon} "
            f"R={self.receding}{start}, {solver}, {episodes} × {planner}"
            + (", tested after each plan" if s["test"] == "plan" else "")
        )

    @property
    def way(self) -> tuple[Any, ...]:
        """Size and protocol, whichever the episodes are."""
        s = self.settings
        return (
            self.run.family,
            self.run.parts[1],
            self.run.size,
            self._told("episodes"),
            s.get("context"),
            s.get("precision"),
            json.dumps(s["options"], sort_keys=True),
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What two checkpoints must share to be compared or pooled: size and protocol, episodes included."""
        return (*self.way, self.episodes, self.digest)

    @property
    def planner(self) -> str:
        options = self.settings["options"]
        return f"{self.settings['solver'].upper()} {options.get('samples', 300)} × {options.get('iterations', 30)}"

    @property
    def effort(self) -> int:
        o = self.settings["options"]
        return int(o.get("samples", 300)) * int(o.get("iterations", 30))


@dataclass(frozen=True, eq=False)
class Studied:
    run: Trained
    study: Mapping[str, Any]
    file: str

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)


@dataclass(frozen=True, eq=False)
class Results:
    planned: list[Planned]
    studied: list[Studied]
    runs: list[Trained]  # every checkpoint once
    documents: dict[str, Mapping[str, Any]]  # by file
    others: dict[str, str]  # file -> what it says it is
    targets: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # target studies, by file
    curves: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # training curves, by file


def read_results(folder: str | Path) -> Results:
    root = Path(folder)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: give the one that holds the JSON of lpwm eval and lpwm interpret.")
    found = Results([], [], [], {}, {})
    for path in sorted(root.rglob("*.json")):
        name = path.relative_to(root).as_posix()
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            raise UserError(f"{path} cannot be read: remove it, or make it again.") from None
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind == MADE:
            continue
        try:
            _take(found, name, document, kind)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path} lacks what a result needs ({error!r}): make it again.") from None
    return found


def _take(found: Results, name: str, document: Any, kind: str | None) -> None:
    if kind == "lpwm evaluation":
        found.planned.extend(_as_in_the_paper(_evaluation(document, name)))
    elif kind in STUDIES:
        for study in document.get("studies") or document.get("readings") or [document]:
            found.studied.append(Studied(trained(study["run"], study["run"]["hash"]), study, name))
    elif isinstance(document, dict) and {"cell", "result", "hash"} <= document.keys():
        found.planned.extend(_as_in_the_paper(_ledger(found, document, name)))
    elif kind == TARGETS:
        found.targets[name] = {k: document[k] for k in (*NEEDED, *document)}  # what is missing is told here
        return
    elif kind == CURVES:
        found.curves[name] = {**document, "runs": [{k: r[k] for k in (*CURVE, *r)} for r in document["runs"]]}
        return
    else:
        found.others[name] = str(kind or "unknown")
        return
    found.documents[name] = document
    seen = {(r.hash, r.step) for r in found.runs}
    for run in [*(p.run for p in found.planned), *(s.run for s in found.studied)]:
        if (run.hash, run.step) not in seen:
            seen.add((run.hash, run.step))
            found.runs.append(run)


def _as_in_the_paper(planned: Iterable[Planned]) -> Iterator[Planned]:
    """Not those whose planner counts the way, too: no claim of the paper is about it."""
    return (p for p in planned if not p.settings.get("path_discount", p.settings.get("along")))


def trained(entry: Mapping[str, Any], run_hash: str) -> Trained:
    """From the entry of a run in an evaluation or a study, of before provenance was recorded too."""
    name = entry.get("recipe") or recipe_of(str(entry["method"]).rsplit(" ", 1)[0])
    return Trained(
        name,
        run_hash,
        entry["seed"],
        int(entry["step"]),
        entry.get("config"),
        entry.get("monitors") or {},
        entry.get("training") or {},
        "; ".join(entry.get("events") or ()),
    )


def recipe_of(label: str) -> str:
    """`piecewise-2x2-small-lpwm` → `piecewise-2x2-small/lpwm`: labels stand for recipes with dashes for slashes."""
    for name in RECIPES:
        if name.replace("/", "-") == label:
            return name
    for method in sorted(METHODS, key=len, reverse=True):
        head = label.removesuffix(f"-{method}")
        if head != label:
            for rung in sorted(TITLES, key=len, reverse=True):
                if head.endswith(f"-{rung}"):
                    return f"{head.removesuffix(f'-{rung}')}/{rung}/{method}"
            return f"{head}/{method}"
    return label


def _evaluation(document: Mapping[str, Any], file: str) -> Iterator[Planned]:
    entries = {(r["method"], r["seed"]): r for r in document["runs"] if r.get("vote") is None}
    for cell in document["cells"]:
        if cell["goals"] == "image":
            continue
        for row in cell["rows"]:
            for i, seed in enumerate(row["seeds"]):
                entry = entries.get((row["name"], seed))
                if entry is None:  # a control, or a vote of several
                    continue
                for budget, values in row["budgets"].items():
                    success = {m: np.array(values["success"][m][i], dtype=bool) for m in ("latched", "terminal")}
                    yield Planned(
                        trained(entry, entry["run_hash"]),
                        cell["goals"],
                        cell["horizon"],
                        cell["receding"],
                        int(budget),
                        document["settings"],
                        document["episode_sets"][cell["goals"]]["digest"],
                        success,
                        (file,),
                        _floor(cell, budget),
                    )


def _floor(cell: Mapping[str, Any], budget: str) -> dict[str, float]:
    """The better of the two controls that do not plan."""
    idle = [r["budgets"][budget] for r in cell["rows"] if r["control"] and r["name"] != "oracle"]
    return {m: max((float(b[m]["rate"]) for b in idle), default=0.0) for m in ("latched", "terminal")}


def _ledger(found: Results, record: Mapping[str, Any], file: str) -> Iterator[Planned]:
    """The record of a sweep's cell: successes as strings of 0 and 1."""
    cell, result = record["cell"], record["result"]
    run = Trained(
        cell["name"],
        result["run"],
        cell["config"]["train"]["seed"],
        int(result["step"]),
        cell["config"],
        {**result.get("train", {}), **result.get("held_out", {})},
        {"minutes": round(result.get("seconds", {}).get("train", 0) / 60, 2)},
        result.get("dead", ""),
    )
    found.runs.append(run)
    for name, entries in result["evals"].items():
        for entry in entries:
            for budget, values in entry["budgets"].items():
                success = {m: np.array([[c == "1" for c in line] for line in v["success"]]) for m, v in values.items()}
                yield Planned(
                    run,
                    entry["goals"],
                    entry["horizon"],
                    entry["receding"],
                    int(budget),
                    cell["evals"][name],
                    entry["episodes"],
                    success,
                    (file,),
                )
