"""The losses: the regularizers, temporal Jaccard, and the objective that adds them to the prediction error."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy
from lpwm.losses.config import REGULARIZERS, ObjectiveConfig, RDMRegConfig, SIGRegConfig, VICRegConfig
from lpwm.losses.distribution import RectifiedGeneralizedGaussian

if TYPE_CHECKING:
    from lpwm.losses.base import Draw, Gather, Regularizer
    from lpwm.losses.objective import Objective, temporal_jaccard
    from lpwm.losses.rdmreg import RDMReg
    from lpwm.losses.sigreg import SIGReg
    from lpwm.losses.vicreg import VICReg

__getattr__, __dir__, __all__ = lazy(__name__)
