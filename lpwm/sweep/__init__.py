"""Sweeps: a grid of runs, a ledger that is the only truth about them, and engines that merely schedule.

grid      a typed file, or a name, becomes cells
cells     one cell: train, evaluate, one record
ledger    claims with heartbeats, records that appear whole and once
worker    claims cells and runs them until none is left
engine_*  starts workers: here (local), on Ray, on Slurm
pool      a list of jobs of seconds over lasting processes; no ledger
analysis  what the records say
"""

from lpwm.sweep.grid import GRIDS, Cell, Grid, expand, read_grid
from lpwm.sweep.ledger import Ledger

__all__ = ["GRIDS", "Cell", "Grid", "Ledger", "expand", "read_grid"]
