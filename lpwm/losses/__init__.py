"""The losses: the regularisers, temporal Jaccard, and the objective that adds them to the prediction error."""

from lpwm.losses.base import Draw, Gather, Regulariser
from lpwm.losses.distribution import RectifiedGeneralisedGaussian
from lpwm.losses.jaccard import temporal_jaccard
from lpwm.losses.objective import REGULARISERS, Objective, ObjectiveConfig
from lpwm.losses.rdmreg import RDMReg, RDMRegConfig
from lpwm.losses.sigreg import SIGReg, SIGRegConfig
from lpwm.losses.vicreg import VICReg, VICRegConfig

__all__ = [
    "REGULARISERS",
    "Draw",
    "Gather",
    "Objective",
    "ObjectiveConfig",
    "RDMReg",
    "RDMRegConfig",
    "RectifiedGeneralisedGaussian",
    "Regulariser",
    "SIGReg",
    "SIGRegConfig",
    "VICReg",
    "VICRegConfig",
    "temporal_jaccard",
]
