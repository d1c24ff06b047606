"""What a code says, and which part of it says so: supports, sharpness, probes."""

from __future__ import annotations

from lpwm.interpret.compare import compare
from lpwm.interpret.contact import ContactConfig, Track, contact_study, read_tracks
from lpwm.interpret.probes import Frames, ProbeConfig, Probes, Score, probe
from lpwm.interpret.sharpness import Sharpness, sharpness
from lpwm.interpret.sparsity import sparsity
from lpwm.interpret.study import StudyConfig, study
from lpwm.interpret.supports import Grid, grid, instability, jaccard, pack, support, unpack

__all__ = [
    "ContactConfig",
    "Frames",
    "Grid",
    "ProbeConfig",
    "Probes",
    "Score",
    "Sharpness",
    "StudyConfig",
    "Track",
    "compare",
    "contact_study",
    "grid",
    "instability",
    "jaccard",
    "pack",
    "probe",
    "read_tracks",
    "sharpness",
    "sparsity",
    "study",
    "support",
    "unpack",
]
