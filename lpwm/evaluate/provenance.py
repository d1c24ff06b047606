"""What a result says about the run behind it, so that the JSON alone tells what was trained, where and how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpwm.core.config import from_dict
from lpwm.core.errors import UserError
from lpwm.core.json import Reader, read_json
from lpwm.core.provenance import sessions
from lpwm.evaluate.results import Provenance, Training
from lpwm.train.log import LOG, read_log
from lpwm.train.run_config import RunConfig

MONITORS = (
    "active_fraction",
    "dead_units",
    "effective_dimension",
    "relative_error",
    "copy_error",
    "temporal_variation",
    "action_sensitivity",
)
HELD_OUT = ("error_depth", "copy_error_depth")


def of_run(folder: str | Path) -> Provenance:
    """Recipe, config, data, the last monitors, and how it was trained; empty where run.json cannot be read."""
    folder = Path(folder)
    try:
        run = Reader(read_json(folder / "run.json"), str(folder / "run.json"))
        recipe, data = run.str("name"), run.str("data")
        config = from_dict(RunConfig, run.dict("config"), f"{run.where}: config.")
    except UserError:
        return Provenance()
    records = read_log(folder) if (folder / LOG).exists() else []
    monitors: dict[str, Any] = {}
    for kind, names in (("train", MONITORS), ("val", HELD_OUT)):
        last: dict[str, Any] = next((r for r in reversed(records) if r["kind"] == kind), {})
        monitors |= {name: last[name] for name in names if name in last}
    events = tuple(str(r["message"]) for r in records if r["kind"] == "event" and r.get("message"))
    return Provenance(
        recipe=recipe, data=data, config=config, monitors=monitors, events=events, training=_training(folder)
    )


def _training(folder: Path) -> Training | None:
    stretches = [Reader(s, str(folder)) for s in sessions(folder)]
    if not stretches:
        return None
    last = stretches[-1]
    return Training(
        minutes=round(sum(s.float("seconds") for s in stretches) / 60, 2),
        **{k: last.get(k, default=None) for k in ("device", "processes", "commit", "source", "versions")},
    )
