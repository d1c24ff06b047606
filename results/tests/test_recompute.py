"""The numbers of the page are computed twice, and the intervals behind them cover what they say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lpwm.stats import paired_crossed
from results.recompute import t_quantile

RESULTS = Path(__file__).parents[1]


def recompute(folder):
    """In a process that cannot import this repository."""
    words = [sys.executable, "-I", str(RESULTS / "recompute.py"), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=120)


def test_every_number_of_the_page_is_computed_twice(tmp_path):
    done = recompute(RESULTS)
    assert done.returncode == 0, done.stdout + done.stderr
    claims = json.loads((RESULTS / "claims.json").read_text())["claims"]
    assert done.stdout.count(" agrees") == sum(bool(c["lines"]) for c in claims)
    text = (RESULTS / "recompute.py").read_text()
    assert "import lpwm" not in text and "from lpwm" not in text and "scipy" not in text
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    line = next(c for c in claims if c["id"] == "piecewise-2x2-r5-ahead")["lines"][0]
    line["low"] += 0.001
    (tmp_path / "claims.json").write_text(json.dumps({"claims": claims}))
    done = recompute(tmp_path)
    assert done.returncode == 1 and "1 differ: piecewise-2x2-r5-ahead" in done.stdout


@pytest.mark.parametrize("df", [1.0, 4.0, 7.0, 23.4, 99.0, 693.0])
def test_t_quantiles_by_integration(df):
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-6)


@pytest.mark.parametrize("seed_sd", [0.0, 0.4])
def test_the_interval_of_a_difference_covers_also_where_the_sample_is_unlucky(seed_sd):
    """Two methods of 8 seeds on 60 goals of unequal difficulty, 600 times: the difference of their success rates lies
    inside the interval as often as it says, over all samples and over the third whose seeds happen to agree most."""
    g = np.random.default_rng(1)
    samples, S, E = 600, 8, 60
    covered, spread = np.zeros(samples, dtype=bool), np.zeros(samples)
    ability, hardness = (0.6, 0.2), 1.2
    # What the two rates differ by on average over seeds and goals.
    wide = g.normal(size=(2, 400_000)) * np.array([[seed_sd], [hardness]])
    truth = float(np.subtract(*(1 / (1 + np.exp(-(a + wide.sum(0)))) for a in ability)).mean())
    for i in range(samples):
        goals = hardness * g.normal(size=E)
        rates = [1 / (1 + np.exp(-(a + seed_sd * g.normal(size=(S, 1)) + goals))) for a in ability]
        d = np.subtract(*((g.random((S, E)) < r).astype(float) for r in rates))
        interval = paired_crossed(d).difference
        covered[i], spread[i] = interval.low <= truth <= interval.high, d.mean(1).var()
    unlucky = np.argsort(spread)[: samples // 3]
    assert covered.mean() > 0.935 and covered[unlucky].mean() > 0.90
