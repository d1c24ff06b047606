"""The end of the page: every evaluation with its controls, and where the numbers of every file come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .read import EVALUATION, Results, path_discount
from .text import pipes

NEEDED = ("recipe", "config", "data", "training", "monitors")  # of every run in an evaluation or a study


def controls(results: Results) -> str:
    """What every evaluation says, from its own JSON, controls included."""
    rows = [["file", "goals", "method", "seeds", "steps", "at the end, %", "reached, %"]]
    for file, document in results.documents.items():
        if document.get("kind") != EVALUATION:
            continue
        cost = ", path cost" if path_discount(document["settings"]) else ""
        for cell in document["cells"]:
            if cell["goals"] == "image":
                continue
            goals = f"{cell['goals']} H={cell['horizon']} R={cell['receding']}{cost}"
            for row in cell["rows"]:
                seeds = "control" if row["control"] else str(len(row["seeds"]))
                for budget, values in row["budgets"].items():
                    rates = [percent(values[m]) for m in ("terminal", "latched")]
                    rows.append([file, goals, row["name"], seeds, budget, *rates])
    return pipes(rows) if len(rows) > 1 else "None yet."


def percent(value: Mapping[str, Any]) -> str:
    """`62.5 [30.6, 86.3]`."""
    if value.get("rate") is None:
        return "–"
    if value.get("low") is None or value.get("high") is None:
        return f"{100 * value['rate']:.1f}"
    return f"{100 * value['rate']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def provenance(results: Results) -> str:
    """A row for every file, one for all cells of a sweep, and what a file should say and does not."""
    heads = ["file", "recipes", "run hashes", "seeds", "commit", "versions", "device"]
    rows = [[*heads, "training minutes", "evaluation minutes", "dead runs", "provenance missing"]]
    sweeps: dict[str, list[Mapping[str, Any]]] = {}
    for file, d in results.documents.items():
        if "cell" in d:
            sweeps.setdefault(file.rpartition("/")[0], []).append(d)
        else:
            rows.append(_file(file, d))
    rows += [_sweep(folder, cells) for folder, cells in sweeps.items()]
    return pipes(rows) if len(rows) > 1 else "No result yet."


def _file(file: str, d: Mapping[str, Any]) -> list[str]:
    studies = d.get("studies") or d.get("readings") or ([d] if "run" in d else [])
    entries = d.get("runs") or [s["run"] for s in studies]
    alone = [e for e in entries if e.get("vote") is None]
    first = studies[0] if studies else d
    versions = first.get("versions") or {"lpwm": first.get("lpwm", "?")}
    spent = d.get("wall_s", sum(s.get("seconds", 0) for s in studies))
    missing = [n for n in NEEDED if any(not e.get(n) for e in alone)]
    missing += [n for n in ("commit", "source") if not first.get(n)]
    dead = [f"{e['method']} {e['seed']}" for e in alone if any("run is dead" in text for text in e.get("events") or ())]
    hashes = [str(e.get("run_hash") or e.get("hash") or "–")[:12] for e in alone]
    return [
        file,
        _listed(e.get("recipe") or e["method"] for e in entries),
        ", ".join(hashes[:4]) + ("…" if len(hashes) > 4 else ""),
        _listed(e["seed"] for e in alone),
        str(first.get("commit") or "–"),
        " ".join(f"{k} {v}" for k, v in versions.items()),
        str(first.get("device", "–")),
        _training([e["training"] for e in entries if e.get("training")]),
        f"{spent / 60:.1f}",
        ", ".join(dead) or "–",
        ", ".join(missing) or "nothing",
    ]


def _training(sessions: Sequence[Mapping[str, Any]]) -> str:
    if not sessions:
        return "not recorded"
    minutes = sum(s["minutes"] for s in sessions) / len(sessions)
    return f"{minutes:.1f} each on {_listed(s.get('device') for s in sessions)}"


def _listed(values: Any) -> str:
    return ", ".join(sorted({str(v) for v in values}))


def _sweep(folder: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    train, evaluate = (sum(c["result"].get("seconds", {}).get(k, 0) for c in cells) / 60 for k in ("train", "evaluate"))
    return [
        f"{folder} ({len(cells)} cells)",
        _listed(c["cell"]["name"] for c in cells),
        "in the ledger",
        _listed(c["cell"]["config"]["train"]["seed"] for c in cells),
        "–",
        f"lpwm {_listed(c.get('lpwm', '?') for c in cells)}",
        "–",
        f"{train:.1f} in all",
        f"{evaluate:.1f}",
        "in the ledger",
        "commit, source, device",
    ]
