"""Where every number of a report comes from: hashes, digests, seeds, versions, and the commands that make it again."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lpwm.core.config import to_dict
from lpwm.core.version import __version__
from lpwm.recipes import RECIPES, recipe
from lpwm.report.found import Found
from lpwm.report.markup import table
from lpwm.report.tables import method_key


def provenance(found: Found, commands: Sequence[str]) -> str:
    heads = ["Run", "Hash", "Data digest", "Seed", "Step", "lpwm"]
    rows = []
    for r in found.runs:
        record = r["record"]
        codes = [f"<code>{escape(c)}</code>" for c in (r["hash"], str(record["data"])[:16])]
        version = escape(str(record["version"]))
        rows.append(("", [escape(r["full"]), *codes, str(r["seed"]), f"{r['step']:,}", version]))
    parts = [table("Runs", heads, rows)]
    if found.evaluations:
        heads = ["Evaluation", "Episode sets", "Seeds", "At step", "Device", "Versions"]
        rows = [("", _evaluation(n, e)) for n, e in enumerate(found.evaluations, start=1)]
        parts.append(table("Evaluations", heads, rows))
    versions = f"Page made by lpwm {__version__} with Python {platform.python_version()}; curves by plotly.js."
    parts.append(f"<p>{escape(versions)}</p>")
    if commands:
        text = "\n".join(escape(c) for c in commands)
        parts.append(f"<p>Commands:</p><pre><code>{text}</code></pre>")
    return "".join(parts)


def _evaluation(number: int, e: Mapping[str, Any]) -> list[str]:
    sets = ", ".join(f"{k} <code>{escape(s['digest'])}</code>" for k, s in e["episode_sets"].items())
    planners = e["settings"]["planner_seeds"]
    return [
        str(number),
        sets,
        f"episodes {e['settings']['seed']}; {planners} planner seed{'s' if planners > 1 else ''}",
        ", ".join(f"{r['step']:,}" for r in e["runs"]),
        escape(e["device"]),
        escape(f"lpwm {e['versions']['lpwm']}, torch {e['versions']['torch']}"),
    ]


def commands_of(
    runs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]] = (),
    studies: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Command lines that make these again, in the folder where the runs lie."""
    folders = " ".join(shlex.quote(f"{method_key(r['name'])}-{r['hash']}") for r in runs)
    out = [train_command(r) for r in runs]
    if evaluations:
        out.append(f"lpwm eval {folders} --repeat EVALUATION.json")
    if studies:
        out.append(f"lpwm interpret {folders}")
    return [*out, f"lpwm report {folders}"]


def train_command(run: Mapping[str, Any]) -> str:
    """`lpwm train RECIPE` with the fields that differ from it; a run of no known recipe is continued by its folder."""
    name = run["name"]
    if name not in RECIPES:
        return f"lpwm train --resume {shlex.quote(method_key(name) + '-' + run['hash'])} --out ."
    given, usual = flat(run["config"]), flat(to_dict(recipe(name)))
    changed = [
        f"--{field} {' '.join(map(_word, value)) if isinstance(value, list) else _word(value)}"
        for field, value in given.items()
        if field in usual and value != usual[field]
    ]
    return " ".join([f"lpwm train {name}", *changed, "--out ."])


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
