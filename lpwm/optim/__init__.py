"""μP parameter groups, initialization and schedules."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy
from lpwm.optim.config import OptimConfig, factor

if TYPE_CHECKING:
    from lpwm.optim.mup import build, groups, initialize, schema, set_rates, table

__getattr__, __dir__, __all__ = lazy(__name__)
