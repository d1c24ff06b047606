"""A report in headless Chromium: its size, when it answers, and the plans per second of the page that plans.

    python bench/page.py report.html [more.html …] [--json FILE] [--rounds 5]

A plan is CEM with 128 candidates, 10 iterations and 5 blocks, as on the page. `interactive` is when buttons answer,
`plots` when all curves are drawn, in milliseconds after the page was opened; medians of fresh browsers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PLAN = """
const engine = lpwmEngine(), player = engine.player(lpwm.data.play[arguments[0]]), n = arguments[1];
const settings = { samples: 128, iterations: 10, horizon: 5, path: false };
const z = player.see([60, 60]), goal = player.see([150, 170]);
for (let k = 0; k < 2; k++) engine.cem(player.model, z, goal, settings, null, engine.random(k));
const begun = performance.now();
for (let k = 0; k < n; k++) engine.cem(player.model, z, goal, settings, null, engine.random(k));
return 1000 * n / (performance.now() - begun);
"""


def browser_class() -> type:
    spec = importlib.util.spec_from_file_location("browser_of_pages", HERE / "tests" / "browser" / "test_browser.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Browser


def measure(page: Path, rounds: int) -> dict[str, object]:
    marks, plans = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as profile:
            browser = browser_class()(page.resolve().as_uri(), profile, width=1400)
            marks.append(browser.ask("return lpwm.marks"))
            count = browser.ask("return (lpwm.data.play || []).length")
            plans.append([browser.ask(PLAN, number, 10) for number in range(count)])
            browser.driver.quit()
    return {
        "page": page.name,
        "mb": round(page.stat().st_size / 1e6, 2),
        "interactive_ms": round(statistics.median(m["interactive"] for m in marks)),
        "plots_ms": round(statistics.median(m["plots"] for m in marks)),
        "plans_per_second": [round(statistics.median(p), 2) for p in zip(*plans, strict=True)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for page in args.pages:
        rows.append(measure(page, args.rounds))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"rounds": args.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
