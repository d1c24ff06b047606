"""The paper's proposition, executable: any Lipschitz map is linear on one-hot codes, up to the size of a cell."""

from lpwm.theory.bounds import SMOOTH, Errors, System, measure, rollout_bound, sine_family, slope
from lpwm.theory.one_hot import Grid, Map, OneHot

__all__ = (
    *("SMOOTH", "Errors", "Grid", "Map", "OneHot", "System"),
    *("measure", "rollout_bound", "sine_family", "slope"),
)
