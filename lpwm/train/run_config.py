"""What makes a model: `RunConfig` composes the components' configs, and `prepare_data` finds or collects its data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from lpwm import worlds
from lpwm.core.config import digest, from_dict, hashed, to_dict
from lpwm.core.errors import UserError, nearest
from lpwm.core.files import make_folder
from lpwm.core.memory import free_bytes
from lpwm.core.version import __version__
from lpwm.data import EpisodeData, collect, read
from lpwm.data.collecting import Busy
from lpwm.data.streamed import SOURCES
from lpwm.losses import ObjectiveConfig
from lpwm.model import ModelConfig
from lpwm.optim import OptimConfig
from lpwm.train.cost import Cost, check_memory, estimate
from lpwm.train.distributed import Ranks
from lpwm.train.loop import TrainConfig

PIXELS = ("auto", "stored", "rendered")


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
    pixels: Literal["auto", "stored", "rendered"] = "auto"  # auto: stored frames, unless rendering is cheaper
    source: Literal["auto", "resident", "streamed"] = "auto"  # auto: frames in memory if they fit
    workers: int = 0  # processes that read streamed frames; 0: one fewer than cores
    frames: int = 0  # collect frames of this side too, for a world that is slow to draw; 0: states alone

    def __post_init__(self) -> None:
        if min(self.episodes, self.frameskip) < 1 or self.steps < 0:
            raise UserError("data.episodes and data.frameskip must be at least 1, data.steps too or 0.")
        for name, value, valid in (("pixels", self.pixels, PIXELS), ("source", self.source, SOURCES)):
            if value not in valid:
                raise UserError(f"unknown data.{name} {value!r}: {nearest(value, valid)}.")
        if self.workers < 0:
            raise UserError(f"data.workers = {self.workers} must be at least 0, which is one fewer than cores.")
        if self.frames and self.frames < 8:
            raise UserError(f"data.frames = {self.frames} is the side of a frame: at least 8, or 0 for none.")
        if not 0 < self.holdout < 1:
            raise UserError(f"data.holdout = {self.holdout} is a share of the trajectories, between 0 and 1.")

    def build_world(self) -> worlds.World:
        return worlds.make(self.world, **parse_options(self.options))


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
        return estimate(self.model, self.objective, action_dim, self.frames, self.train.batch, half)

    def check_fits(self, device: torch.device, ranks: Ranks, action_dim: int) -> tuple[Cost, int]:
        """The predicted cost and the clips in memory at once; a sentence with the batch that fits if they do not."""
        cost = self.cost(action_dim * self.data.frameskip, half_precision(self.train.precision, device))
        local = -(-self.train.batch // ranks.ranks // self.train.accumulate)
        check_memory(cost, local, free_bytes(device), str(device))
        return cost, local


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


def pick_device(name: str) -> torch.device:
    """auto: CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("no GPU that torch can use: run with --device cpu, and see lpwm doctor.")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N.") from None


def prepare_data(config: DataConfig, folder: Path, progress: Callable[[int], None] | None = None) -> EpisodeData:
    """The run's data set: the given file, or one collected into `folder` under the hash of its description."""
    if config.file:
        return read(config.file)
    world = config.build_world()
    steps, policy = config.steps or None, config.policy or None
    name = digest(
        {
            "spec": to_dict(world.spec),
            "n": config.episodes,
            "steps": steps,
            "policy": policy,
            "seed": config.seed,
            "version": __version__,
            **({"frames": config.frames} if config.frames else {}),
        }
    )
    path = folder / f"{config.world}-{name}.h5"
    while not path.exists():
        make_folder(folder)
        try:
            collect(
                world,
                path,
                episodes=config.episodes,
                steps=steps,
                policy=policy,
                seed=config.seed,
                workers=None,
                pixels=config.frames > 0,
                size=config.frames or None,
                progress=progress,
            )
        except UserError as error:
            if not isinstance(error, Busy) and not path.exists():
                raise
            time.sleep(0.5)  # another run wants the same data and was here first
    return read(path)


def half_precision(precision: str, device: torch.device) -> bool:
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")
