"""The target study on the page of results: its tables, from its JSON alone. What a person concludes is in notes.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .study_table import COMPARED_HEADS, FOLLOW_HEADS, absent, compared_rows, follow_rows, heads, rows, sentences
from .text import pipes

ROW, TITLE = "targets", "Beyond the paper: does activity follow the target?"
FIGURE, CAPTION = "target-study", "Realized against asked activity, then prediction, probes and planning"


def section(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Every study there is; usually one."""
    if not studies:
        return "Not run."
    return "\n\n".join(part for file, found in studies.items() for part in _study(file, dict(found)))


def _study(file: str, found: dict[str, Any]) -> list[str]:
    compared, told = compared_rows(found), [*sentences(found), *absent(found, brief=True)]
    return [
        _protocol(file, found),
        "\n".join(f"- {line}" for line in told),
        pipes(heads(found), rows(found)),
        "How activity follows the target, a number a seed over the targets (slope 1: obedience, 0: indifference):",
        pipes(FOLLOW_HEADS, follow_rows(found)),
        *(
            [
                "Coordinate − plain slices, paired on (p, μ, seed). Over seeds: a seed's mean over the targets, "
                f"{len(found['seeds'])} of them; over (p, μ, seed): every pair, as if pairs were independent. "
                "The interval over seeds decides.",
                pipes(COMPARED_HEADS, compared),
            ]
            if compared
            else []
        ),
    ]


def _protocol(file: str, found: dict[str, Any]) -> str:
    train, model, plan = found["base"]["train"], found["base"]["model"], found["planning"]
    minutes = sum(r["train_s"] for r in found["runs"]) / 60
    said = {k: found.get(k) or "not recorded" for k in ("commit", "source")}
    return (
        f"`{file}`: small Piecewise models (D={model['latent']}, {model['predictor']['rung']}), "
        f"{train['steps']:,} steps of {train['batch']} clips, {len(found['seeds'])} training seeds a cell, "
        f"{len(found['runs'])} of {found['expected']} runs; at most {found['frames']:,} held-out frames; "
        f"{plan['episodes']} episodes (seed {plan['seed']}) within {max(plan['budgets'])} steps, one planner seed. "
        f"Intervals are 95 %, over training seeds. On {found['device']}, {minutes:.1f} run-minutes of training, "
        f"commit {said['commit']}, source {said['source']}. Controls: {controls(found)}."
    )


def controls(found: Mapping[str, Any]) -> str:
    """Terminal success of those who do not learn, on the same episodes."""
    return (
        "; ".join(
            f"{way}: " + ", ".join(f"{who} {100 * r['terminal']:.0f} %" for who, r in rates.items())
            for way, rates in found["controls"].items()
        )
        or "not run"
    )
