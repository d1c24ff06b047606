"""What a code says, and which part of it says so: supports, sharpness, probes."""

from lpwm.interpret.compare import compare
from lpwm.interpret.config import DecoderConfig, FactorConfig, ProbeConfig, StudyConfig
from lpwm.interpret.decode import imagination, imagination_study
from lpwm.interpret.factors import Factors, factor_study, fit_factors, load_factors
from lpwm.interpret.probes import Frames, probe
from lpwm.interpret.recorded import Recorded
from lpwm.interpret.results import Packed, Probes, Score, Sharpness, Sparsity, Study, results_of
from lpwm.interpret.sharpness import sharpness
from lpwm.interpret.sparsity import sparsity
from lpwm.interpret.study import study
from lpwm.interpret.supports import instability, jaccard, support
