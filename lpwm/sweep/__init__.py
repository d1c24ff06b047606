"""Sweeps: a grid of runs, a ledger that is the only truth about them, workers that claim cells, engines that start
workers."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy

if TYPE_CHECKING:
    from lpwm.sweep.grid import GRIDS, Cell, Grid, expand, read_grid
    from lpwm.sweep.ledger import Ledger

__getattr__, __dir__, __all__ = lazy(__name__)
