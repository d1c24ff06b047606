"""Statistics of success rates: intervals, paired comparisons, power.

The unit of replication is the checkpoint. See docs/statistics.md for which to use when.
"""

from lpwm.stats.compare import (
    MIN_SEEDS,
    Comparison,
    ComparisonTable,
    Difference,
    RateRow,
    compare,
    comparison_table,
    holm,
)
from lpwm.stats.intervals import Interval, success_interval, t_interval
from lpwm.stats.paired import McNemar, Paired, mcnemar, paired_crossed, paired_t
from lpwm.stats.power import detectable_paired, power_paired, seeds_needed
from lpwm.stats.record import Result

__all__ = [
    "MIN_SEEDS",
    "Comparison",
    "ComparisonTable",
    "Difference",
    "Interval",
    "McNemar",
    "Paired",
    "RateRow",
    "Result",
    "compare",
    "comparison_table",
    "detectable_paired",
    "holm",
    "mcnemar",
    "paired_crossed",
    "paired_t",
    "power_paired",
    "seeds_needed",
    "success_interval",
    "t_interval",
]
