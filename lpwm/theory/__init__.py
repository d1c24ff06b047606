"""The paper's proposition, executable: any Lipschitz map is linear on one-hot codes, up to the size of a cell."""

from __future__ import annotations

from lpwm.theory.bounds import Errors, measure, rollout_bound, slope, step_bound
from lpwm.theory.one_hot import OneHot
from lpwm.theory.quantize import Cover, Grid, Quantizer
from lpwm.theory.systems import SMOOTH, System, sine_family

__all__ = [
    "SMOOTH",
    "Cover",
    "Errors",
    "Grid",
    "OneHot",
    "Quantizer",
    "System",
    "measure",
    "rollout_bound",
    "sine_family",
    "slope",
    "step_bound",
]
