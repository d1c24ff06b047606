"""What makes a model: `RunConfig` composes the components' configs. Nothing here imports torch."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from lpwm.core.config import RENAMED_OPTIONS, digest, from_dict, hashed, to_dict
from lpwm.core.errors import UserError, at_least, nearest
from lpwm.core.json import Reader, read_json
from lpwm.losses.config import ObjectiveConfig
from lpwm.model.config import ModelConfig
from lpwm.optim.config import OptimConfig


@dataclass(frozen=True)
class HealthConfig:
    """When a run counts as dead. The ranges are those of labeled logs at 32² to 224² (tests/golden/health_logs.json)
    after the grace period."""

    # Effective dimension: below it a code cannot hold a dot's state. Healthy: 2.03 to 53; dead: 1.01.
    min_dimension: float = 2.0
    # Relative error. Healthy: below 0.55. Large models stay above for thousands of steps: this only warns.
    max_relative_error: float = 0.5
    # Of the codes' RMS and of their deviation from the mean code. Healthy: above 0.4; without a regularizer 0.0001.
    min_std: float = 0.01
    # Temporal variation. Healthy: above 0.026; a code linear in the position of a slow dot 0.002; the rounding of bf16
    # alone 4e-6.
    min_variation: float = 1e-4
    # Action sensitivity; a model whose error is below max_relative_error is held to five times it. Healthy: above
    # 0.06; dead: 0 to 0.01.
    min_sensitivity: float = 0.003
    # Share of the steps that is not judged: AdaLN-zero and LTI start action-blind.
    grace: float = 0.1
    min_steps: int = 500  # Steps that are not judged, at least.
    # Log points in a row that must agree.
    patience: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.grace <= 1:
            raise UserError(f"health.grace = {self.grace} is a share of the steps: give 0 to 1.")
        at_least(1, self, "health", "patience")
        at_least(0, self, "health", "min_dimension", "max_relative_error", "min_std", "min_variation")
        at_least(0, self, "health", "min_sensitivity", "min_steps")

    def judged_after(self, steps: int) -> int:
        """The last step of the grace period."""
        return max(self.min_steps, math.ceil(self.grace * steps))


@dataclass(frozen=True)
class TrainConfig:
    """How long, how often, and on what."""

    steps: int = 10_000  # of the optimizer
    batch: int = 64  # clips of the global batch, over all ranks
    seed: int = 0  # of weights, clips and draws
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA, float32 on CPU
    # auto: on CUDA; graph: captured without compiling
    compile: Literal["auto", "on", "graph", "off"] = "auto"
    kernels: Literal["auto", "off"] = "auto"  # own Triton kernels in the encoder, where they serve (CUDA, bf16)
    accumulate: int = 1  # micro-batches per step, with the gradient of the whole batch
    log_every: int = 50  # steps
    eval_every: int = 1000  # held-out errors; 0 = only at the end
    eval_batches: int = 4  # held-out batches of an evaluation
    checkpoint_every: int = 1000  # steps
    keep: int = 2  # last checkpoints kept, and the best
    stop_dead: bool = True  # stop a run that is dead; else it only says so
    health: HealthConfig = field(default_factory=HealthConfig)

    def __post_init__(self) -> None:
        at_least(1, self, "train", "steps", "batch", "accumulate", "log_every", "keep", "eval_batches")
        at_least(1, self, "train", "checkpoint_every")
        at_least(0, self, "train", "eval_every")


if TYPE_CHECKING:
    import torch

    from lpwm.train.cost import Cost
    from lpwm.train.distributed import Ranks
    from lpwm.worlds import World

RUN = "run.json"
Pixels = Literal["auto", "stored", "rendered"]
Source = Literal["auto", "resident", "streamed"]


@dataclass(frozen=True)
class DataConfig:
    """Which clips. Without `file`, the data are collected once, in the folder of data, and found again."""

    world: str = "piecewise"  # a registered name, or gym:ID
    options: tuple[str, ...] = ()  # of the world, e.g. g=3
    episodes: int = 1000  # to collect
    steps: int = 100  # raw steps of an episode; 0: the policy's own lengths (PushT: 100 to 300), or the world's
    policy: str = ""  # the world's own when empty
    seed: int = 0  # of the collection
    file: str = ""  # a recorded data set instead: HDF5, Lance, DINO-WM's, LeRobot's, a folder of videos, owner/name
    camera: str = ""  # whose frames, of a LeRobot data set with several
    cache: str = ""  # a folder for frames that are decoded once (mp4); nothing is kept when empty
    holdout: float = 0.1  # share of the trajectories held out, where the data set does not say which
    frameskip: int = 5  # raw steps between two frames of a clip: a block of actions
    pixels: Pixels = "auto"  # auto: stored frames, unless rendering is cheaper
    source: Source = "auto"  # auto: frames in memory if they fit
    workers: int = 0  # processes that read streamed frames; 0: one fewer than cores
    frames: int = 0  # collect frames of this side too, for a world that is slow to draw; 0: states alone

    def __post_init__(self) -> None:
        at_least(1, self, "data", "episodes", "frameskip")
        at_least(0, self, "data", "steps", "workers")
        for name, value, kind in (("pixels", self.pixels, Pixels), ("source", self.source, Source)):
            if value not in get_args(kind):
                raise UserError(f"unknown data.{name} {value!r}: {nearest(value, get_args(kind))}.")
        if self.frames and self.frames < 8:
            raise UserError(f"data.frames = {self.frames} is the side of a frame: at least 8, or 0 for none.")
        if not 0 < self.holdout < 1:
            raise UserError(f"data.holdout = {self.holdout} is a share of the trajectories, between 0 and 1.")

    def build_world(self) -> "World":
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

    def cost(self, action_dim: int, half: bool) -> "Cost":
        """The predicted cost of a step with action blocks of this size; `half`: activations in bf16."""
        from lpwm.train.cost import estimate

        return estimate(self.model, self.objective, action_dim, self.frames, self.train.batch, half)

    def check_fits(self, device: "torch.device", ranks: "Ranks", action_dim: int) -> "tuple[Cost, int]":
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
            options = [name for name, inner in at.items() if isinstance(inner, dict)]
            if part not in options:
                raise UserError(f"unknown field {key!r} of a run: {nearest(part, options)}.")
            at = at[part]
        at[leaf] = value
    return from_dict(RunConfig, data)


def run_hash(config: RunConfig, data_digest: str, start: "Start | None" = None) -> str:
    """A name for what makes the model. Where frames wait to be used is no part of it."""
    described = hashed(config)
    for name in ("source", "workers", "cache", *(("pixels",) if config.data.pixels == "auto" else ())):
        described["data"].pop(name, None)
    origin = {} if start is None else {"start": [start.hash, start.step, start.further]}
    return digest({"config": described, "data": data_digest, **origin})


def method_digest(config: RunConfig | Mapping[str, Any]) -> str:
    """Names a config but for its training seed: runs that share it are one method, and its sample."""
    if isinstance(config, Mapping):
        config = from_dict(RunConfig, dict(config))
    return digest(replace(config, train=replace(config.train, seed=0)))


def half_precision(precision: str, device: "torch.device") -> bool:
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def pick_device(name: "str | torch.device") -> "torch.device":
    """auto: CUDA where there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"torch sees no GPU for device {name}: use cpu (--device cpu), and see lpwm doctor.")
    return device


@dataclass(frozen=True)
class Start:
    """The model that a run starts from instead of fresh weights."""

    run: str  # its folder's name, or its name on the hub
    hash: str  # of its run, or of its weights
    step: int
    further: bool  # its optimizer and its count of steps too: the same training, longer

    @property
    def label(self) -> str:
        """Joins the name of a run, so that it is not taken for another seed of one with fresh weights."""
        return f"-from-{self.step}" if self.further else f"-from-{self.hash[:6]}"


@dataclass(frozen=True)
class RunRecord:
    """run.json of a run folder."""

    hash: str
    name: str  # of the recipe
    data: str  # the digest of the data
    version: str
    config: RunConfig
    start: Start | None = None


def read_record(folder: Path) -> RunRecord:
    path = folder / RUN
    if not path.exists():
        raise UserError(_no_run(folder))
    run = Reader(read_json(path), str(path))
    config, train = run.get("config", dict[str, Any]), run.child("config").get("train", dict[str, Any])
    before = isinstance(train.get("kernels"), bool)  # as it was written before "auto", with another hash
    if before:
        config |= {"train": train | {"kernels": "auto" if train["kernels"] else "off"}}
    texts = {name: run.get(name, str) for name in ("hash", "name", "data", "version")}
    record = RunRecord(config=from_dict(RunConfig, config), start=run.get("start", Start | None, None), **texts)
    if not before and run_hash(record.config, record.data, record.start) != record.hash:
        raise UserError(f"{path} was altered after it was written: restore it, or train with these settings anew.")
    return record


def _no_run(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist: give the folder of a run, as lpwm train named it."
    inside = sorted(path.parent for path in folder.glob(f"*/{RUN}"))
    if inside:
        return f"{folder} is not a run but holds {len(inside)}: give their folders, for instance {inside[0]}."
    return f"{folder} is not a run: it has no {RUN}. lpwm train makes one."
