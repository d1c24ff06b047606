"""Encoder, link, the predictors and the world model that joins them."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy
from lpwm.model.config import LINKS, NONNEGATIVE, VIT_TINY, EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig
from lpwm.model.predictors import PAPER_RUNGS, PREDICTORS, TITLES, register_predictor, title_of

if TYPE_CHECKING:
    from lpwm.model.world_model import WorldModel

__getattr__, __dir__, __all__ = lazy(__name__)
