"""A trained model with what using it needs: its world, its actions' normalization and bounds."""

from dataclasses import dataclass
from pathlib import Path

import torch

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.core.json import from_json
from lpwm.data import ActionStats, EpisodeData
from lpwm.model import WorldModel
from lpwm.train.run_config import RunConfig, read_record
from lpwm.worlds import WorldSpec


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

    @property
    def holdout(self) -> float:
        return self.config.data.holdout

    def episodes(self) -> EpisodeData:
        """The run's data set."""
        from lpwm.train.run import Run

        return Run.open(self.path).data


def load(path: str | Path, device: str | torch.device = "cpu", checkpoint: str = "latest") -> Loaded:
    """The model of a run folder, ready to plan with."""
    folder = Path(path)
    record = read_record(folder)
    model = WorldModel.from_pretrained(str(folder), device=str(device), checkpoint=checkpoint)
    use = Use.of(model, str(folder))
    if use.normalization is None or use.frameskip is None:
        raise UserError(f"the checkpoint of {folder} does not say how actions are normalized: it is of no run.")
    world = worlds.make_world(use.world.name, **use.world.options) if use.world is not None else None
    config, stats, skip, image = record.config, use.normalization, use.frameskip, use.image_size
    return Loaded(model, config, use.spec, world, stats, skip, image, record.hash, use.step, folder)


@dataclass(frozen=True)
class Bounds:
    """Of raw actions."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, data: EpisodeData) -> "Bounds":
        """The world's, or the least and the largest recorded."""
        if data.spec is not None:
            return cls(data.spec.action_low, data.spec.action_high)
        rows = data.actions[torch.isfinite(data.actions).all(1)]
        return cls(tuple(rows.amin(0).tolist()), tuple(rows.amax(0).tolist()))


@dataclass(frozen=True)
class Use:
    """What config.json says of how a model is used."""

    image_size: int
    frameskip: int | None = None
    world: WorldSpec | None = None
    normalization: ActionStats | None = None
    action_bounds: Bounds | None = None
    step: int = 0

    @classmethod
    def of(cls, model: WorldModel, where: str) -> "Use":
        return from_json(cls, model.meta, where)

    @property
    def spec(self) -> WorldSpec:
        """The world's; for recordings of an unknown one, what is known: the bounds of its actions."""
        if self.world is not None:
            return self.world
        bounds, stats = self.action_bounds, self.normalization
        if bounds is None:  # as written by version 0.1.0: most of what was recorded
            assert stats is not None
            bounds = Bounds(*(tuple(m + k * s for m, s in zip(stats.mean, stats.std, strict=True)) for k in (-3, 3)))
        names = tuple(f"action {i}" for i in range(len(bounds.low)))
        return WorldSpec("recordings", {}, (), names, bounds.low, bounds.high, self.image_size, episode=0)
