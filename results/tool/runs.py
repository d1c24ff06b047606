"""A trained checkpoint as a result names it: its recipe, its size next to the paper's, what was changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lpwm.core.config import flat, from_dict, to_dict
from lpwm.recipes import RECIPES, recipe
from lpwm.train.run_config import RunConfig

from .claims import METHODS, PIECEWISE, TITLES

# Longest first: a family is the recipe of the paper's size, what follows its name is a size.
FAMILIES = (*(f"{f}-visible" for f in PIECEWISE), *PIECEWISE, "two-room", "pusht", "wall", "cube", "tiny")
# Sizes that must be the paper's, and those that must not be below it.
FIXED = {
    "frames": "model.encoder.image_size",
    "patch": "model.encoder.patch",
    "width": "model.encoder.width",
    "layers": "model.encoder.depth",
    "rung": "model.predictor.rung",
}
LEAST = {
    "latent": "model.latent",
    "steps": "train.steps",
    "batch": "train.batch",
    "episodes": "data.episodes",
    "length": "data.steps",
}
# Differences in these change nothing that is claimed, or are told apart otherwise (the seed, the weight of TJ).
COMPUTED = ("compile", "kernels", "accumulate", "stop_dead")
LOGGED = ("log_every", "eval_every", "eval_batches", "checkpoint_every", "keep")
ASIDE = {"data.file", "objective.tj_weight", "train.seed", *(f"train.{name}" for name in (*COMPUTED, *LOGGED))}

# The cell of each method where both were tuned in the same cells (results/protocol.md, rounds 10, 12 and 22). Those of
# Piecewise were chosen at 2×2; temporal Jaccard has LpWM's.
OWN: dict[str, dict[str, float]] = {
    **{f"{p}-small/{m}": {"objective.lam": 1.0, "optim.lr": 6e-3} for p in PIECEWISE for m in ("lpwm", "lpwm-tj")},
    **{f"{p}-small/lewm": {"objective.lam": 1.0, "optim.lr": 3e-3} for p in PIECEWISE},
    **{f"wall-small/lti1/{m}": {"objective.lam": 3.0, "optim.lr": 3e-3} for m in ("lpwm", "lpwm-mu1", "lpwm-mu2")},
    "wall-small/lti1/lewm": {"objective.lam": 1.0, "optim.lr": 3e-3},
    "pusht-small/mlp-lti/lpwm": {"objective.lam": 1.0, "optim.lr": 5e-4},
    "pusht-small/mlp-lti/lewm": {"objective.lam": 3.0, "optim.lr": 5e-4},
}


@dataclass(frozen=True)
class Trained:
    recipe: str
    hash: str
    seed: int | str
    step: int
    config: Mapping[str, Any] | None  # as recorded
    monitors: Mapping[str, Any] = field(default_factory=dict)
    dead: str = ""
    file: str = ""  # the first that has it: runs of one file are of one round

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
    def rung(self) -> str:
        return str(self.known.get("model.predictor.rung", self.parts[1]))

    @property
    def usual(self) -> bool:
        """Whether it has its recipe's predictor."""
        return self.recipe not in RECIPES or self.rung == recipe(self.recipe).model.predictor.rung

    @property
    def suffix(self) -> str:
        return self.parts[0][len(self.family) + 1 :].removeprefix("paper")

    @property
    def paper_recipe(self) -> str:
        """The paper's own recipe of this family, rung and method."""
        family = f"{self.family}-paper" if self.family.startswith(PIECEWISE) else self.family
        return "/".join(w for w in (family, *self.parts[1:]) if w)

    @cached_property
    def known(self) -> dict[str, Any]:
        """The flat config: as recorded (under the names of today), else that of the recipe, else nothing."""
        if self.config is not None:
            return flat(to_dict(from_dict(RunConfig, dict(self.config))))
        return flat(to_dict(recipe(self.recipe))) if self.recipe in RECIPES else {}

    @cached_property
    def reduced(self) -> bool:
        """Whether anything of its size falls short of the paper's recipe of this family."""
        base = self.paper_recipe
        if self.suffix or base not in RECIPES or not self.known:
            return bool(self.suffix) or not self.known
        paper = flat(to_dict(recipe(base)))
        return any(self.known[k] != paper[k] for k in FIXED.values()) or any(
            self.known[k] < paper[k] for k in LEAST.values()
        )

    @property
    def size(self) -> str:
        return self.dimensions + self.changed

    @cached_property
    def dimensions(self) -> str:
        if not self.known:
            return f"reduced ({self.suffix or self.recipe}; its config was not recorded)"
        k = {name: self.known[path] for name, path in (FIXED | LEAST).items()}
        data = "recorded data" if self.known.get("data.file") else f"data {k['episodes']:,} × {k['length']}"
        name = f" ({self.suffix})" if self.suffix else ""
        return (
            (f"reduced{name}: " if self.reduced else "paper's size: ")
            + f"{k['frames']}² frames, patch {k['patch']}, encoder {k['width']} × {k['layers']} layers, "
            f"D={k['latent']}, {TITLES.get(k['rung'], k['rung'])}, {k['steps']:,} steps of {k['batch']}, {data}"
            + (", zones visible" if self.family.endswith("visible") else "")
        )

    @cached_property
    def changed(self) -> str:
        """What its config has otherwise than its recipe, sizes aside."""
        return "".join(f", {k.rpartition('.')[2]} {v}" for k, v in sorted(self._changes.items()))

    @cached_property
    def _changes(self) -> dict[str, Any]:
        if self.config is None or self.recipe not in RECIPES:
            return {}
        usual = flat(to_dict(recipe(self.recipe)))
        shown = ASIDE | set((FIXED | LEAST).values())
        return {k: v for k, v in self.known.items() if k in usual and v != usual[k] and k not in shown}

    @property
    def at_own_cell(self) -> str:
        return f"{self.dimensions}, each method at its own λ and η"

    @property
    def own(self) -> bool:
        """Trained at the cell that its method was tuned to, and otherwise as its recipe."""
        cell = OWN.get(self.recipe)
        return cell is not None and self._changes.keys() <= cell.keys() and cell.items() <= self.known.items()

    @property
    def other(self) -> int:
        """0: its recipe as it is, 1: not trained to the recipe's end, 2: changed otherwise."""
        if self.changed:
            return 2
        return int(self.recipe in RECIPES and self.step < recipe(self.recipe).train.steps)

    @property
    def paper(self) -> bool:
        """The paper's recipe, unchanged, at its size and trained to its end: only then a level is judged."""
        return not self.reduced and self.other == 0

    @property
    def tj(self) -> float | None:
        return self.known.get("objective.tj_weight")


def trained(entry: Mapping[str, Any], run_hash: str) -> Trained:
    """From the entry of a run in an evaluation or a study, of before provenance was recorded too."""
    name = entry.get("recipe") or recipe_of(str(entry["method"]).rsplit(" ", 1)[0])
    dead = "; ".join(entry.get("events") or ())
    step, config, monitors = int(entry["step"]), entry.get("config"), entry.get("monitors") or {}
    return Trained(name, run_hash, entry["seed"], step, config, monitors, dead)


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
