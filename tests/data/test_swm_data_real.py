"""What we write, read by stable-worldmodel itself; skipped where it is not installed.

PYTHONPATH=. PEER_PYTHON -m pytest tests/data/test_swm_data_real.py
"""

import numpy as np
import pytest
import torch

from lpwm import worlds
from lpwm.data import collect, convert, read

pytest.importorskip("stable_worldmodel")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swm")
    collect(worlds.make("wall"), folder / "ours.h5", episodes=5, steps=30, pixels=True, size=32)
    convert(folder / "ours.h5", folder / "ours.lance")
    return folder


@pytest.mark.parametrize("name", ["ours.h5", "ours.lance"])
def test_its_readers_see_our_rows(files, name):
    if name.endswith("h5"):
        from stable_worldmodel.data.formats.hdf5 import HDF5Dataset as Dataset
    else:
        from stable_worldmodel.data.formats.lance import LanceDataset as Dataset
    theirs, ours = Dataset(path=str(files / name), frameskip=5, num_steps=4), read(files / name)
    assert len(theirs) == 5 * (31 - 20 + 1)
    for number in (0, 7, 33, len(theirs) - 1):
        episode, start = theirs.clip_indices[number]
        clip, row = theirs[number], int(ours.offsets[episode]) + start
        rows = [row + 5 * t for t in range(4)]
        frames = np.stack([ours.pixels[r : r + 1][0] for r in rows])
        seen = torch.as_tensor(clip["pixels"])
        if name.endswith("h5"):
            np.testing.assert_array_equal(seen.permute(0, 2, 3, 1).numpy(), frames)
        else:  # two decoders of JPEG
            assert np.abs(seen.permute(0, 2, 3, 1).numpy().astype(float) - frames).max() <= 4
        torch.testing.assert_close(torch.as_tensor(clip["state"]), ours.states[rows])
        actions = ours.actions[row : row + 20].reshape(4, 10)
        torch.testing.assert_close(torch.as_tensor(clip["action"]), actions, equal_nan=True)
