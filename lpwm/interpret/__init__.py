"""What a code says, and which part of it says so: supports, sharpness, probes."""

from __future__ import annotations

from lpwm.interpret.compare import compare
from lpwm.interpret.probes import Frames, ProbeConfig, Probes, Score, probe
from lpwm.interpret.sharpness import Sharpness, sharpness
from lpwm.interpret.study import StudyConfig, study
from lpwm.interpret.supports import Grid, grid, instability, jaccard, pack, support, unpack

__all__ = [
    "Frames",
    "Grid",
    "ProbeConfig",
    "Probes",
    "Score",
    "Sharpness",
    "StudyConfig",
    "compare",
    "grid",
    "instability",
    "jaccard",
    "pack",
    "probe",
    "sharpness",
    "study",
    "support",
    "unpack",
]
