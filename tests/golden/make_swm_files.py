"""Makes tests/golden/swm_tiny.h5 and swm_tiny.lance with stable-worldmodel 0.1.1's own writers.

python tests/golden/make_swm_files.py     (in an environment with stable-worldmodel, hdf5plugin and lancedb)
"""

from pathlib import Path

import numpy as np
from stable_worldmodel.data.formats.hdf5 import HDF5Writer
from stable_worldmodel.data.formats.lance import LanceWriter

HERE = Path(__file__).parent


def episodes():
    """Row i of all has state (i, …), action (i, −i), and a frame of one color; the last action is NaN."""
    row = 0
    for length in (7, 5, 9):
        rows = np.arange(row, row + length, dtype=np.float32)
        action = np.stack([rows, -rows], 1)
        action[-1] = np.nan
        frames = np.empty((length, 16, 16, 3), np.uint8)
        frames[:] = np.stack([10 * rows, 200 - 5 * rows, 50 + rows], 1)[:, None, None].astype(np.uint8)
        yield {
            "pixels": list(frames),
            "state": list(np.stack([rows, rows**2, rows / 7], 1)),
            "action": list(action),
            "proprio": list(rows[:, None]),
        }
        row += length


for name, writer in (("swm_tiny.h5", HDF5Writer), ("swm_tiny.lance", LanceWriter)):
    with writer(HERE / name, mode="overwrite") as out:
        out.write_episodes(episodes())
