"""What makes a model: `RunConfig` composes the components' configs. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from lpwm.core.config import RENAMED_OPTIONS, digest, from_dict, hashed, to_dict
from lpwm.core.errors import UserError, nearest
from lpwm.losses.config import ObjectiveConfig
from lpwm.model.config import ModelConfig
from lpwm.optim.config import OptimConfig
from lpwm.train.config import TrainConfig

if TYPE_CHECKING:
    import torch

    from lpwm.train.cost import Cost
    from lpwm.train.distributed import Ranks
    from lpwm.worlds import World

Pixels = Literal["auto", "stored", "rendered"]
Source = Literal["auto", "resident", "streamed"]


@dataclass(frozen=True)
class DataConfig:
    """Which clips. Without `file`, the data are collected once, in the folder of data, and found again."""

    world: str = "piecewise"
    options: tuple[str, ...] = ()  # of the world, e.g. g=3
    episodes: int = 1000
    steps: int = 100  # raw steps of an episode; 0: the policy's own lengths (PushT: 100 to 300), or the world's
    policy: str = ""  # the world's own when empty
    seed: int = 0
    file: str = ""  # a recorded data set instead: a file, or a folder of DINO-WM's or a Lance table
    holdout: float = 0.1  # share of the trajectories held out, where the data set does not say which
    frameskip: int = 5
    pixels: Pixels = "auto"  # auto: stored frames, unless rendering is cheaper
    source: Source = "auto"  # auto: frames in memory if they fit
    workers: int = 0  # processes that read streamed frames; 0: one fewer than cores
    frames: int = 0  # collect frames of this side too, for a world that is slow to draw; 0: states alone

    def __post_init__(self) -> None:
        if min(self.episodes, self.frameskip) < 1 or self.steps < 0:
            raise UserError("data.episodes and data.frameskip must be at least 1, data.steps too or 0.")
        for name, value, kind in (("pixels", self.pixels, Pixels), ("source", self.source, Source)):
            if value not in get_args(kind):
                raise UserError(f"unknown data.{name} {value!r}: {nearest(value, get_args(kind))}.")
        if self.workers < 0:
            raise UserError(f"data.workers = {self.workers} must be at least 0, which is one fewer than cores.")
        if self.frames and self.frames < 8:
            raise UserError(f"data.frames = {self.frames} is the side of a frame: at least 8, or 0 for none.")
        if not 0 < self.holdout < 1:
            raise UserError(f"data.holdout = {self.holdout} is a share of the trajectories, between 0 and 1.")

    def build_world(self) -> World:
        from lpwm.worlds import make_world

        return make_world(self.world, **parse_options(self.options))


def parse_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """("g=3", "visible=true") -> {"g": 3, "visible": True}; what is not JSON is text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"{pair!r} is no option: write name=value, e.g. g=3.")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = {"True": True, "False": False}.get(text, text)
    return options


@dataclass(frozen=True)
class RunConfig:
    """A run. Every field can be set on the command line: --model.latent 768, --objective.lam 0.1."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        self.objective.validate(self.model.sparse, self.frames)
        span = (self.frames - 1) * self.data.frameskip
        if not self.data.file and 0 < self.data.steps < span:
            raise UserError(
                f"a history of {self.model.predictor.history} needs clips of {self.frames} frames, {span} raw steps, "
                f"but episodes have {self.data.steps}: use longer episodes (data.steps) or a shorter history."
            )

    @property
    def frames(self) -> int:
        """T: the history and one frame more, or as many as fed-back predictions need."""
        return max(self.model.predictor.history, self.objective.rollout_steps) + 1

    def cost(self, action_dim: int, half: bool) -> Cost:
        """The predicted cost of a step with action blocks of this size; `half`: activations in bf16."""
        from lpwm.train.cost import estimate

        return estimate(self.model, self.objective, action_dim, self.frames, self.train.batch, half)

    def check_fits(self, device: torch.device, ranks: Ranks, action_dim: int) -> tuple[Cost, int]:
        """The predicted cost and the clips in memory at once; a sentence with the batch that fits if they do not."""
        from lpwm.core.memory import free_bytes
        from lpwm.train.cost import check_memory

        cost = self.cost(action_dim * self.data.frameskip, half_precision(self.train.precision, device))
        local = -(-self.train.batch // ranks.ranks // self.train.accumulate)
        check_memory(cost, local, free_bytes(device), str(device))
        return cost, local


def override(base: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """The config with dotted fields set; a wrong name, type or value is a UserError."""
    data = to_dict(base)
    for key, value in overrides.items():
        *path, leaf = RENAMED_OPTIONS.get(key, key).split(".")
        at: Any = data
        for part in path:
            inner = at.get(part) if isinstance(at, dict) else None
            if not isinstance(inner, dict):
                options = [k for k, v in at.items() if isinstance(v, dict)] if isinstance(at, dict) else []
                raise UserError(f"unknown field {key!r} of a run: {nearest(part, options)}.")
            at = inner
        at[leaf] = value
    return from_dict(RunConfig, data)


def run_hash(config: RunConfig, data_digest: str) -> str:
    """A name for what makes the model. Where frames wait to be used is no part of it."""
    described = hashed(config)
    for name in ("source", "workers", *(("pixels",) if config.data.pixels == "auto" else ())):
        del described["data"][name]
    return digest({"config": described, "data": data_digest})


def method_digest(config: RunConfig | Mapping[str, Any]) -> str:
    """Names a config but for its training seed: runs that share it are one method, and its sample."""
    if isinstance(config, Mapping):
        config = from_dict(RunConfig, dict(config))
    return digest(replace(config, train=replace(config.train, seed=0)))


def half_precision(precision: str, device: torch.device) -> bool:
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def pick_device(name: str | torch.device) -> torch.device:
    """auto: CUDA where there is one."""
    import torch

    if isinstance(name, torch.device):
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no GPU that torch can use: run with --device cpu, and see lpwm doctor.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N.") from None


def read_record(folder: Path) -> dict[str, Any]:
    """run.json of a run folder, as this version writes it."""
    try:
        record = json.loads((folder / "run.json").read_text())
        kernels = record["config"]["train"].get("kernels")
        if isinstance(kernels, bool):  # as it was written before "auto"
            record["config"]["train"]["kernels"] = "auto" if kernels else "off"
        return {key: record[key] for key in ("hash", "name", "data", "version", "config")}
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(_no_run(folder)) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / 'run.json'} is damaged: restore it, or start the run again.") from None


def _no_run(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist: give the folder of a run, as lpwm train named it."
    inside = sorted(path.parent for path in folder.glob("*/run.json"))
    if inside:
        return f"{folder} is not a run but holds {len(inside)}: give their folders, for instance {inside[0]}."
    return f"{folder} is not a run: it has no run.json. lpwm train makes one."
