"""μP parameter groups, initialization and schedules."""

from lpwm.optim.mup import OptimConfig, build, groups, initialize, schema, set_rates, table
from lpwm.optim.schedule import factor

__all__ = ["OptimConfig", "build", "factor", "groups", "initialize", "schema", "set_rates", "table"]
