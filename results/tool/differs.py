"""What our recipes have otherwise than the paper's, field by field."""

from __future__ import annotations

from typing import Any

from lpwm.core.config import flat, to_dict
from lpwm.recipes import RECIPES, recipe

from .read import Results
from .runs import ASIDE, FAMILIES, Trained
from .text import pipes

# Fields in words; those that are not named here stand under their own name.
NAMES = {
    "data.episodes": "data, episodes",
    "data.steps": "data, steps an episode",
    "data.frames": "frames drawn at",
    "model.encoder.image_size": "frames, pixels",
    "model.encoder.patch": "patch",
    "model.encoder.width": "encoder, width",
    "model.encoder.depth": "encoder, layers",
    "model.encoder.heads": "encoder, heads",
    "model.encoder.head_dim": "encoder, width of a head",
    "model.encoder.mlp": "encoder, MLP",
    "model.encoder.pixels": "pixels measured from",
    "model.projector.hidden": "projector, hidden",
    "model.projector.norm": "projector, norm",
    "model.latent": "D",
    "model.predictor.rung": "predictor",
    "model.predictor.head_norm": "predictor, norm of its head",
    "model.predictor.position_std": "predictor, positions at first",
    "model.action_smooth": "actions, width of their embedding",
    "objective.lam": "λ",
    "objective.rollout_steps": "fed-back steps",
    "objective.rdmreg.slices": "slices",
    "objective.rdmreg.rms_norm": "target divided by its RMS",
    "optim.lr": "η",
    "optim.schedule": "schedule",
    "optim.warmup": "warm-up, share of the steps",
    "optim.weight_decay": "weight decay",
    "train.steps": "steps",
    "train.batch": "clips a batch",
}


def table(results: Results, sizes: set[str]) -> str:
    """One pair of columns for each recipe of LpWM among runs of these sizes that is not the paper's."""
    ours: dict[str, Trained] = {}
    for run in results.runs:
        if run.method == "lpwm" and run.size in sizes and (run.reduced or run.other) and run.paper_recipe in RECIPES:
            ours.setdefault(run.recipe, run)
    order = sorted(ours.values(), key=lambda run: (FAMILIES.index(run.family), run.recipe))
    columns = {run.recipe.removesuffix("/lpwm"): _differences(run) for run in order}
    fields = [f for f in NAMES if any(f in c for c in columns.values())]
    fields += sorted({f for c in columns.values() for f in c} - {*NAMES})
    if not fields:
        return "Nothing: every number is of the paper's recipe."
    heads = ["", *(f"{name}: {who}" for name in columns for who in ("paper", "ours"))]
    rows = [[NAMES.get(f, f), *(x for c in columns.values() for x in c.get(f, ("", "")))] for f in fields]
    return pipes([heads, *rows])


def _differences(run: Trained) -> dict[str, tuple[str, str]]:
    paper = flat(to_dict(recipe(run.paper_recipe)))
    aside = {*ASIDE, "data.source", "data.workers", "data.pixels", "data.seed", "train.precision"}
    return {
        field: (_text(value), _text(run.known[field]))
        for field, value in paper.items()
        if field in run.known and run.known[field] != value and field not in aside and ".health." not in field
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
