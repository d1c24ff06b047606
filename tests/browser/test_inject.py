"""Files that bring scripts, on the pages of samples, recordings and sweeps, in Chromium: none runs."""

import importlib.util
import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lpwm.core.errors import UserError
from lpwm.interpret.recorded import Recorded
from lpwm.interpret.results import FactorStudy
from lpwm.report import page, sweep
from lpwm.report.gather import Gathered

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:constrained_layout")]  # of very long names
TESTS = Path(__file__).parents[1]


def other(name):
    spec = importlib.util.spec_from_file_location(Path(name).stem + "_here", TESTS / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def recordings(about):
    """Probes of factors, and a run without a world."""
    interval = {"estimate": 0.5, "low": 0.4, "high": 0.6, "level": 0.95, "unit": "clips"}
    score = dict.fromkeys(("r2", "r2_low", "r2_high", "shuffled", "spread", "low", "high"), 0.5)
    scores = [{"name": "angle", "angle": True, "frames": 9, **score}]
    row = {"actions": "planned", "error": interval, "first": interval, "left": interval}
    about = {"run": about, "world": {"name": "recorded"}, "settings": {}}
    numbers = {"trajectories": 3, "depth": [0.1], "copy": [0.2], "windows": 4, "factors": scores}
    numbers["retrieval"] = {"state": interval, "time": interval, "time_chance": 3.0, "frames": 9}
    numbers["planning"] = [{"ahead": 2, "problems": 5, "rows": [row]}]
    factors = FactorStudy.from_json({"kind": FactorStudy.KIND, "scores": scores, **about})
    return factors, Recorded.from_json({"kind": Recorded.KIND, **about, **numbers})


def poisoned_samples(documents):
    """Every kind of sample with EVIL in every field that readers accept, but for the run's hash."""
    samples = other("report/test_samples.py")
    run = documents.run("lpwm")

    def evil(result):
        worse = documents.poisoned(result)
        return replace(worse, run=replace(worse.run, hash=run.hash))

    factors, recorded = recordings(samples.info(run))
    sparsity = samples.sparsity_result(run)
    return Gathered([run], factors=[evil(factors)], recorded=[evil(recorded)], sparsity=[evil(sparsity)])


def poisoned_sweep(documents, root):
    """A finished sweep of which every file of the ledger brings EVIL wherever it is still read."""
    shutil.copytree(TESTS / "golden" / "v010" / "sweeps" / "small", root)
    for path in [root / "sweep.json", *sorted((root / "ledger" / "cells").glob("*.json"))[:2]]:
        data = json.loads(path.read_text())
        for place in list(documents.leaves(data)):
            at = data
            for key in place[:-1]:
                at = at[key]
            before, at[place[-1]] = at[place[-1]], documents.EVIL
            path.write_text(json.dumps(data))
            try:
                sweep.settings_of(root)
            except UserError:
                at[place[-1]] = before
        path.write_text(json.dumps(data))
    out = root / "page.html"
    sweep.report(root, out, heading=documents.EVIL)
    return out


def quiet(browser, path, seen):
    browser.driver.get(path.as_uri())
    time.sleep(1.0)
    assert browser.ask("return window.ran") is None, path
    assert browser.ask("return document.querySelectorAll('img[src=x]').length") == 0
    text = browser.ask("return document.body.innerText")
    assert text.count("onerror") >= seen, text.count("onerror")  # it is there, as text


def test_no_script_runs_on_any_other_page(documents, tmp_path):
    browser_tests = other("browser/test_browser.py")
    path = page.write(tmp_path / "samples.html", poisoned_samples(documents), title=documents.EVIL)
    made = poisoned_sweep(documents, tmp_path / "small")
    browser = browser_tests.Browser(path.as_uri(), tmp_path / "profile")
    try:
        quiet(browser, path, 5)
        for section in ("factors", "recorded", "sparsity"):
            assert browser.ask(f"return !!document.getElementById('{section}')"), section
        quiet(browser, made, 2)
    finally:
        browser.driver.quit()
