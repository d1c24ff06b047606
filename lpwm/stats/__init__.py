"""Statistics of success rates: intervals, paired comparisons, where the variance comes from, power.

The unit of replication is the checkpoint. See docs/statistics.md for which to use when.
"""

from lpwm.stats.compare import (
    METHODS,
    MIN_SEEDS,
    VERDICTS,
    Comparison,
    ComparisonTable,
    compare,
    comparison_table,
    holm,
)
from lpwm.stats.intervals import Interval, clopper_pearson, success_interval, t_interval, wilson
from lpwm.stats.paired import McNemar, Paired, mcnemar, paired_bootstrap, paired_t
from lpwm.stats.power import detectable_on_episodes, detectable_paired, power_on_episodes, power_paired, seeds_needed
from lpwm.stats.record import Result
from lpwm.stats.variance import Component, VarianceSplit, variance_split

__all__ = [
    "METHODS",
    "MIN_SEEDS",
    "VERDICTS",
    "Comparison",
    "ComparisonTable",
    "Component",
    "Interval",
    "McNemar",
    "Paired",
    "Result",
    "VarianceSplit",
    "clopper_pearson",
    "compare",
    "comparison_table",
    "detectable_on_episodes",
    "detectable_paired",
    "holm",
    "mcnemar",
    "paired_bootstrap",
    "paired_t",
    "power_on_episodes",
    "power_paired",
    "seeds_needed",
    "success_interval",
    "t_interval",
    "variance_split",
    "wilson",
]
