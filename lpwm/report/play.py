"""Models that a page can carry: small ones of Piecewise with a linear predictor; their weights travel as bytes."""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError
from lpwm.core.json import from_json
from lpwm.data import ActionStats
from lpwm.model.config import ModelConfig
from lpwm.train.pretrained import locate
from lpwm.train.weights import WEIGHTS, read_config
from lpwm.worlds.base import WorldSpec

LARGEST = 1_200_000  # bytes of weights: two models and the rest of a page stay below its limit


@dataclass(frozen=True)
class Carried:
    """What assets/engine.js reads of config.json."""

    model: ModelConfig
    action_dim: int
    frameskip: int
    world: WorldSpec
    normalization: ActionStats
    proprio_dim: int = 0

    @property
    def runs(self) -> bool:
        """Whether engine.js computes this model: what it leaves out is refused here."""
        m = self.model
        return (
            self.world.name == "piecewise"
            and not self.world.options.get("visible")
            and m.encoder.image_size != self.world.frame
            and m.encoder.pixels in ("half", "white")
            and m.projector.norm == "layer"
            and m.predictor.rung in ("mlp-lti", "lti", "lti1")
            and not self.proprio_dim
        )


def carried(folder: Path) -> dict[str, Any] | None:
    """{"config", "weights" in base64} of a run, or None where the page cannot run its model."""
    try:
        place = locate(folder)
        if place is None:
            return None
        model = from_json(Carried, read_config(place).record, str(place))
    except UserError:  # no checkpoint, recordings without a world: the page has its other sections
        return None
    weights = place / WEIGHTS
    if not model.runs or weights.stat().st_size > LARGEST:
        return None
    return {"config": asdict(model), "weights": base64.b64encode(weights.read_bytes()).decode()}


def first_of_each(folders: Sequence[Path], sparse: Sequence[bool]) -> dict[int, dict[str, Any]]:
    """By number: the first sparse and the first dense model that can travel."""
    kept: dict[bool, tuple[int, dict[str, Any]]] = {}
    for i, (folder, kind) in enumerate(zip(folders, sparse, strict=True)):
        if kind not in kept and (model := carried(folder)) is not None:
            kept[kind] = (i, model)
    return dict(sorted(kept.values(), key=lambda pair: pair[0]))
