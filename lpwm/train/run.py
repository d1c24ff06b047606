"""A run is a folder, made or continued.

run.json          the config, the data's digest, and the hash of both (which names the run)
log.jsonl         what was logged;  tensorboard/ the same
training.json     how long each stretch of training took, where, and by which code
checkpoints/      step-00001000/ …; each also loads as a pretrained model
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lpwm import worlds
from lpwm.core.config import from_dict, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.provenance import add_session
from lpwm.core.version import __version__
from lpwm.data import ActionStats, EpisodeData, ResidentClips, StreamedClips, open_clips, world_of
from lpwm.data.frames import StoredFrames
from lpwm.data.normalize import pixel_stats
from lpwm.losses import Objective
from lpwm.losses.rdmreg import floor
from lpwm.model import WorldModel
from lpwm.optim import build, initialize
from lpwm.train import checkpoint
from lpwm.train.cost import Cost
from lpwm.train.depth import depth_errors, held_out_clips, held_out_range
from lpwm.train.distributed import Ranks
from lpwm.train.log import LOG, Logger, read_log
from lpwm.train.loop import Callbacks, train
from lpwm.train.prepare import prepare_data
from lpwm.train.run_config import RunConfig, half_precision, read_record, run_hash
from lpwm.train.step import Stepper
from lpwm.worlds import WorldSpec


@dataclass
class Run:
    """A run folder, made or continued."""

    config: RunConfig
    folder: Path
    data: EpisodeData
    hash: str

    @classmethod
    def create(
        cls,
        config: RunConfig,
        root: Path,
        name: str = "run",
        progress: Callable[[int], None] | None = None,
        ranks: Ranks | None = None,
    ) -> Run:
        """The folder ROOT/NAME-HASH; one that is there already is the same run and is continued."""
        ranks = ranks or Ranks()
        data = prepare_data(config.data, root / "data", progress) if ranks.first else None
        ranks.wait()
        data = data or prepare_data(config.data, root / "data")
        code = run_hash(config, data.digest)
        folder = root / f"{name.replace('/', '-')}-{code}"
        if ranks.first:
            make_folder(folder)
            record = {
                "hash": code,
                "name": name,
                "data": data.digest,
                "version": __version__,
                "config": to_dict(config),
            }
            write_whole(folder / "run.json", json.dumps(record, indent=2))
        ranks.wait()
        return cls(config, folder, data, code)

    @classmethod
    def open(cls, folder: Path) -> Run:
        record = read_record(folder)
        config = from_dict(RunConfig, record["config"])
        data = prepare_data(config.data, folder.parent / "data")
        if data.digest != record["data"]:
            raise UserError(
                f"the data of {folder} changed (digest {data.digest[:12]}, the run had {record['data'][:12]}): "
                "restore the file, or start a new run."
            )
        return cls(config, folder, data, record["hash"])

    def world(self) -> worlds.World | None:
        """The world that renders the states; None where stored frames are used."""
        choice, data = self.config.data.pixels, self.data
        if choice == "stored" and data.pixels is None:
            raise UserError("data.pixels is stored, but the data have no pixels: leave it at auto.")
        if choice == "rendered":
            return world_of(data)
        if data.pixels is None or (choice == "auto" and isinstance(data.pixels, StoredFrames) and data.pixels.slow):
            return world_of(data) if data.spec is not None else None
        return None

    def source(
        self, device: torch.device, ranks: Ranks | None = None, split: str = "train", **changes: Any
    ) -> ResidentClips | StreamedClips:
        """Clips of a split, from memory or streamed: as data.source says, or as they fit."""
        c, ranks = self.config, ranks or Ranks()
        options: dict[str, Any] = {
            "clip_length": c.frames,
            "batch": c.train.batch,
            "seed": c.train.seed,
            "image_size": c.model.encoder.image_size,
            "rank": ranks.rank,
            "ranks": ranks.ranks,
            "compiled": c.train.compile in ("auto", "on"),
            **changes,
        }
        return open_clips(
            self.data,
            source=c.data.source,
            world=self.world(),
            frameskip=c.data.frameskip,
            split=split,
            holdout=c.data.holdout,
            device=device,
            workers=c.data.workers or None,
            **options,
        )

    def build_model(self, device: torch.device) -> WorldModel:
        """Fresh weights, a function of the seed alone (and, with pixels="data", of the training frames)."""
        c = self.config
        model = WorldModel(c.model, self.data.actions.shape[1] * c.data.frameskip)
        initialize(model, c.train.seed)
        if c.model.encoder.pixels == "data":
            stats = pixel_stats(self.data, self.world(), c.model.encoder.image_size, c.data.holdout)
            model.encoder.vit.measure_pixels(*stats)
        return model.to(device)

    def meta(self, stats: ActionStats) -> dict[str, Any]:
        """What a model needs next to its weights to be used without its data."""
        return {
            "world": to_dict(self.data.spec) if self.data.spec else None,
            "normalization": stats.as_dict(),
            "action_bounds": action_bounds(self.data),
            "frameskip": self.config.data.frameskip,
            "image": self.config.model.encoder.image_size,
            "data_digest": self.data.digest,
            "run_hash": self.hash,
        }

    def train(
        self,
        device: torch.device,
        ranks: Ranks | None = None,
        *,
        console: bool = True,
        wandb: str | None = None,
        report: Callable[[str], None] = lambda sentence: None,
    ) -> WorldModel:
        """Train to the end, from the last good checkpoint if there is one. `report` gets sentences for the user."""
        ranks, c = ranks or Ranks(), self.config
        cost, local = c.check_fits(device, ranks, self.data.actions.shape[1])
        model = self.build_model(device)
        source = self.source(device, ranks)
        graphed = device.type == "cuda" and c.train.compile != "off" and ranks.alone and c.train.accumulate == 1
        options = {"fused": True, **({"capturable": True} if device.type == "cuda" else {})}
        optimizer = build(model, c.optim, **options)
        start = self.restore(model, optimizer, report)
        if start >= c.train.steps:
            report(f"{self.folder} is already trained to step {start}.")
            return model.eval()
        objective = Objective(c.objective, c.model.sparse)
        stepper = Stepper(
            model,
            objective,
            optimizer,
            c.train.batch,
            c.train.seed,
            c.optim.clip,
            torch.bfloat16 if half_precision(c.train.precision, device) else torch.float32,
            compiled=c.train.compile == "on" or (c.train.compile == "auto" and device.type == "cuda"),
            graphed=graphed,
            kernels=c.train.kernels == "auto",
            accumulate=c.train.accumulate,
            ranks=ranks,
        )
        world = world_of(self.data) if self.data.spec is not None else None
        health = c.train.health.for_world(getattr(world, "degrees_of_freedom", 0))
        settings, least = replace(c.train, health=health), self.regularizer_floor()
        logger = None
        if ranks.first:
            shown: dict[str, Any] = {"console": console, "wandb": wandb, "config": to_dict(c)}
            logger = Logger(self.folder, total_steps=c.train.steps, start_step=start, **shown)
        began = time.perf_counter()
        try:
            with _out_of_memory(cost, local, device):
                callbacks = self.callbacks(model, optimizer, source, ranks)
                train(model, source, objective, stepper, settings, c.optim, logger, callbacks, start, least)
        finally:
            source.close()
            if logger is not None:
                logger.close()
                last = read_log(self.folder, "train") if (self.folder / LOG).exists() else []
                end, seconds = last[-1]["step"] if last else start, time.perf_counter() - began
                add_session(self.folder, start, end, seconds, device, ranks.ranks)
        return model.eval()

    def restore(self, model: WorldModel, optimizer: torch.optim.Optimizer, report: Callable[[str], None]) -> int:
        if not (self.folder / "checkpoints").exists():
            return 0
        try:
            last = checkpoint.latest(self.folder)
        except UserError as error:
            report(f"{error} Starting from the beginning.")
            return 0
        for sentence in last.refused:
            report(sentence)
        return checkpoint.restore(last, model, optimizer)

    def callbacks(
        self, model: WorldModel, optimizer: torch.optim.Optimizer, source: ResidentClips | StreamedClips, ranks: Ranks
    ) -> Callbacks:
        c = self.config
        # Held-out clips are needed now and then: two readers do.
        held_out = held_out_clips(
            self.data,
            source=c.data.source,
            workers=min(c.data.workers or 2, 2),
            world=self.world(),
            frameskip=c.data.frameskip,
            holdout=c.data.holdout,
            device=source.device,
            image_size=c.model.encoder.image_size,
            batch=min(c.train.batch, 64),
            stats=source.stats,
        )
        spec = self.data.spec

        def evaluate(step: int) -> dict[str, Any]:
            errors = depth_errors(model, held_out, batches=c.train.eval_batches)
            if spec is not None and spec.proprio:  # how far the latent distance keeps growing with the state's
                errors |= held_out_range(model, held_out, spec.proprio, spec.frame)
            held_out.close()
            return errors

        def save(step: int, metric: float | None) -> None:
            if ranks.first:
                checkpoint.save(
                    self.folder,
                    model=model,
                    optimizer=optimizer,
                    step=step,
                    run={**to_dict(c), "seed": c.train.seed},
                    run_hash=self.hash,
                    meta=self.meta(source.stats) | {"step": step},
                    metric=metric,
                    keep=c.train.keep,
                )
            ranks.wait()

        return Callbacks(evaluate=evaluate if ranks.first else None, save=save)

    def result(self) -> dict[str, Any]:
        """The last logged numbers, and where the model is."""
        train_log, held_out = read_log(self.folder, "train"), read_log(self.folder, "val")
        return {
            "run": str(self.folder),
            "hash": self.hash,
            "step": train_log[-1]["step"] if train_log else 0,
            "train": train_log[-1] if train_log else {},
            "held_out": held_out[-1] if held_out else {},
        }

    def summary(self) -> str:
        r = self.result()
        error, copy = (r["held_out"].get("error_depth", [math.nan]), r["held_out"].get("copy_error_depth", [math.nan]))
        return (
            f"{r['run']}: step {r['step']}, held-out relative error {error[0]:.4f} at depth 1 (copying the last frame: "
            f"{copy[0]:.4f}) and {error[-1]:.4f} at depth {len(error)} (copying: {copy[-1]:.4f}), "
            f"active fraction {r['train'].get('active_fraction', math.nan):.2f}"
        )

    def regularizer_floor(self) -> float:
        """What RDMReg costs at a perfect match with this batch and width; 0 for other regularizers."""
        c = self.config
        if c.objective.regularizer != "rdmreg":
            return 0.0
        return floor(c.objective.rdmreg, c.train.batch, c.model.latent, (0,), c.model.sparse).match


@dataclass
class Loaded:
    """A trained model with what is needed to use it."""

    model: WorldModel
    config: RunConfig
    spec: WorldSpec
    world: worlds.World | None  # None: trained on recordings of a world that is not known
    stats: ActionStats
    frameskip: int
    image: int
    run_hash: str
    step: int
    path: Path
    holdout: float

    def episodes(self) -> EpisodeData:
        """The run's data set."""
        return Run.open(self.path).data


def load(path: str | Path, device: str | torch.device = "cpu", checkpoint: str = "latest") -> Loaded:
    """The model of a run folder, ready to plan with."""
    folder = Path(path)
    record = read_record(folder)
    config = from_dict(RunConfig, record["config"])
    model = WorldModel.from_pretrained(str(folder), device=str(device), checkpoint=checkpoint)
    meta = model.meta
    spec = spec_of(meta)
    return Loaded(
        model=model,
        config=config,
        spec=spec,
        world=worlds.make_world(spec.name, **spec.options) if meta["world"] is not None else None,
        stats=ActionStats.from_dict(meta["normalization"]),
        frameskip=meta["frameskip"],
        image=meta["image"],
        run_hash=record["hash"],
        step=int(meta.get("step", 0)),
        path=folder,
        holdout=config.data.holdout,
    )


def spec_of(meta: Mapping[str, Any]) -> WorldSpec:
    """The spec of a model's world; for recordings of an unknown one, what is known: the bounds of its actions."""
    if meta["world"] is not None:
        return from_dict(WorldSpec, meta["world"])
    bounds = meta.get("action_bounds")
    if bounds is None:  # as written by version 0.1.0: most of what was recorded
        stats = ActionStats.from_dict(meta["normalization"])
        low, high = ([m + k * s for m, s in zip(stats.mean, stats.std, strict=True)] for k in (-3, 3))
    else:
        low, high = bounds["low"], bounds["high"]
    names = tuple(f"action {i}" for i in range(len(low)))
    return WorldSpec("recordings", {}, (), names, tuple(low), tuple(high), meta["image_size"], episode=0)


def action_bounds(data: EpisodeData) -> dict[str, list[float]]:
    """The world's, or the least and the largest recorded."""
    if data.spec is not None:
        return {"low": list(data.spec.action_low), "high": list(data.spec.action_high)}
    rows = data.actions[torch.isfinite(data.actions).all(1)]
    return {"low": rows.amin(0).tolist(), "high": rows.amax(0).tolist()}


@contextlib.contextmanager
def _out_of_memory(cost: Cost, batch: int, device: torch.device) -> Any:
    """The device's own refusal, as the sentence it should have been."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        fits = max(1, min(cost.batch_that_fits(0.8 * total), batch * 3 // 4))
        raise UserError(
            f"{device} ran out of memory with {batch} clips per process: train.batch {fits} should fit, "
            "or use train.accumulate."
        ) from None
