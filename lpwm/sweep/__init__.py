"""Sweeps: a grid of runs, a ledger that is the only truth about them, and engines that merely schedule.

grid      a typed file, or a name, becomes cells
cells     one cell: train, evaluate, one record
ledger    claims with heartbeats, records that appear whole and once
worker    claims cells and runs them until none is left
engine_*  starts workers: here (local), on Ray, on Slurm
pool      a list of jobs of seconds over lasting processes; no ledger
analysis  what the records say
"""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy
from lpwm.sweep.grid import GRIDS, Cell, Grid, expand, read_grid

if TYPE_CHECKING:
    from lpwm.sweep.ledger import Ledger

__getattr__, __dir__, __all__ = lazy(__name__, {"Ledger": "ledger"})
__all__ += ["GRIDS", "Cell", "Grid", "expand", "read_grid"]
