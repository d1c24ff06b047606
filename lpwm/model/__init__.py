"""Encoder, link, the predictor ladder and the world model that joins them."""

from lpwm.model.encoder import VIT_TINY, EncoderConfig, ProjectorConfig
from lpwm.model.link import LINKS, NONNEGATIVE
from lpwm.model.predictors import RUNGS, TITLES, PredictorConfig
from lpwm.model.world_model import ModelConfig, WorldModel

__all__ = [
    "LINKS",
    "NONNEGATIVE",
    "RUNGS",
    "TITLES",
    "VIT_TINY",
    "EncoderConfig",
    "ModelConfig",
    "PredictorConfig",
    "ProjectorConfig",
    "WorldModel",
]
