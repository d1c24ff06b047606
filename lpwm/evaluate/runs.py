"""From run folders to agents, and what a result says about the training of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lpwm.core.config import from_dict
from lpwm.core.errors import UserError
from lpwm.core.json import Reader, read_json
from lpwm.core.provenance import sessions
from lpwm.data import EpisodeData
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.results import Provenance, Training
from lpwm.train.log import LOG, read_log
from lpwm.train.run import load
from lpwm.train.run_config import RunConfig, method_digest

MONITORS = (
    *("active_fraction", "dead_units", "effective_dimension"),
    *("relative_error", "copy_error", "temporal_variation", "action_sensitivity"),
)
HELD_OUT = ("error_depth", "copy_error_depth")


@dataclass(frozen=True, eq=False)
class Team:
    """Agents of one world, and the data set they were trained on."""

    agents: tuple[Agent, ...]
    world: Any
    data: EpisodeData | None
    holdout: float


def agent_of(loaded: Any) -> Agent:
    """Runs whose configs differ in the training seed alone are one method."""
    folder = Path(loaded.path)
    label = folder.name.removesuffix(f"-{loaded.run_hash}")
    config = loaded.config
    return Agent(
        name=folder.name,
        models=(loaded.model,),
        images=(loaded.image,),
        stats=loaded.stats,
        frameskip=loaded.frameskip,
        seed=config.train.seed,
        method=f"{label} {method_digest(config)[:4]}",
        run_hash=loaded.run_hash,
        step=loaded.step,
        path=str(loaded.path),
        provenance=of_run(folder),
    )


def load_team(
    paths: Sequence[str | Path], *, device: torch.device | str = "cpu", checkpoint: str = "latest", data: bool = True
) -> Team:
    """The agents of these run folders. They must share a world; with `data` also a data set, whose trajectories
    held out by all of them give the goals."""
    if not paths:
        raise UserError("there is nothing to evaluate: give at least one run folder.")
    resolved = [Path(p).resolve() for p in paths]
    if len(set(resolved)) != len(resolved):
        raise UserError("a run folder is given twice: name each once.")
    loaded = [load(path, device=device, checkpoint=checkpoint) for path in paths]
    first = loaded[0]
    for one in loaded:
        if one.world is None:
            raise UserError(f"{one.path} was trained on recordings of a world that is not known here: it cannot act.")
        if (one.spec.name, one.spec.options) != (first.spec.name, first.spec.options):
            raise UserError(
                f"{first.path} was trained in {first.spec.name} {first.spec.options} and {one.path} in "
                f"{one.spec.name} {one.spec.options}: evaluate the runs of one world at a time."
            )
    episodes = None
    if data:
        each = [one.episodes() for one in loaded]
        episodes = each[0]
        for one, other in zip(loaded, each, strict=True):
            if other.digest != episodes.digest:
                raise UserError(
                    f"{first.path} and {one.path} were trained on different data, so their held-out goals differ: "
                    "evaluate them on --goals random, or one at a time."
                )
    return Team(_named(tuple(agent_of(one) for one in loaded)), first.world, episodes, min(x.holdout for x in loaded))


def _named(agents: tuple[Agent, ...]) -> tuple[Agent, ...]:
    """The hash of the config stays in a method's name only where the label alone would not tell two apart."""
    labels: dict[str, set[str]] = {}
    for agent in agents:
        labels.setdefault(agent.method[:-5], set()).add(agent.method)
    return tuple(replace(a, method=a.method[:-5]) if len(labels[a.method[:-5]]) == 1 else a for a in agents)


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
