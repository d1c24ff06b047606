"""Statistics of success rates: intervals, paired comparisons, power. The unit of replication is the checkpoint. See
docs/statistics.md for which to use when."""

from lpwm.stats.compare import MIN_SEEDS, Comparison, Difference, RateRow, compare, comparison_table, holm
from lpwm.stats.intervals import Interval, Result, success_interval, t_interval
from lpwm.stats.paired import Paired, detectable_paired, paired_crossed, power_paired, seeds_needed
