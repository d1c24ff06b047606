"""The benchmarks can be started: each imports what exists, and explains itself."""

import ast
import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def load(path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", [*sorted(BENCH.glob("*.py")), BENCH / "classic/measure.py"], ids=lambda p: p.stem)
def test_a_benchmark_imports_and_explains_itself(path, monkeypatch, capsys):
    module = load(path, monkeypatch)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0 and "usage" in capsys.readouterr().out


def test_the_classic_results_are_those_of_the_commands(monkeypatch):
    module = load(BENCH / "classic/measure.py", monkeypatch)
    results = json.loads((BENCH / "results/classic_2cores.json").read_text())
    assert list(results) == list(module.CASES)
    for name, result in results.items():
        assert result["commands"] == module.lines(name, result["seeds"], result["episodes"], result["episode_seed"])
        at_the_end = result["at_the_end_percent"]
        assert {len(rates) for rates in at_the_end["model"].values()} == {3} and "random actions" in at_the_end


def test_the_idle_share_is_what_lies_between_the_steps(monkeypatch):
    account = load(BENCH / "stream_idle.py", monkeypatch).account
    # 10 ms of work each; nothing, 5 ms and 15 ms between: 20 of the 50 ms after the first step's end.
    shares = account([(0, 10), (10, 20), (25, 35), (50, 60)])
    assert shares == pytest.approx({"step_ms": 50 / 3, "work_ms": 10, "idle_share": 0.4, "longest_gap_ms": 15})
    assert account([(0, 10), (9.5, 20)])["idle_share"] == 0  # marks on one stream may read a little early
    with pytest.raises(ValueError, match="two steps"):
        account([(0, 10)])


def test_mutants_differ_in_one_place_and_are_programs(monkeypatch):
    module = load(BENCH / "mutants.py", monkeypatch)
    source = "def f(a: int = 1) -> float:\n if a < 2 and not -a:\n  raise ValueError(f'{a + 1}')\n return a / 2.5"
    seen = set()
    for seed in range(200):
        tree = ast.parse(source)
        draw = random.Random(seed)
        module.change(draw.choice(module.places(tree)), draw)
        seen.add(ast.unparse(tree))
        compile(ast.unparse(tree), "mutant", "exec")
    assert ast.unparse(ast.parse(source)) not in seen
    # 1, 2 and 2.5; <, and, - and /; the branch either way; neither annotations nor what is raised
    assert len(seen) == 9 and all("-> float" in s and "{a + 1}" in s and "a: int" in s for s in seen)
