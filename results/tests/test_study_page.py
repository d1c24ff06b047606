"""The target study on the page of results: its numbers from its JSON, what is missing told."""

import json

import numpy as np
import pytest

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.evaluate.config import EvalConfig
from lpwm.losses.distribution import RectifiedGeneralizedGaussian
from lpwm.recipes import tiny
from results.tool.page import write
from results.tool.read import TARGETS
from results.tool.study_cells import CELLS, MEASURES
from results.tool.study_summary import summary


def made_up_study(shift=0.1):
    """Plain slices ignore the target, coordinate ones follow it; success is `shift` higher with them."""
    runs = []
    for cell in CELLS:
        want = RectifiedGeneralizedGaussian(cell.p, cell.mu).activity
        for seed in range(3):
            on = bool(cell.axis_fraction)
            measures = dict.fromkeys(MEASURES, 0.1 + 0.01 * seed)
            noise = 0.01 * seed + 0.02 * (seed - 1) * want
            measures |= {"active": noise + (want if on else 0.4)}
            rate = 0.5 + 0.01 * seed + shift * on + 0.02 * seed * on
            rates = {"random H=5 R=1": {"terminal": rate, "latched": rate}}
            runs.append(
                {
                    "cell": vars(cell),
                    "seed": seed,
                    "target": {"active": want},
                    "measures": measures,
                    "planning": rates,
                    "train_s": 6.0,
                }
            )
    return {
        "kind": TARGETS,
        "commit": "abc",
        "source": "def",
        "device": "a GPU",
        "base": to_dict(tiny()),
        "planning": to_dict(EvalConfig()),
        "frames": 3000,
        "seeds": [0, 1, 2],
        "expected": 54,
        "missing": [],
        "failed": [],
        "controls": {"random H=5 R=1": {"oracle": {"terminal": 0.98, "latched": 0.98}}},
        "runs": runs,
        **summary(runs),
    }


def test_the_target_study_stands_on_the_page_with_its_numbers(tmp_path):
    result = made_up_study()
    (tmp_path / "target-study.json").write_text(json.dumps(result))
    (tmp_path / "notes.md").write_text("## targets\n\nSo it is.\n")
    made = write(tmp_path, tmp_path / "out")
    assert "target-study.png" in {p.name for p in made["files"]}
    page = made["files"][1].read_text()
    part = page[page.index("## Beyond the paper: does activity follow") : page.index("## Every evaluation")]
    assert (
        "![" in part
        and "figures/target-study.png" in part
        and part.rstrip().endswith("So it is.")
        and "over seeds alone" in part
    )
    assert "54 of 54 runs" in part and "5.4 run-minutes" in part and "oracle 98 %" in part
    cells = [line for line in part.splitlines() if line.startswith(("| 0.5 |", "| 1 |", "| 2 |"))]
    assert len(cells) == 18
    (line,) = [c for c in cells if c.startswith("| 2 | -1 | 0.25 |")]
    row = next(r for r in result["cells"] if r["cell"] == {"p": 2.0, "mu": -1.0, "axis_fraction": 0.25})
    assert f"{row['measures']['active']['estimate']:.3f} [" in line and f"| {row['target']['active']:.3f} |" in line
    # 0.1, 0.12, 0.14 of three seeds, and of 27 pairs: t quantiles 4.303 and 2.056
    sd = np.std([0.1, 0.12, 0.14] * 9, ddof=1)
    seeds, pairs = 4.302653 * 0.02 / np.sqrt(3), 2.055529 * sd / np.sqrt(27)
    (told,) = [x for x in part.splitlines() if x.startswith("| Terminal success")]
    assert told == (
        f"| Terminal success, random H=5 R=1 | +0.120 [{0.12 - seeds:+.3f}, {0.12 + seeds:+.3f}] "
        f"| +0.120 [{0.12 - pairs:+.3f}, {0.12 + pairs:+.3f}] | more |"
    )
    assert "Plain slices: activity is off" in part and "from following one to one it cannot be told" in part
    assert "Also here, not read" not in page


def test_a_study_of_targets_that_is_not_whole_or_not_there(tmp_path):
    result = made_up_study()
    result |= {"missing": ["x"], "failed": [{"run": "y", "why": "its process ended (signal 9)."}]}
    result["runs"][3]["dead"] = "its codes are constant"
    (tmp_path / "target-study.json").write_text(json.dumps(result))
    page = write(tmp_path, tmp_path / "a")["files"][1].read_text()
    assert "1 of 54 runs are missing" in page and "Failed: y: its process ended (signal 9)." in page
    assert "counted all the same: p 0.5, μ -1, axis 0 (seeds 0)" in page
    del result["follow"]
    (tmp_path / "target-study.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"target-study\.json lacks"):
        write(tmp_path, tmp_path / "b")
    (tmp_path / "target-study.json").unlink()
    page = write(tmp_path, tmp_path / "c")["files"][1].read_text()
    assert "does activity follow" not in page and not (tmp_path / "c" / "figures" / "target-study.png").exists()
