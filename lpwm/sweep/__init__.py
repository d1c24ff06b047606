"""Sweeps: a grid of runs, a ledger that is the only truth about them, and engines that merely schedule.

grid      a typed file, or a name, becomes cells
cells     one cell: train, evaluate, one record
ledger    claims with heartbeats, records that appear whole and once
worker    claims cells and runs them until none is left
engines   start workers: here (local), on Ray, on Slurm
analysis  what the records say
"""

from lpwm.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__, {**dict.fromkeys(("GRIDS", "Cell", "Grid", "expand", "read_grid"), "grid"), "Ledger": "ledger"}
)
