"""What a code says, and which part of it says so: supports, sharpness, probes."""

from __future__ import annotations

from lpwm.interpret.compare import compare
from lpwm.interpret.config import ContactConfig, ProbeConfig, StudyConfig
from lpwm.interpret.contact import Track, contact_study, inspect_tracks
from lpwm.interpret.probes import Frames, probe
from lpwm.interpret.results import Contact, Packed, Probes, Score, Sharpness, Sparsity, Study, results_of
from lpwm.interpret.sharpness import sharpness
from lpwm.interpret.sparsity import sparsity
from lpwm.interpret.study import study
from lpwm.interpret.supports import Grid, grid, instability, jaccard, support

__all__ = [
    "Contact",
    "ContactConfig",
    "Frames",
    "Grid",
    "Packed",
    "ProbeConfig",
    "Probes",
    "Score",
    "Sharpness",
    "Sparsity",
    "Study",
    "StudyConfig",
    "Track",
    "compare",
    "contact_study",
    "grid",
    "inspect_tracks",
    "instability",
    "jaccard",
    "probe",
    "results_of",
    "sharpness",
    "sparsity",
    "study",
    "support",
]
