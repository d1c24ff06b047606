"""A run is a folder, made or continued.

run.json          the config, the data's digest, and the hash of both (which names the run)
log.jsonl         what was logged;  tensorboard/ the same
training.json     how long each stretch of training took, where, and by which code
checkpoints/      step-00001000/ …; each also loads as a pretrained model
"""

import contextlib
import hashlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpwm import worlds
from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, remove, write_whole
from lpwm.core.json import dump_json
from lpwm.core.lock import LEASE, Writer, one_writer
from lpwm.core.provenance import LOG, SESSIONS, Record, last_record, sessions, write_sessions
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
from lpwm.train.distributed import Ranks
from lpwm.train.health import Health, concerns
from lpwm.train.loaded import Bounds, Use
from lpwm.train.log import Logger
from lpwm.train.loop import Callbacks, train
from lpwm.train.monitors import ActivityWindow, depth_errors, held_out_clips
from lpwm.train.prepare import prepare_data
from lpwm.train.run_config import RUN, RunConfig, RunRecord, Start, half_precision, pick_device, read_record, run_hash
from lpwm.train.step import Stepper
from lpwm.train.weights import check_shapes


@dataclass(frozen=True)
class Result:
    """The last logged numbers, and where the model is."""

    run: str
    hash: str
    step: int
    train: Record
    held_out: Record

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"train": self.train.to_json(), "held_out": self.held_out.to_json()}


@dataclass
class Run:
    """A run folder, made or continued."""

    config: RunConfig
    folder: Path
    data: EpisodeData
    hash: str
    start: Start | None = None
    weights: dict[str, Tensor] | None = None  # of the model that it starts from

    @classmethod
    def create(
        cls,
        config: RunConfig,
        root: str | Path,
        name: str = "run",
        progress: Callable[[int], None] | None = None,
        ranks: Ranks | None = None,
        weights: str | Path | None = None,
        start: Start | None = None,
    ) -> "Run":
        """The folder ROOT/NAME-HASH; one that is there already is the same run and is continued. weights: a run,
        checkpoint, folder or hub name whose weights it starts from, in place of fresh ones."""
        ranks, root = ranks or Ranks(), Path(root)
        side = config.model.encoder.image_size
        data = prepare_data(config.data, root / "data", progress, side) if ranks.first else None
        ranks.wait()
        data = data or prepare_data(config.data, root / "data", None, side)
        tensors = None
        if weights is not None:
            model = WorldModel.from_pretrained(weights)
            tensors, step, total = model.state_dict(), Use.of(model, str(weights)).step, hashlib.sha256()
            for key, tensor in sorted(tensors.items()):
                total.update(key.encode() + tensor.contiguous().numpy().tobytes())
            start = Start(Path(weights).name, total.hexdigest()[:12], step, further=False)
        code = run_hash(config, data.digest, start)
        folder = root / f"{name.replace('/', '-')}{start.label if start else ''}-{code}"
        if ranks.first:
            make_folder(folder)
            record = to_dict(RunRecord(code, name, data.digest, __version__, config, start))
            write_whole(folder / RUN, dump_json({k: v for k, v in record.items() if v is not None}, indent=2))
        ranks.wait()
        return cls(config, folder, data, code, start, tensors)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        folder = Path(folder)
        record = read_record(folder)
        config = record.config
        data = prepare_data(config.data, folder.parent / "data", None, config.model.encoder.image_size)
        if data.digest != record.data:
            raise UserError(f"the data of {folder} changed ({record.data[:12]} to {data.digest[:12]}): restore them.")
        return cls(config, folder, data, record.hash, record.start)

    @classmethod
    def further(cls, folder: str | Path, steps: int, ranks: Ranks | None = None) -> "Run":
        """A run of `steps` steps in all that goes on from the last checkpoint of another, which stays as it is."""
        ranks, folder = ranks or Ranks(), Path(folder)
        record, last = read_record(folder), checkpoint.latest(folder)
        if last.step >= steps:
            raise UserError(f"{folder} has {last.step} steps behind it: give more as --train.steps, or leave it out.")
        cls.open(folder)  # its data are what they were
        config = replace(record.config, train=replace(record.config.train, steps=steps))
        start = Start(folder.name, record.hash, last.step, further=True)
        run = cls.create(config, folder.parent, record.name, ranks=ranks, start=start)
        if ranks.first and not checkpoint.existing(run.folder):
            with one_writer(run.folder, "a training"):
                for name in (LOG, SESSIONS):
                    if (folder / name).exists():
                        shutil.copyfile(folder / name, run.folder / name)
                checkpoint.adopt(last, run.folder)
        ranks.wait()
        return run

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

    def clip_options(self) -> dict[str, Any]:
        """How clips are cut, of either split."""
        c = self.config.data
        return {"source": c.source, "world": self.world(), "frameskip": c.frameskip, "holdout": c.holdout}

    def source(
        self, device: torch.device, ranks: Ranks | None = None, split: str = "train", **changes: Any
    ) -> ResidentClips | StreamedClips:
        """Clips of a split, from memory or streamed: as data.source says, or as they fit."""
        c, ranks = self.config, ranks or Ranks()
        options: dict[str, Any] = {"clip_length": c.frames, "batch": c.train.batch, "seed": c.train.seed}
        options |= {"image_size": c.model.encoder.image_size, "compiled": c.train.compile in ("auto", "on")}
        options |= {"rank": ranks.rank, "ranks": ranks.ranks, "workers": c.data.workers or None, **changes}
        return open_clips(self.data, split=split, device=device, **self.clip_options(), **options)

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
            "action_bounds": to_dict(Bounds.of(self.data)),
            "frameskip": self.config.data.frameskip,
            "image": self.config.model.encoder.image_size,
            "data_digest": self.data.digest,
            "run_hash": self.hash,
        }

    def train(
        self,
        device: str | torch.device = "auto",
        ranks: Ranks | None = None,
        *,
        console: bool = True,
        wandb: str | None = None,
        report: Callable[[str], None] = lambda sentence: None,
        lease: float = LEASE,
        fresh: bool = False,
    ) -> WorldModel:
        """Train to the end, from the last good checkpoint if there is one. `report` gets sentences for the user.

        One process trains in a folder: another is refused (`Busy`) with who it is and since when.
        fresh: delete the checkpoints that are there and start over.
        """
        ranks, writer = ranks or Ranks(), None
        with contextlib.ExitStack() as held:
            if ranks.first:
                writer = held.enter_context(one_writer(self.folder, "a training", lease))
                if fresh:
                    remove(checkpoint.root_of(self.folder))
            ranks.wait()
            return self._train(pick_device(device), ranks, writer, console, wandb, report)

    def _train(
        self,
        device: torch.device,
        ranks: Ranks,
        writer: Writer | None,
        console: bool,
        wandb: str | None,
        report: Callable[[str], None],
    ) -> WorldModel:
        c = self.config
        cost, local = c.check_fits(device, ranks, self.data.actions.shape[1])
        model = self.build_model(device)
        source = self.source(device, ranks)
        on_gpu = device.type == "cuda"
        optimizer = build(model, c.optim, fused=True, capturable=on_gpu)
        start, metric, seen = self.restore(model, optimizer, report)
        if start >= c.train.steps:
            if ranks.first:
                checkpoint.tidy(self.folder, start, c.train.keep)  # a kill may have come in between
            report(f"{self.folder} is already trained to step {start}.")
            return model.eval()
        objective = Objective(c.objective, c.model.sparse)
        precision = torch.bfloat16 if half_precision(c.train.precision, device) else torch.float32
        engine: dict[str, Any] = {
            "compiled": c.train.compile == "on" or (c.train.compile == "auto" and on_gpu),
            "graphed": on_gpu and c.train.compile != "off" and ranks.alone and c.train.accumulate == 1,
            "kernels": c.train.kernels == "auto",
            "accumulate": c.train.accumulate,
        }
        numbers = (c.train.batch, c.train.seed, c.optim.clip)
        stepper = Stepper(model, objective, optimizer, *numbers, precision, ranks=ranks, **engine)
        stepper.activity.unpack(seen)
        least, health = self.regularizer_floor(), Health(c.train.health, self._freedom())
        logger = None
        if ranks.first:
            shown: dict[str, Any] = {"console": console, "wandb": wandb, "config": to_dict(c)}
            logger = Logger(self.folder, total_steps=c.train.steps, start_step=start, **shown)
        began, earlier = time.perf_counter(), sessions(self.folder)

        def note(step: int) -> None:
            """At every checkpoint, so that a killed stretch is on record too."""
            if ranks.first:
                spent = time.perf_counter() - began
                write_sessions(self.folder, earlier, start, step, spent, device, ranks.ranks)

        try:
            with _out_of_memory(cost, local, device):
                callbacks = self.callbacks(model, optimizer, source, ranks, writer, note, stepper.activity)
                if self.weights is not None and callbacks.save is not None and not checkpoint.existing(self.folder):
                    callbacks.save(0, None)  # so that --resume finds them
                train(
                    model, source, objective, stepper, c.train, c.optim, logger, callbacks, start, least, health, metric
                )
        finally:
            source.close()
            if logger is not None:
                logger.close()
                note(last_record(self.folder, "train").step or start)
        return model.eval()

    def restore(
        self, model: WorldModel, optimizer: torch.optim.Optimizer, report: Callable[[str], None]
    ) -> tuple[int, float | None, str]:
        """The step to go on from, the metric of the last evaluation, and the units active since the last record."""
        if not checkpoint.existing(self.folder):
            if self.weights is not None:
                shapes = {name: tuple(t.shape) for name, t in self.weights.items()}
                check_shapes(Path(self.start.run if self.start else ""), shapes, model)
                model.load_state_dict(self.weights)
            elif self.start is not None:
                how = "--resume {} --train.steps {}" if self.start.further else "RECIPE --weights {}"
                again = how.format(self.start.run, self.config.train.steps)
                raise UserError(f"{self.folder} holds nothing of {self.start.run} yet: run lpwm train {again} again.")
            return 0, None, ""
        last = checkpoint.latest(self.folder)
        for sentence in last.refused:
            report(sentence)
        return checkpoint.restore(last, model, optimizer), last.metric, last.seen

    def callbacks(
        self,
        model: WorldModel,
        optimizer: torch.optim.Optimizer,
        source: ResidentClips | StreamedClips,
        ranks: Ranks,
        writer: Writer | None = None,
        note: Callable[[int], None] = lambda step: None,
        activity: ActivityWindow | None = None,
    ) -> Callbacks:
        c = self.config
        how: dict[str, Any] = {"device": source.device, "stats": source.stats, "batch": min(c.train.batch, 64)}
        how["workers"] = min(c.data.workers or 2, 2)  # they are needed now and then: two readers do
        held_out = held_out_clips(self.data, **self.clip_options(), image_size=c.model.encoder.image_size, **how)

        def evaluate(step: int) -> dict[str, Any]:
            errors = depth_errors(model, held_out, batches=c.train.eval_batches)
            held_out.close()
            return errors

        def save(step: int, metric: float | None) -> None:
            if writer is not None:
                writer.check()
            note(step)
            seen = activity.pack(ranks.reduce) if activity else ""
            if ranks.first:
                self.save(model, optimizer, step, source.stats, metric, seen)
            ranks.wait()

        return Callbacks(evaluate=evaluate if ranks.first else None, save=save)

    def save(
        self,
        model: WorldModel,
        optimizer: torch.optim.Optimizer,
        step: int,
        stats: ActionStats,
        metric: float | None = None,
        seen: str = "",
    ) -> Path:
        """A sealed checkpoint of this run; `metric` decides which is the best."""
        c = self.config
        state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": step, "metric": metric, "seen": seen}
        run, meta = {**to_dict(c), "seed": c.train.seed}, self.meta(stats) | {"step": step}
        return checkpoint.save(self.folder, **state, run=run, run_hash=self.hash, meta=meta, keep=c.train.keep)

    def result(self) -> Result:
        last, held_out = last_record(self.folder, "train"), last_record(self.folder, "val")
        return Result(str(self.folder), self.hash, last.step, last, held_out)

    def summary(self) -> str:
        r = self.result()
        error, copy = (r.held_out.by_depth(name) or [math.nan] for name in ("error_depth", "copy_error_depth"))
        return (
            f"{r.run}: step {r.step}, {100 * r.train.number('active_fraction'):.0f} % of the units on\n"
            f"  held-out error {error[0]:.4f} (copying the frame: {copy[0]:.4f}), "
            f"{error[-1]:.4f} at depth {len(error)} ({copy[-1]:.4f})"
        )

    def concerns(self) -> list[str]:
        """One line for each monitor that looks bad at the end: what it means, and what helps."""
        record = last_record(self.folder, "train")
        numbers = {name: value for name, value in record.values.items() if isinstance(value, float)}
        return concerns(numbers, self.config.train.health, self._freedom())

    def _freedom(self) -> int:
        """The world's degrees of freedom; 0 where they are not known."""
        world = world_of(self.data) if self.data.spec is not None else None
        return getattr(world, "degrees_of_freedom", 0)

    def regularizer_floor(self) -> float:
        """What RDMReg costs at a perfect match with this batch and width; 0 for other regularizers."""
        c = self.config
        if c.objective.regularizer != "rdmreg":
            return 0.0
        return floor(c.objective.rdmreg, c.train.batch, c.model.latent, (0,), c.model.sparse)


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
