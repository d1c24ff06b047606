"""From run folders to agents, and what a result says about the training of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lpwm.core.config import flat, to_dict
from lpwm.core.errors import UserError
from lpwm.core.provenance import sessions
from lpwm.data import EpisodeData
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.results import Provenance, Training
from lpwm.train.loaded import load
from lpwm.train.log import LOG, read_log
from lpwm.train.run_config import method_digest, read_record
from lpwm.worlds import make_world

MONITORS = (
    *("active_fraction", "dead_units", "effective_dimension"),
    *("relative_error", "copy_error", "temporal_variation", "action_sensitivity"),
)
HELD_OUT = ("error_depth", "copy_error_depth")


class NoWorld(UserError):
    """A run on recordings alone, which `lpwm.interpret.recorded` evaluates."""


@dataclass(frozen=True, eq=False)
class Team:
    """Agents of one world, and the data set they were trained on."""

    agents: tuple[Agent, ...]
    world: Any
    data: EpisodeData | None
    holdout: float


def agent_of(loaded: Any) -> Agent:
    """Runs whose configs differ in the training seed alone are one method."""
    folder, same = Path(loaded.path), ("stats", "frameskip", "run_hash", "step")
    known: dict[str, Any] = {name: getattr(loaded, name) for name in same}
    known |= {"seed": loaded.config.train.seed, "method": method_of(loaded), "path": str(folder)}
    return Agent(folder.name, loaded.model, loaded.image, **known, provenance=of_run(folder))


def method_of(loaded: Any) -> str:
    """The run's name with four digits for its config but the seed."""
    label = Path(loaded.path).name.removesuffix(f"-{loaded.run_hash}")
    return f"{label} {method_digest(loaded.config)[:4]}"


def load_team(
    paths: Sequence[str | Path],
    *,
    device: torch.device | str = "cpu",
    checkpoint: str = "latest",
    data: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Team:
    """The agents of these run folders. They must share a world; with `data` also a data set, whose trajectories
    held out by all of them give the goals. options: of the world, where they are to differ from the runs'."""
    if not paths:
        raise UserError("there is nothing to evaluate: give at least one run folder.")
    resolved = [Path(p).resolve() for p in paths]
    if len(set(resolved)) != len(resolved):
        raise UserError("a run folder is given twice: name each once.")
    loaded = [load(path, device=device, checkpoint=checkpoint) for path in paths]
    first = loaded[0]
    for one in loaded:
        if one.world is None:
            raise NoWorld(f"{one.path} was trained on recordings of a world that is not known here: it cannot act.")
        if (one.spec.name, one.spec.options) != (first.spec.name, first.spec.options):
            raise UserError(
                f"{first.path} was trained in {first.spec.name} {first.spec.options} and {one.path} in "
                f"{one.spec.name} {one.spec.options}: evaluate the runs of one world at a time."
            )
    episodes = first.episodes() if data else None
    for one in loaded[1:]:
        if episodes is not None and one.episodes().digest != episodes.digest:
            raise UserError(f"{first.path} and {one.path} were trained on different data: use --goals random.")
    world: Any = first.world
    if options:
        world = make_world(first.spec.name, **{**first.spec.options, **options})
    if episodes is not None and hasattr(world, "remember"):
        world.remember(episodes.states, episodes.actions)
    return Team(_named(tuple(map(agent_of, loaded))), world, episodes, min(x.holdout for x in loaded))


def _named(agents: tuple[Agent, ...]) -> tuple[Agent, ...]:
    """Where one label stands for several methods, what differs in their configs is added, or the hash."""
    alike: dict[str, dict[str, dict[str, Any]]] = {}
    for a in agents:
        alike.setdefault(a.method[:-5], {})[a.method] = flat(to_dict(a.provenance.config or {}))
    names = {old: f"{label}{end}" for label, configs in alike.items() for old, end in _ends(configs).items()}
    return tuple(replace(a, method=names[a.method]) for a in agents)


def _ends(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """` rung=lti1` for each method: the field that tells them apart, or two; those of data and length come last."""
    if len(configs) == 1:
        return dict.fromkeys(configs, "")
    names = dict.fromkeys(f for c in configs.values() for f in c if f != "train.seed")
    values = {f: [c.get(f) for c in configs.values()] for f in names}
    fields = [f for f, of in values.items() if any(v != of[0] for v in of)]
    fields.sort(key=lambda f: f.startswith(("data.", "train.")))
    for chosen in (*((f,) for f in fields), fields[:2]):
        ends = [" ".join(f"{f.rpartition('.')[2]}={values[f][i]}" for f in chosen) for i in range(len(configs))]
        if len(set(ends)) == len(ends) and max(map(len, ends)) <= 24:
            return {method: f" {end}" for method, end in zip(configs, ends, strict=True)}
    return {method: method[-5:] for method in configs}


def of_run(folder: str | Path) -> Provenance:
    """Recipe, config, data, the last monitors, and how it was trained; empty where run.json cannot be read."""
    folder = Path(folder)
    try:
        run = read_record(folder)
    except UserError:
        return Provenance()
    records = read_log(folder) if (folder / LOG).exists() else []
    last = {r.kind: r.values for r in records}
    named = [(last.get("train", {}), MONITORS), (last.get("val", {}), HELD_OUT)]
    monitors = {name: values[name] for values, names in named for name in names if name in values}
    events = tuple(r.message for r in records if r.kind == "event" and r.message)
    training, stretches = None, sessions(folder)
    if stretches:
        minutes, last_one = round(sum(s.seconds for s in stretches) / 60, 2), vars(stretches[-1])
        of_last = ("device", "processes", "commit", "source", "versions")
        training = Training(minutes, *(last_one[name] for name in of_last))
    return Provenance(
        recipe=run.name, data=run.data, config=run.config, monitors=monitors, events=events, training=training
    )
