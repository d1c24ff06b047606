"""Sweeps: a grid of runs, a ledger that is the only truth about them, and engines that merely schedule.

grid      a typed file, or a name, becomes cells
cells     one cell: train, evaluate, one record
ledger    claims with heartbeats, records that appear whole and once
worker    claims cells and runs them until none is left
engines   start workers: here (local), on Ray, on Slurm
analysis  what the records say
"""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy

if TYPE_CHECKING:
    from lpwm.sweep.grid import GRIDS, Cell, Grid, expand, read_grid
    from lpwm.sweep.ledger import Ledger

__getattr__, __dir__, __all__ = lazy(__name__)
