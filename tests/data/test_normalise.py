"""Actions as the model sees them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.data import ActionStats
from lpwm.data.normalize import from_blocks, to_blocks


def test_statistics_ignore_rows_that_lead_nowhere():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (50, 3)).astype(np.float32)
    rows[[9, 29, 49]] = np.nan
    rows[:, 2] = np.where(np.isnan(rows[:, 2]), np.nan, 0.25)  # never varies
    stats = ActionStats.of(torch.from_numpy(rows))
    np.testing.assert_allclose(stats.mean, np.nanmean(rows.astype(np.float64), 0), rtol=1e-12)
    np.testing.assert_allclose(stats.std[:2], np.nanstd(rows[:, :2].astype(np.float64), 0), rtol=1e-12)
    z = stats.normalize(torch.from_numpy(rows))
    assert stats.std[2] == 1.0 and np.nanmax(np.abs(z[:, 2].numpy())) == 0
    np.testing.assert_allclose(np.nanstd(z[:, :2].numpy(), 0), 1, rtol=1e-5)


def test_blocks_hold_the_raw_actions_in_time():
    raw = torch.arange(2 * 6 * 2, dtype=torch.float32).reshape(2, 6, 2)
    blocks = to_blocks(raw, 3)
    assert blocks.shape == (2, 2, 6)
    assert blocks[0, 0].tolist() == [0, 1, 2, 3, 4, 5] and blocks[1, 1].tolist() == [18, 19, 20, 21, 22, 23]
    assert torch.equal(from_blocks(blocks, 3), raw)
    stats = ActionStats((1.0, 10.0), (2.0, 5.0))
    z = stats.normalize(blocks)
    assert z[0, 0].tolist() == pytest.approx([-0.5, -1.8, 0.5, -1.4, 1.5, -1.0])
    assert torch.equal(z, to_blocks(stats.normalize(raw), 3))
    torch.testing.assert_close(stats.denormalize(z), blocks)


def test_through_json():
    stats = ActionStats.of(torch.randn(100, 2, generator=torch.Generator().manual_seed(0)))
    assert ActionStats.from_dict(json.loads(json.dumps(stats.as_dict()))) == stats


@pytest.mark.parametrize(
    "bad",
    [{}, {"mean": [0.0]}, {"mean": [0.0], "std": [0.0]}, {"mean": [0.0, 1.0], "std": [1.0]}, {"mean": 1, "std": 2}],
)
def test_bad_dictionaries(bad):
    with pytest.raises(UserError, match="action statistics"):
        ActionStats.from_dict(bad)


def test_bad_actions():
    with pytest.raises(UserError, match="no finite action"):
        ActionStats.of(torch.full((3, 2), torch.nan))
    with pytest.raises(UserError, match="no multiple"):
        ActionStats((0.0, 0.0), (1.0, 1.0)).normalize(torch.zeros(4, 5))
