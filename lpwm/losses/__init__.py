"""The losses: the regularizers, temporal Jaccard, and the objective that adds them to the prediction error."""

from lpwm.losses.base import Draw, Gather, Regularizer
from lpwm.losses.distribution import RectifiedGeneralizedGaussian
from lpwm.losses.jaccard import temporal_jaccard
from lpwm.losses.objective import REGULARIZERS, Objective, ObjectiveConfig
from lpwm.losses.rdmreg import RDMReg, RDMRegConfig
from lpwm.losses.sigreg import SIGReg, SIGRegConfig
from lpwm.losses.vicreg import VICReg, VICRegConfig

__all__ = [
    "REGULARIZERS",
    "Draw",
    "Gather",
    "Objective",
    "ObjectiveConfig",
    "RDMReg",
    "RDMRegConfig",
    "RectifiedGeneralizedGaussian",
    "Regularizer",
    "SIGReg",
    "SIGRegConfig",
    "VICReg",
    "VICRegConfig",
    "temporal_jaccard",
]
