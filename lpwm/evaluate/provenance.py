"""What a result says about the run behind it, so that the JSON alone tells what was trained, where and how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lpwm.core.provenance import sessions
from lpwm.train.log import LOG, read_log

MONITORS = (
    "active_fraction",
    "dead_units",
    "effective_dimension",
    "relative_error",
    "copy_error",
    "temporal_variation",
    "action_sensitivity",
)


def of_run(folder: str | Path) -> dict[str, Any]:
    """recipe, config, data digest, the last monitors, and how it was trained; {} where run.json cannot be read.

    training: minutes (of every stretch, interrupted ones too), device, commit, source, versions of the last stretch;
    null for runs that recorded none.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / "run.json").read_text())
        found = {"recipe": record["name"], "data": record["data"], "config": record["config"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    records = read_log(folder) if (folder / LOG).exists() else []
    last: dict[str, Any] = next((r for r in reversed(records) if r["kind"] == "train"), {})
    held: dict[str, Any] = next((r for r in reversed(records) if r["kind"] == "val"), {})
    found["monitors"] = {k: last[k] for k in MONITORS if k in last} | {
        k: held[k] for k in ("error_depth", "copy_error_depth") if k in held
    }
    found["events"] = [r["message"] for r in records if r["kind"] == "event" and r.get("message")]
    stretches = sessions(folder)
    found["training"] = None
    if stretches:
        end = stretches[-1]
        found["training"] = {
            "minutes": round(sum(s["seconds"] for s in stretches) / 60, 2),
            **{k: end.get(k) for k in ("device", "processes", "commit", "source", "versions")},
        }
    return found
