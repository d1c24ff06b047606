"""μP parameter groups, initialisation and schedules."""

from lpwm.optim.mup import OptimConfig, build, groups, initialise, schema, set_rates, table
from lpwm.optim.schedule import factor

__all__ = ["OptimConfig", "build", "factor", "groups", "initialise", "schema", "set_rates", "table"]
