"""The command lines that make a report's runs, evaluations and studies again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from lpwm.core.config import to_dict
from lpwm.recipes import RECIPES, recipe
from lpwm.report.data import Gathered, RunFile
from lpwm.report.view import method_key


def commands_of(given: Gathered) -> list[str]:
    """In the folder where the runs lie."""
    folders = " ".join(_folder(r) for r in given.runs)
    out = [train_command(r) for r in given.runs]
    if given.evaluations:
        out.append(f"lpwm eval {folders} --repeat EVALUATION.json")
    if given.studies:
        out.append(f"lpwm interpret {folders}")
    return [*out, f"lpwm report {folders}"]


def _folder(run: RunFile) -> str:
    return shlex.quote(f"{method_key(run.name)}-{run.hash}")


def train_command(run: RunFile) -> str:
    """`lpwm train RECIPE` with the fields that differ from it; a run of no known recipe is continued by its folder."""
    if run.name not in RECIPES:
        return f"lpwm train --resume {_folder(run)} --out ."
    given, usual = flat(to_dict(run.config)), flat(to_dict(recipe(run.name)))
    changed = [
        f"--{field} {' '.join(map(_word, value)) if isinstance(value, list) else _word(value)}"
        for field, value in given.items()
        if field in usual and value != usual[field]
    ]
    return " ".join([f"lpwm train {run.name}", *changed, "--out ."])


def _word(value: Any) -> str:
    return shlex.quote(str(value))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as the command line names them: {"data.steps": 60, …}."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return out
