"""What `import lpwm` offers: one function per verb. Paths, devices, recipes and worlds may be strings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lpwm.core.errors import UserError, choose
from lpwm.recipes import recipe, recipes
from lpwm.train.run_config import RunConfig, override, pick_device

if TYPE_CHECKING:
    import torch

    from lpwm.data import EpisodeData
    from lpwm.evaluate.results import Evaluation
    from lpwm.interpret.recorded import RecordedEvaluation
    from lpwm.train.run import Run

    AnyPath: TypeAlias = str | os.PathLike[str]
    Runs: TypeAlias = Run | AnyPath | Sequence[Run | AnyPath]
    Device: TypeAlias = str | torch.device

__all__ = ["collect", "evaluate", "interpret", "recipes", "report", "train"]


def collect(
    world: Any, out: AnyPath, episodes: int, *, options: Mapping[str, Any] | None = None, **more: Any
) -> EpisodeData:
    """Collect episodes of a world into the HDF5 file `out`, and return them. options: of a world given by name.  more:
    steps, policy, seed, workers, pixels, … as in `lpwm.data.collect`."""
    from lpwm.core.plugins import give
    from lpwm.data import collect, read
    from lpwm.worlds import make_world

    if isinstance(world, str):
        given = [world.removeprefix("gym:"), more.get("policy"), *dict(options or {}).values()]
        give(*(name for name in given if isinstance(name, str) and ":" in name))
        world = make_world(world, **dict(options or {}))
    elif options:
        raise UserError("options belong to a world given by name: build the world with them instead.")
    collect(world, Path(out), episodes=episodes, **more)
    return read(Path(out), verify=False)


def configure(
    what: str | RunConfig,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    data: AnyPath | None = None,
) -> RunConfig:
    """The config of a recipe, or a config, with fields set: `overrides={"objective.lam": 1.0}`."""
    changes = dict(overrides or {})
    if data is not None:
        changes["data.file"] = os.fspath(data)
    if seed is not None:
        changes["train.seed"] = seed
    if isinstance(what, str):
        what = recipe(what, changes.get("model.latent"))
    elif not isinstance(what, RunConfig):
        raise UserError(f"give the name of a recipe or a RunConfig, not {type(what).__name__}.")
    return override(what, changes)


def train(
    what: str | RunConfig,
    out: AnyPath = "runs",
    *,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    data: AnyPath | None = None,
    name: str | None = None,
    weights: AnyPath | None = None,
    device: Device = "auto",
    console: bool = False,
    wandb: str | None = None,
    report: Callable[[str], None] = lambda sentence: None,
) -> Run:
    """Train a recipe or a RunConfig to the end and return its run; one that was begun before is continued.

    data: a recorded data set in place of the recipe's own.  name: the run folder's, before its hash.
    weights: a run, checkpoint, folder or hub name to start from.
    console: show progress.  report: gets sentences for the user.
    """
    from lpwm.train.run import Run

    config = configure(what, seed, overrides, data)
    label, start = name or (what if isinstance(what, str) else "run"), None if weights is None else os.fspath(weights)
    run = Run.create(config, Path(out), label, weights=start)
    run.train(pick_device(device), console=console, wandb=wandb, report=report)
    return run


def evaluate(
    runs: Runs,
    preset: str = "paper",
    *,
    options: Mapping[str, Any] | None = None,
    device: Device = "auto",
    checkpoint: Literal["latest", "best"] = "latest",
    progress: Callable[[int], None] | None = None,
    frames: int = 3,
    **changes: Any,
) -> Evaluation | RecordedEvaluation:
    """Plan with trained runs of one world, next to the controls. `result.table()`, `result.to_json(path)`.

    options: of the runs' world, where they are to differ (when a goal counts as reached, say).
    frames: of how many episodes pictures are written for the report, with what the model imagined.
    changes: fields of `EvalConfig` that differ from the preset's, e.g. episodes=20, solver="icem".
    The result is also written to eval/ in the first run's folder, where `lpwm.report` finds it. Runs on recordings of
    no known world are measured on held-out recordings alone: a `RecordedEvaluation`, with the same two methods.
    """
    from lpwm.evaluate.config import preset as find_preset
    from lpwm.evaluate.episodes import Store
    from lpwm.evaluate.evaluate import evaluate
    from lpwm.evaluate.runs import NoWorld, load_team

    config = _changed(find_preset(preset), changes)
    where, folders = pick_device(device), _folders(runs)
    try:
        team = load_team(folders, device=where, checkpoint=checkpoint, data="dataset" in config.goals, options=options)
    except NoWorld:
        from lpwm.interpret.recorded import evaluate_recorded

        recorded, path = evaluate_recorded(folders, config, device=where, checkpoint=checkpoint)
        recorded.to_json(path)
        return recorded
    store = Store(folders[0].resolve().parent / "episodes")
    more: dict[str, Any] = {"data": team.data, "holdout": team.holdout, "store": store, "progress": progress}
    result = evaluate(team.agents, team.world, config, device=where, **more)
    from lpwm.interpret.episode_frames import write_frames

    path = folders[0] / "eval" / f"{result.digest}.json"
    result.to_json(path)
    write_frames(result, path, frames, device=where, checkpoint=checkpoint)
    return result


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    from lpwm.core.config import from_dict, to_dict

    return from_dict(type(config), {**to_dict(config), **{k: to_dict(v) for k, v in changes.items()}})


def interpret(
    run: Run | AnyPath,
    what: Literal["zones", "factors", "imagination", "sparsity"] | None = None,
    *,
    device: Device = "auto",
    **settings: Any,
) -> Any:
    """Inspect the codes of a run. Returns a `Study` (zones), `FactorStudy`, `Imagination` or `Sparsity`.

    what: zones on Piecewise and factors elsewhere, when not given.  settings: fields of `StudyConfig`, `FactorConfig`
    or `DecoderConfig`; frames and seed for sparsity. The result is also written to interpret/ in the run's folder, and
    the probes of factors to the folder itself, where an agent finds them.
    """
    from lpwm.core.config import digest, to_dict
    from lpwm.core.files import make_folder, write_whole
    from lpwm.core.json import dump_json
    from lpwm.interpret import factor_study, imagination_study, sparsity, study
    from lpwm.interpret.config import DecoderConfig, FactorConfig, StudyConfig
    from lpwm.train.loaded import load

    (folder,) = _folders(run)
    loaded = load(folder, device=pick_device(device))
    what = what or ("zones" if loaded.spec.name == "piecewise" else "factors")
    if what == "zones":
        result: Any = study(loaded, _changed(StudyConfig(), settings))
    elif what == "factors":
        result = factor_study(loaded, _changed(FactorConfig(), settings))
    elif what == "imagination":
        result = imagination_study(loaded, folder / "interpret", _changed(DecoderConfig(), settings))
    else:
        choose("kind of study", what, dict.fromkeys(("zones", "factors", "imagination", "sparsity")))
        result = sparsity(loaded, **settings)
    name = digest({"what": what, "settings": to_dict(settings), "run": loaded.run_hash, "step": loaded.step})
    make_folder(folder / "interpret")
    write_whole(folder / "interpret" / f"{what}-{name}.json", dump_json(result.to_json()))
    return result


def report(runs: Runs, out: AnyPath, title: str = "") -> Path:
    """Write one page about runs, their evaluations and studies; returns its path."""
    from lpwm.report import page
    from lpwm.report.gather import gather

    return page.write(Path(out), gather(_folders(runs)), title=title)


def _folders(runs: Any) -> list[Path]:
    """Folders of one run or several, each given as a path, a string or a Run."""
    several = [runs] if isinstance(runs, str | os.PathLike) or hasattr(runs, "folder") else list(runs)
    return [Path(getattr(one, "folder", one)) for one in several]
