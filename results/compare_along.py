"""The seventh round: the same models with and without the way counted, and sparse against dense in either way.

    python results/compare_along.py [FOLDER]

Differences are paired on training seeds, with episodes as a sample too, as everywhere on the page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from lpwm.stats.paired import paired_crossed

MEASURES = {"terminal": "at the goal after 50 steps", "latched": "reached within 50 steps"}


def successes(file: Path) -> dict[tuple[str, str], np.ndarray]:
    """(method, measure) -> (seeds, episodes), seeds in order."""
    (cell,) = json.loads(file.read_text())["cells"]
    rows = [row for row in cell["rows"] if not row["control"]]
    return {
        (row["name"].rsplit("-", 1)[-1], measure): np.array(row["budgets"]["50"]["success"][measure], float).mean(1)[
            np.argsort(row["seeds"])
        ]
        for row in rows
        for measure in MEASURES
    }


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    end, way = (successes(folder / f"piecewise-small-along-{a}.json") for a in (0, 1))
    for measure, text in MEASURES.items():
        pairs = {f"{m}: along 1 − along 0": (way[m, measure], end[m, measure]) for m in ("lpwm", "lewm")}
        for along, by_method in ((0, end), (1, way)):
            pairs[f"lpwm − lewm, along {along}"] = (by_method["lpwm", measure], by_method["lewm", measure])
        for name, (a, b) in pairs.items():
            d = paired_crossed(a - b).difference
            rates = f"{100 * a.mean():.1f} against {100 * b.mean():.1f} %"
            print(f"{text}, {name}: {100 * d.estimate:+.1f} [{100 * d.low:.1f}, {100 * d.high:.1f}], {rates}")


if __name__ == "__main__":
    main()
